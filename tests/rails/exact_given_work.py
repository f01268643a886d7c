"""What the tests of exact sizes let ranks of several nodes do with slots that the relation gives,
or of which a rank may have only so many; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.rail_calls import RailCalls
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.reference import RankData
from tests.node_exact.rank_work import KEYS, by_slot, close, data_of, summed
from tests.node_triton import given_layers, given_work
from tests.node_triton.rank_work import batch, run, said_by
from tests.rails.exact_work import counts, open_shuffle
from tests.rails.rail_work import several_hosts, under_way

Tables = Sequence[Any]
"""By rank lists of a (rank, slot) for every segment and fan-out."""


def _ranks(shuffle: Shuffle, tables: Tables, lengths: Sequence[int], seed: int) -> list[RankData]:
    return [
        given_work.data_of(shuffle.spec, table, length, seed + rank)
        for rank, (table, length) in enumerate(zip(tables, lengths, strict=True))
    ]


def routed(
    group: Any,
    artifact: str,
    topology: str,
    calls: Sequence[Tables],
    lengths: Sequence[Sequence[int]],
) -> list[tuple[int, int, int]]:
    """Dispatches of three elements a segment, and combines, verified; of each how often this rank
    has launched it, has taken on anew what had landed, and has made its windows larger."""
    shuffle, found = open_shuffle(group, artifact, topology), []
    for number, (tables, each) in enumerate(zip(calls, lengths, strict=True)):
        with (
            counts(RailCalls, "dispatch") as launched,
            counts(RailCalls, "take_on_again") as again,
            counts(ExactRails, "_grow") as grown,
        ):
            run(shuffle, _ranks(shuffle, tables, each, number), combines=2)
        found.append((len(launched), len(again), len(grown)))
    shuffle.check()
    assert under_way(shuffle.engine.node.rails) == 0
    shuffle.close()
    return found


def routed_in_rounds(
    group: Any, artifact: str, topology: str, calls: Sequence[Tables], length: int
) -> int:
    """The same between ranks that say they are of several hosts, whose slabs travel in rounds; in
    how many."""
    with several_hosts():
        shuffle = open_shuffle(group, artifact, topology)
        for number, tables in enumerate(calls):
            lengths = [length] * len(tables)
            run(shuffle, _ranks(shuffle, tables, lengths, number), combines=1)
        shuffle.check()
        num_rounds = int(shuffle.engine.node.num_rounds)
        shuffle.close()
        return num_rounds


def gradients(group: Any, artifact: str, topology: str, tables: Tables, length: int) -> None:
    """Of rows and weights, as of fixed capacity."""

    def opened(group: Any, artifact: str, capacity: int) -> Shuffle:
        return open_shuffle(group, artifact, topology)

    with mock.patch.object(given_layers, "open_shuffle", opened):
        given_layers.gradients(group, artifact, tables, length)


def batches(
    group: Any,
    artifact: str,
    topology: str,
    sizes: Sequence[Sequence[int]],
    seed: int,
    **options: Any,
) -> None:
    """Calls of an example with these outermost extents, verified."""
    shuffle = open_shuffle(group, artifact, topology, **options)
    for number, each in enumerate(sizes):
        run(shuffle, batch(shuffle.spec, each, seed + number), combines=1 + number % 2)
    shuffle.check()
    shuffle.close()


def mistaken(
    group: Any, artifact: str, topology: str, right: Tables, wrong: Sequence[Tables], forced: bool
) -> list[str]:
    """Between calls that are whole one to each of the ``wrong`` tables; what is said of it.
    Combines and dispatches along the routing of a call before it are whole, too."""
    opened = open_shuffle if forced else _general
    shuffle, said = opened(group, artifact, topology), []
    rank, length = shuffle.rank, [6] * len(right)
    mine = _ranks(shuffle, right, length, 1)[rank]
    for number, tables in enumerate(wrong):
        run(shuffle, _ranks(shuffle, right, length, 3 * number), combines=1)
        rows, handle = shuffle.dispatch(**mine.source, **mine.inputs, length=6)
        held = rows.clone()
        bad = _ranks(shuffle, tables, length, number)[rank]
        said.append(said_by(lambda bad=bad: shuffle.dispatch(**bad.source, **bad.inputs, length=6)))
        assert torch.equal(shuffle.combine(held, handle), mine.source["x"])
        rows, again = shuffle.dispatch(mine.source["x"] + 1, handle=handle)
        held = rows.clone()
        assert torch.equal(shuffle.combine(held, again), mine.source["x"] + 1)
    shuffle.check()
    shuffle.close()
    return said


def _general(group: Any, artifact: str, topology: str) -> Shuffle:
    return Shuffle(artifact, group=group, topology=topology, timeout=60.0)


def pages(
    group: Any,
    artifact: str,
    topology: str,
    calls: Sequence[tuple[Sequence[Sequence[int]], Tables]],
    forced: bool,
) -> list[str]:
    """Pages of a cache to slots of other ranks, some of them twice, by call and rank: what is said
    of it. All that has gone comes back."""
    opened = open_shuffle if forced else _general
    shuffle, said, most = opened(group, artifact, topology), [], 0
    [field] = shuffle.spec.declared.source.fields
    random = torch.Generator().manual_seed(shuffle.rank)
    cache = torch.randn(2, 5, *field.shape, generator=random).bfloat16()
    for sent, to in calls:
        mine = torch.tensor(sent[shuffle.rank], dtype=torch.int64)
        places = torch.tensor(to[shuffle.rank], dtype=torch.int64).view(-1, 2)

        def call(mine: Any = mine, places: Any = places) -> None:
            rows, handle = shuffle.dispatch(cache, source_page=mine, destination=places, slots=30)
            back = shuffle.combine(rows.clone(), handle)
            left = torch.ones(5, dtype=torch.bool)
            left[mine[mine >= 0]] = False
            wanted = torch.where(left.view(1, 5, *[1] * (cache.dim() - 2)), 0, cache)
            assert torch.equal(back, wanted)

        with counts(RailCalls, "dispatch") as launched:
            said.append(said_by(call))
        most = max(most, len(launched))
    assert most > 1 or not forced, "no call has been launched again"
    shuffle.close()
    return said


def limited(group: Any, artifact: str, topology: str, most: int, forced: bool) -> list[str]:
    """Calls with up to ``most`` slots of a rank and more, on all ranks or on the last one alone:
    what is said of each. Those that fit are whole."""
    opened = open_shuffle if forced else _general
    shuffle, said = opened(group, artifact, topology), []
    num_ranks = shuffle.topology.num_ranks
    for number, (tokens, key) in enumerate(
        [
            (1, None),
            (3, KEYS - 1),
            (most // 3 // num_ranks, KEYS - 1),
            (most, None),
            (40, 0),
            (2, 1),
        ]
    ):
        given = data_of(shuffle.rank, tokens, number)
        if key is not None:
            given["idx"] = torch.full_like(given["idx"], key)

        def call(given: Any = given) -> None:
            rows, handle = shuffle.dispatch(**given)
            close(shuffle.combine(by_slot(rows, handle), handle), summed(given))
            rows, handle = shuffle.dispatch(given["x"] * 2, handle=handle)
            late = {"weights": given["weights"]}
            close(shuffle.combine(by_slot(rows, handle), handle, **late), 2 * summed(given))

        said.append(said_by(call))
    shuffle.check()
    shuffle.close()
    return said
