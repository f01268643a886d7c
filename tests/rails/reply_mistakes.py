"""What the tests let ranks of several nodes do with replies, beside `node_triton/reply_work.py`;
every function runs on one rank."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from fuscoc.explain import fixed
from fuscoc_runtime.engine.node.rails import RailNode
from tests.node_triton import reply_work
from tests.node_triton.rank_work import said_by
from tests.node_triton.reply_work import BAG, ROWS, WIDTH, bag, draw, look_up
from tests.rails.rail_work import open_shuffle, several_hosts

BAGS = 4


def opened(group: Any, artifact: str, topology: str, **options: Any) -> tuple[Any, torch.Tensor]:
    """A shuffle with room for so many bags, and a table of rows."""
    table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    options = {"max_sources": BAGS * BAG, "topology": topology, **options}
    return open_shuffle(group, artifact, **options), table


def in_rounds(group: Any, artifact: str, topology: str) -> tuple[int, int]:
    """Calls of ranks that say they are of several hosts; in how many rounds rows go there and
    back."""
    with several_hosts():
        reply_work.questions(group, artifact, True, topology=topology)
        shuffle = open_shuffle(group, artifact, topology)
    nodes = shuffle.engine.node, shuffle.engine.reply.node
    assert all(isinstance(each, RailNode) for each in nodes)
    there, back = (each.num_rounds for each in nodes)
    return there, back


def repeats(group: Any, artifact: str, topology: str) -> None:
    """Sums of calls of which only the first is looked at as a whole; what is said of the last one,
    and of memory. Ranks are nodes."""
    shuffle, table = opened(group, artifact, topology)
    with shuffle, mock.patch.object(shuffle.engine, "dispatch", wraps=shuffle.engine.dispatch) as d:
        for number in range(3):
            ids, weights, _ = draw(number, shuffle.rank, 2 + shuffle.rank)
            sums, _ = look_up(shuffle, table, ids, weights)
            torch.testing.assert_close(sums, bag(table, ids, weights))
        assert d.call_count == 1
        stats, spec, there = shuffle.stats(), shuffle.spec, ids >= 0
        leaves = there & (ids // (ROWS // 2) != shuffle.rank)
        assert (stats.network.rows, stats.local.rows) == (leaves.sum(), (there & ~leaves).sum())
        assert stats.num_rounds == 1
        parts = fixed.window(spec, spec.node, shuffle.topology, BAGS * BAG)
        assert shuffle.memory().window_bytes == fixed.total(parts)


def too_few_slots(group: Any, artifact: str, topology: str) -> tuple[str, int]:
    """Every rank looks up three bags at rank 0, which has slots for eight ids: those of the ranks
    below come first."""
    shuffle, table = opened(group, artifact, topology, capacity=8)
    ids = torch.arange(3 * BAG).view(3, BAG) % 3  # of one part: slots are in their order
    weights = torch.rand(3, BAG)
    asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
    sums = shuffle.combine(table[asked.clamp(0, ROWS - 1)], handle)
    expected = bag(table, ids, weights)
    expected[(2, 0)[shuffle.rank] :] = 0
    torch.testing.assert_close(sums, expected)
    return said_by(shuffle.check), int(handle.dropped)


def refused_reply(group: Any, artifact: str, topology: str) -> list[str]:
    """Rank 1 brings back rows of a wrong shape; what is said, and of a call behind it."""
    shuffle, table = opened(group, artifact, topology)
    ids, weights, _ = draw(1, shuffle.rank, 3)
    asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
    return bring_back(shuffle, table, ids, weights, table[asked.clamp(0, ROWS - 1)], handle)


def bring_back(
    shuffle: Any, table: Any, ids: Any, weights: Any, rows: Any, handle: Any
) -> list[str]:
    """The end of that; who joins has lost what rank 1 had, and no more."""
    said = []
    if shuffle.rank == 1:
        said.append(said_by(lambda: shuffle.combine(rows[:, 1:], handle)))
    else:
        elsewhere = (ids < ROWS // 2).all(1)
        result = shuffle.combine(rows, handle)
        assert torch.equal(result.isnan().any(1), ~elsewhere)
        torch.testing.assert_close(result[elsewhere], bag(table, ids, weights)[elsewhere])
        said.append(said_by(shuffle.check))
    sums, _ = look_up(shuffle, table, ids, weights)
    torch.testing.assert_close(sums, bag(table, ids, weights))
    return [*said, said_by(shuffle.check)]


def refused_dispatch(group: Any, artifact: str, topology: str) -> list[str]:
    """Rank 1 asks with ids of a wrong type, and would go on both ways."""
    shuffle, table = opened(group, artifact, topology)
    ids, weights, _ = draw(1, shuffle.rank, 3)
    before = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)[1]
    if shuffle.rank == 1:
        rows = table[torch.zeros(before.num_slots, dtype=torch.int64)]
        return [
            said_by(lambda: shuffle.dispatch(ids.int(), indices=ids)),
            said_by(lambda: shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)),
            said_by(lambda: shuffle.combine(rows, before)),
        ]
    asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
    own = ids[(ids >= 0) & (ids < ROWS // 2)]
    assert sorted(asked[: handle.key_counts.sum()].tolist()) == sorted(own.tolist()) != []
    return [said_by(shuffle.check)]
