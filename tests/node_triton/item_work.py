"""What the test of items lets a process do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.kernels.device import load
from fuscoc_runtime.kernels.loader import launching
from tests.node_triton.rank_work import open_shuffle


def copied(group: Any, artifact: str, num_programs: int, sizes: list[int]) -> list[list[int]]:
    """The items that so many programs copy, in dispatches of so many rows, each program after the
    other; all rows are right."""
    shuffle = open_shuffle(group, artifact, max_sources=max(sizes), capacity=max(sizes))
    node = shuffle.engine.node
    node.configure(replace(node._programs, dispatch=num_programs))
    with launching(interpreted=True):
        move = load("move")
    copy, copy_ahead = move.copy, move.copy_ahead
    seen: list[list[int]] = []

    def noted(call: Any, half: Any, item: Any, *rest: Any) -> Any:
        seen[-1].append(int(item))
        return copy(call, half, item, *rest)

    def noted_ahead(call: Any, epoch: Any, half: Any, item: Any, num: Any, *rest: Any) -> Any:
        is_kept = copy_ahead(call, epoch, half, item, num, *rest)
        if int(is_kept) and int(item) < int(num):
            seen[-1].append(int(item))
        return is_kept

    with mock.patch.multiple(move, copy=noted, copy_ahead=noted_ahead):
        for size in sizes:
            seen.append([])
            x = torch.randn(size, *shuffle.spec.declared.source_fields[0].shape)
            rows, _ = shuffle.dispatch(x)
            assert torch.equal(rows.reshape(-1), x.reshape(-1))
    shuffle.check()
    return seen
