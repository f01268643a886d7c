"""What the tests of policies between nodes let ranks do; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.comm import lanes
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.engine.node import places
from fuscoc_runtime.engine.node.flow_calls import FlowCalls
from fuscoc_runtime.engine.node.flow_rails import FlowRails
from tests.node_exact.rank_work import HIDDEN, data_of
from tests.node_triton.rank_work import batch, run, said_by
from tests.rails import exact_work
from tests.rails.rail_work import under_way

Sent = list[dict[int, int]]
"""Bytes that a rank sends others, exchange after exchange."""


def amounts(
    group: Any, artifact: str, topology: str, batches: Sequence[Sequence[int]], seed: int
) -> list[Sent]:
    """Calls of these sizes on one lane and more, verified: the rows that this rank has sent in
    each, forth and back."""
    shuffle = exact_work.open_shuffle(group, artifact, topology)
    found = []
    for number, each in enumerate(batches):
        with (
            exact_work.counts(Rails, "_wait_for") as posted,
            mock.patch.object(lanes, "LANE_BYTES", 1 << 30 if number % 2 else 1),
        ):
            run(shuffle, batch(shuffle.spec, each, seed + number), combines=1)
        rounds = [what for _, what in posted if isinstance(what, Crossing)]
        rounds = [each for each in rounds if has_rows(shuffle, each)]
        if shuffle.spec.program.exchange.schedule == "fast":
            assert all(len(each.receives) <= 1 for each in rounds)
        found.append([sent(each) for each in rounds])
    shuffle.check()
    assert under_way(shuffle.engine.node.rails) == 0
    shuffle.close()
    return found


def by_flows(group: Any, *arguments: Any, work: Callable[..., Any], **options: Any) -> Any:
    """`exact_work.with_few_places` of a shuffle whose rows travel as flows."""
    with exact_work.counts(FlowRails, "_start") as started:
        found = exact_work.with_few_places(group, *arguments, work=work, **options)
    assert started
    return found


def without_slabs(group: Any, *arguments: Any, work: Callable[..., Any]) -> Any:
    """Other work of a shuffle whose rows are too many for slabs in any call."""
    with (
        mock.patch.object(places, "MOST_SENT", 0),
        exact_work.counts(FlowCalls, "move") as moved,
    ):
        found = work(group, *arguments)
    assert moved
    return found


def has_rows(shuffle: Any, what: Crossing) -> bool:
    """Whether it carries rows, and not what is said of points."""
    window = shuffle.engine.node._rows.local.untyped_storage()
    parts = [part.untyped_storage() for row in (*what.sends, *what.receives) for part in row.fields]
    return any(part.data_ptr() == window.data_ptr() for part in parts)


def sent(what: Crossing) -> dict[int, int]:
    found = dict[int, int]()
    for row in what.sends:
        found[row.peer] = found.get(row.peer, 0) + sum(part.nbytes for part in row.fields)
    return found


def other_routings(group: Any, artifact: str, topology: str, again: bool, fewest: int) -> list[str]:
    """The last rank means another dispatch than the others, by which other rows travel, in a
    combine or, ``again``, in a dispatch; what is said of that and of a further call."""
    shuffle = exact_work.open_shuffle(group, artifact, topology)
    rank = shuffle.rank
    few, many = (data_of(rank, tokens) for tokens in (fewest, 9))
    made = [shuffle.dispatch(**each) for each in (few, many)]
    number = int(rank == shuffle.topology.num_ranks - 1)
    handle, given = made[number][1], (few, many)[number]
    if again:
        said = [said_by(lambda: shuffle.dispatch(given["x"], handle=handle))]
    else:
        said = [said_by(lambda: shuffle.combine(torch.rand(handle.num_slots, HIDDEN), handle))]
    return [*said, said_by(lambda: shuffle.dispatch(**few))]
