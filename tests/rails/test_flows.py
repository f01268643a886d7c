"""Exact sizes between nodes by a policy, interpreted: rows that other ranks send, and stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_exact import rank_work
from tests.node_triton.rank_work import batch
from tests.node_triton.test_given_slots import FANNED
from tests.node_triton.test_wide_nodes import with_room
from tests.rails import exact_given_work, exact_work, flow_work
from tests.rails.test_exact import NIGHTLY, RANKS, by, path
from tests.rails.test_exact_given import BY_DAY, mistakes
from tests.rails.test_exact_pieces import SIZES, SPECS
from tests.rails.test_given_slots import ONE_EACH
from tests.rails.test_rails import check_that_the_last_is_named

pool = pool_of(6)

KEYS, ROW_BYTES = 12, 24 * 4
PLAIN = specs.routed("f32")
BALANCED = specs.routed("f32", options="balance rebalance")
STAGED = specs.routed("f32", options="balance rebalance schedule fast")
COMPACT = specs.routed("bf16", hidden=40, capacity="compact", options="schedule fast")


def flows(text: str, topology: Topology, sizes: tuple[int, ...], seed: int) -> list[list[int]]:
    """Segments that every rank has for every other node, from the routing alone."""
    counted = []
    for rank, data in enumerate(batch(specs.artifact(text).shuffle(None), sizes, seed)):
        owners = [
            {key * topology.num_ranks // KEYS for key in segment if key >= 0}
            for segment in data.inputs["idx"].tolist()
        ]
        nodes = [{owner // topology.ranks_per_node for owner in each} for each in owners]
        here = rank // topology.ranks_per_node
        counted.append(
            [
                sum(node in each for each in nodes) * (node != here)
                for node in range(topology.num_nodes)
            ]
        )
    return counted


def between(counted: list[list[int]], topology: Topology, node: int, other: int) -> int:
    """Rows from all ranks of a node to another node."""
    return sum(counted[rank][other] for rank in topology.node_ranks(node))


@pytest.mark.parametrize(
    ("topology", "batches"),
    [
        ("2x2", [(9, 0, 3, 4), (0, 0, 0, 0), (1, 18, 0, 3)]),
        pytest.param("3x2", [(9, 0, 3, 4, 0, 1), (0, 30, 1, 0, 7, 7)], marks=NIGHTLY),
    ],
)
def test_ranks_of_a_node_send_alike(
    pool: Pool, topology: str, batches: list[tuple[int, ...]]
) -> None:
    """For every other node within one row, to the rank of their place there; also where rows come
    back. So every row travels once each way."""
    found = pool.run(flow_work.amounts, RANKS[topology], path(BALANCED), topology, batches, 1)
    shape = Topology.parse(topology)
    m = shape.ranks_per_node
    for number, sizes in enumerate(batches):
        wanted = flows(BALANCED, shape, sizes, 1 + number)
        for rank, exchanges in enumerate(each[number] for each in found):
            here, place = divmod(rank, m)
            rows = dict.fromkeys(range(shape.num_nodes), 0)
            for peer, num_bytes in (each for sent in exchanges for each in sent.items()):
                assert (peer % m, num_bytes % ROW_BYTES) == (place, 0)
                rows[peer // m] += num_bytes // ROW_BYTES
            for node in set(rows) - {here}:
                both = [between(wanted, shape, *pair) for pair in ((here, node), (node, here))]
                assert sum(each // m for each in both) <= rows[node]
                assert rows[node] <= sum(-(-each // m) for each in both)
        travelled = sum(sum(sent.values()) for each in found for sent in each[number])
        assert travelled == 2 * ROW_BYTES * sum(map(sum, wanted))


@pytest.mark.parametrize(
    ("text", "topology"), [(STAGED, "2x2"), pytest.param(COMPACT, "3x1", marks=NIGHTLY)],
    ids=["expanded", "compact"],
)  # fmt: skip
def test_room_for_many_ranks(pool: Pool, text: str, topology: str) -> None:
    """Few ranks whose kernels have room for 128."""
    num_ranks = RANKS[topology]
    sizes = [(1, 18, 0, 3)[:num_ranks]]
    pool.run(with_room, num_ranks, exact_work.sizes, path(text), topology, sizes, 1)


@NIGHTLY
@pytest.mark.parametrize(
    ("options", "topology"),
    [
        ("balance rebalance", "2x9"),
        ("balance split", "2x9"),
        ("balance rebalance schedule fast", "3x9"),
        ("", "2x12"),
    ],
)
def test_nodes_of_many_ranks(options: str, topology: str) -> None:
    """Rows bit by bit, results within rounding; without a policy where slabs would be too large."""
    shape = Topology.parse(topology)
    text = specs.routed("bf16", hidden=8, keys=144, topk=3, placement="cyclic", options=options)
    sizes = [tuple((rank * turn + turn) % 4 for rank in range(shape.num_ranks)) for turn in (1, 3)]
    work: Callable[..., Any] = exact_work.sizes
    if not options:
        work = partial(flow_work.without_slabs, work=work)
    processes = Pool(shape.num_ranks, sizes=[shape.num_ranks])
    try:
        processes.run(work, shape.num_ranks, path(text), topology, sizes, 1)
    finally:
        processes.close()


@pytest.mark.parametrize(
    ("topology", "batches"),
    [
        ("3x1", [(5, 0, 9), (30, 2, 40)]),
        pytest.param("3x2", [(9, 0, 3, 4, 0, 1)], marks=NIGHTLY),
        pytest.param("4x1", [(9, 0, 3, 40)], marks=NIGHTLY),
    ],
)
def test_stages_have_no_incast(pool: Pool, topology: str, batches: list[tuple[int, ...]]) -> None:
    """A rank sends one other at a time, and gets from one."""
    text = specs.routed("bf16", options="balance rebalance schedule fast")
    for calls in pool.run(flow_work.amounts, RANKS[topology], path(text), topology, batches, 1):
        assert any(sent for exchanges in calls for sent in exchanges)
        assert all(len(sent) <= 1 for exchanges in calls for sent in exchanges)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("balance split", {"capacity": "compact"}),
        ("balance lpt", {"dtype": "bf16", "hidden": 40, "topk": 8}),
        ("balance auto schedule auto", {"reduce": "max"}),
    ],
    ids=["split", "lpt", "auto"],
)
@NIGHTLY
def test_other_policies(pool: Pool, options: str, text: dict[str, object]) -> None:
    spec = path(specs.routed(**{"options": options, **text}))
    pool.run(exact_work.sizes, 4, spec, "2x2", [(3, 0, 0, 12), (21, 5, 0, 3)], 1)


@pytest.mark.parametrize(
    ("text", "topology"), [(STAGED, "3x1"), pytest.param(BALANCED, "2x2", marks=NIGHTLY)],
    ids=["stages", "balanced"],
)  # fmt: skip
def test_what_is_too_small_grows(pool: Pool, text: str, topology: str) -> None:
    """Slabs, windows and the memory of rows; handles from before are good."""
    work = partial(flow_work.by_flows, work=rank_work.handles_last, topology=topology)
    pool.run(work, RANKS[topology], path(text))


@NIGHTLY
def test_gradients(pool: Pool) -> None:
    work = partial(flow_work.by_flows, work=rank_work.by_torch)
    options = {"topology": "2x2"}
    for errors in pool.run(work, 4, "gradients", path(BALANCED), options):
        assert max(errors) < 1e-5, errors


@NIGHTLY
def test_mistakes(pool: Pool) -> None:
    """As without a policy: all ranks raise what the general engine raises."""
    work = partial(flow_work.by_flows, work=rank_work.mistakes, topology="2x2")
    found = pool.run(work, 4, path(BALANCED), 5, True)
    assert found == pool.run(by(rank_work.mistakes, "2x2"), 4, path(BALANCED), 5, False)


@NIGHTLY
def test_a_combine_that_one_rank_refuses(pool: Pool) -> None:
    """Ranks go on without its rows, and send what they are expected to."""
    plain = pool.run(exact_work.a_refused_combine, 4, path(PLAIN), "2x2")
    assert pool.run(exact_work.a_refused_combine, 4, path(BALANCED), "2x2") == plain


@NIGHTLY
def test_a_dispatch_that_one_rank_refuses(pool: Pool) -> None:
    plain = pool.run(exact_work.a_refused_dispatch, 4, path(PLAIN), "2x2")
    assert pool.run(exact_work.a_refused_dispatch, 4, path(BALANCED), "2x2") == plain


@pytest.mark.parametrize(
    ("topology", "again", "fewest"),
    [
        ("3x1", False, 3),
        ("2x2", False, 0),
        pytest.param("3x1", True, 3, marks=NIGHTLY),
        pytest.param("2x2", False, 3, marks=NIGHTLY),
        pytest.param("2x2", True, 3, marks=NIGHTLY),
        pytest.param("2x2", True, 0, marks=NIGHTLY),
    ],
)
def test_handles_of_different_dispatches(
    pool: Pool, topology: str, again: bool, fewest: int
) -> None:
    """Rows of the two would not fit each other: every rank says so, at once and from then on. Of a
    dispatch without any a combine is right, and the next call says so."""
    work = partial(flow_work.other_routings, again=again, fewest=fewest)
    for said in pool.run(work, RANKS[topology], path(STAGED), topology):
        wrong = ["handle" in each and "do not fit" in each for each in said]
        assert wrong == [True, True] or (fewest == 0 and said[0] == "no error" and wrong[1]), said


BEYOND = {
    "plain": (exact_work.sizes, PLAIN),
    "compact": (exact_work.sizes, specs.routed("bf16", hidden=40, capacity="compact")),
}


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("plain", "2x2"),
        pytest.param("compact", "2x1", marks=NIGHTLY),
        pytest.param("plain", "4x1", marks=NIGHTLY),
        pytest.param("plain", "3x2", marks=NIGHTLY),
        pytest.param("compact", "2x2", marks=NIGHTLY),
    ],
)
def test_rows_without_a_policy(pool: Pool, text: str, topology: str) -> None:
    """Every rank sends its own, to one node after the other, where slabs would be too large."""
    work, spec = BEYOND[text]
    num_ranks = RANKS[topology]
    sizes = [(3, *[0] * (num_ranks - 1)), (20, *[5] * (num_ranks - 1)), (0,) * num_ranks]
    given = path(spec), topology, sizes, 1
    pool.run(partial(flow_work.without_slabs, work=work), num_ranks, *given)


@NIGHTLY
@pytest.mark.parametrize("spec", [PLAIN, BALANCED], ids=["slabs", "flows"])
@pytest.mark.parametrize("num_turns", [2, 3])
def test_sums_come_in_turns(pool: Pool, spec: str, num_turns: int) -> None:
    """Of exact sizes, whose windows grow between calls."""
    sizes = [(3, 0, 0, 1), (90, 5, 0, 80), (70, 96, 3, 20)]
    found = pool.run(exact_work.in_turns, 4, path(spec), "2x2", sizes, num_turns)
    assert found == [num_turns] * 4


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_verdicts_come_before_rows(pool: Pool, topology: str) -> None:
    """Slots that the relation gives, and those that a rank may have, by flows: what one node finds
    out is said on all ranks, and nothing has moved."""
    num_ranks = RANKS[topology]
    right, wrong = mistakes(num_ranks, BY_DAY)
    given = path(ONE_EACH), topology, right, wrong
    work = partial(flow_work.without_slabs, work=exact_given_work.mistaken)
    found = pool.run(work, num_ranks, *given, True)
    assert found == pool.run(exact_given_work.mistaken, num_ranks, *given, False)
    assert all("no error" not in said for said in found)
    given = path(specs.routed("f32", capacity="capacity max 72")), topology, 72
    work = partial(flow_work.without_slabs, work=exact_given_work.limited)
    found = pool.run(work, num_ranks, *given, True)
    assert found == pool.run(exact_given_work.limited, num_ranks, *given, False)


@pytest.mark.parametrize(
    ("name", "topology", "policy"),
    [
        ("vit_patches", "2x1", ""),
        *(
            pytest.param(name, topology, policy, marks=NIGHTLY)
            for name in ("kv_pages", "kv_long_pages", "ragged_text", "vit_patches", "redistribute")
            for topology, policy in (
                ("2x1", ""), ("2x2", "balance rebalance"), ("3x1", "schedule fast"),
            )
            if name != "redistribute" or topology == "2x2"
        ),
    ],
)  # fmt: skip
def test_rows_of_pieces(pool: Pool, name: str, topology: str, policy: str) -> None:
    """And those of ragged sources, where slabs would be too large, or by a policy; the latter also
    of a static shuffle, whose slabs have places for what crosses without one."""
    num_ranks, text = RANKS[topology], SPECS[name]
    assert text.count("combine  reverse") == 1
    spec = path(text.replace("combine  reverse", f"{policy} combine  reverse"))
    sizes = [(each * 2)[:num_ranks] for each in SIZES[name]]
    work: Callable[..., Any] = exact_given_work.batches
    if not policy:
        work = partial(flow_work.without_slabs, work=work)
    pool.run(work, num_ranks, spec, topology, sizes, 1)


@NIGHTLY
@pytest.mark.parametrize("options", ["", "balance rebalance"])
def test_given_slots_grow(pool: Pool, options: str) -> None:
    """Windows of one node that are too small to look at slots, also by a policy."""
    text = FANNED["summed"].replace(".rank\n", f".rank {options}\n")
    to = [[[(3, rank), (0, rank), (-1, 0)]] for rank in range(4)]
    lengths = [[6] * 4, [6, 6, 6, 60], [6, 6, 6, 60]]
    work = exact_given_work.routed
    if not options:
        work = partial(flow_work.without_slabs, work=work)
    found = pool.run(work, 4, path(text), "2x2", [to] * 3, lengths)
    for rank, (_, second, third) in enumerate(found):
        assert second == (1, 1, int(rank >= 2))
        assert third == (1, 0, 0)


@NIGHTLY
@pytest.mark.parametrize(
    "work", [exact_work.a_refused_combine, exact_work.a_refused_dispatch, exact_work.waits]
)
def test_other_calls_without_a_policy(pool: Pool, work: Callable[..., Any]) -> None:
    plain = pool.run(work, 4, path(PLAIN), "2x2")
    assert pool.run(partial(flow_work.without_slabs, work=work), 4, path(PLAIN), "2x2") == plain


@NIGHTLY
def test_a_rank_that_dies_is_named() -> None:
    check_that_the_last_is_named(exact_work.one_dies, 4, path(BALANCED), "2x2")
