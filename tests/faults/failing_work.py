"""What tests let processes do of which one fails by itself, and lives on; every function runs on
one rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_exact import rank_work as exact
from tests.node_triton import rank_work as fixed

FAILURES: dict[str, BaseException] = {
    "memory": torch.OutOfMemoryError("no memory"),
    "interrupt": KeyboardInterrupt(),
}
OPENED: dict[str, Callable[..., Shuffle]] = {
    "fixed": fixed.open_shuffle,
    "exact": exact.open_shuffle,
    "general": lambda group, artifact, **options: Shuffle(artifact, group=group, **options),
}
REPEATED = "node.prepared.Prepared.submit", "node.engine.NodeEngine.entered"
"""Where a call that repeats another one comes by, too."""


def amid_a_call(
    group: Any, artifact: str, engine: str, where: str, failure: str, timeout: float
) -> list[str]:
    """The last rank fails in its second call, in a function of the runtime; what is said of that
    call and of the next one. The second one repeats the first where it comes by there as well."""
    shuffle = OPENED[engine](group, artifact, timeout=timeout)

    def call(num_sources: int = 3) -> None:
        rows, handle = shuffle.dispatch(**exact.data_of(shuffle.rank, num_sources))
        shuffle.combine(rows.clone(), handle)
        shuffle.check()

    call(3 if where in REPEATED else 2)
    fails = shuffle.rank == shuffle.topology.num_ranks - 1
    name = f"fuscoc_runtime.engine.{where}"
    with mock.patch(name, side_effect=FAILURES[failure]) if fails else nullcontext():
        said = [_said(call)]
    return [*said, _said(call)]


def amid_a_call_of_another_engine(
    group: Any, artifact: str, timeout: float
) -> tuple[bool, str, str, str]:
    """The last rank fails in a call that the general engine makes for kernels, and does not close
    the shuffle: whether what is under way may never end, and what is said of the call, of one that
    kernels could make, and of closing."""
    shuffle = exact.open_shuffle(group, artifact, timeout=timeout)
    given = exact.data_of(shuffle.rank, 3)
    fails, failure = shuffle.rank == shuffle.topology.num_ranks - 1, FAILURES["memory"]
    path = "fuscoc_runtime.engine.dispatch.PreparedPath"
    with exact.most_points(3), mock.patch(path, side_effect=failure) if fails else nullcontext():
        said = _said(lambda: shuffle.dispatch(**given))
    is_stuck, later = shuffle.engine.is_stuck, _said(lambda: shuffle.dispatch(**given))
    return is_stuck, said, later, "" if fails else _said(shuffle.close)


def amid_the_opening(group: Any, artifact: str, timeout: float) -> str:
    """The last rank has no kernels; what is said of opening a shuffle."""
    fails, failure = torch.distributed.get_rank(group) == 1, FAILURES["memory"]
    path = "fuscoc_runtime.engine.node.exact.TritonProgram"
    with mock.patch(path, side_effect=failure) if fails else nullcontext():
        return _said(lambda: exact.open_shuffle(group, artifact, timeout=timeout))


def leaves_by_an_error(group: Any, artifact: str, timeout: float) -> str:
    """The last rank leaves its block by an error, and lives on; what is said of a call of the
    others."""
    with suppress(ValueError), Shuffle(artifact, group=group, timeout=timeout) as shuffle:
        given = exact.data_of(shuffle.rank, 3)
        shuffle.dispatch(**given)
        if shuffle.rank == shuffle.topology.num_ranks - 1:
            raise ValueError
        return fixed.said_by(lambda: shuffle.dispatch(**given))
    return "left"


def _said(call: Callable[[], object]) -> str:
    try:
        return fixed.said_by(call)
    except (torch.OutOfMemoryError, KeyboardInterrupt) as error:
        return type(error).__name__
