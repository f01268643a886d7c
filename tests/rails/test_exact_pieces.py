"""Exact sizes between nodes, interpreted, of segments that pieces have, of static shuffles, and of
ragged sources."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.face.choice import choose_exact, choose_static, static_sources
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton.given_specs import EXAMPLES, TEXTS
from tests.node_triton.test_any_spec import STATEFUL, Ranks
from tests.rails import exact_given_work, exact_pieces_work, exact_work, flow_work, static_specs
from tests.rails.test_any_spec import GPU
from tests.rails.test_packed import SHAPES, check_calls, ranks
from tests.rails.test_rails import check_that_the_last_is_named

__all__ = ["ranks"]  # a fixture

NIGHTLY = pytest.mark.nightly
FFT = EXAMPLES["fft_transpose"].text
PATCHES = EXAMPLES["vit_patches"]
SPECS = {**{name: small.text for name, small in EXAMPLES.items()}, "ragged_text": TEXTS}
SIZES = {
    **{name: small.batches for name, small in EXAMPLES.items()},
    "ragged_text": [(3, 0, 5, 2), (0, 0, 0, 0), (1, 9, 3, 0)],
}
FIXED = ("ulysses", "fft_transpose", "redistribute", "reshard")
"""Six does not divide their sizes."""
EVERYWHERE = ("all_gather", "halo")
STATIC = (*FIXED, *EVERYWHERE)
BY_DAY = ("redistribute", "kv_pages", "vit_patches", "ragged_text")

pool = pool_of(6)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def ranks_of(topology: str) -> int:
    return Topology.parse(topology).num_ranks


@pytest.mark.parametrize(
    ("topology", "name"),
    [
        pytest.param(topology, name, marks=() if topology == "2x1" and name in BY_DAY else NIGHTLY)
        for topology in ("2x1", "2x2", "3x2")
        for name in SPECS
        if topology != "3x2" or name not in FIXED
    ],
)
def test_examples(pool: Pool, topology: str, name: str) -> None:
    """Calls in a row, of other sizes and tables each; on some ranks there is nothing."""
    num_ranks = ranks_of(topology)
    batches = [(sizes * 2)[:num_ranks] for sizes in SIZES[name]]
    pool.run(exact_given_work.batches, num_ranks, path(SPECS[name]), topology, batches, 1)


def test_by_which_kernels() -> None:
    """Rows between nodes, where inside a node they are boxes or the host's plan."""
    for name, text in SPECS.items():
        topology = Topology(2, 2)
        shuffle = specs.artifact(text).shuffle(None).among(topology.num_ranks)
        assert shuffle.node is not None
        kernels = shuffle.node.between or shuffle.node
        assert choose_exact(shuffle, topology, GPU) == kernels, name
        inside = choose_exact(shuffle, Topology(1, 4), GPU)
        assert isinstance(inside, str) == (
            shuffle.program.is_static or shuffle.node.pieces is not None
        )


def test_memory_of_a_fixed_size_is_for_what_ranks_decide() -> None:
    """Also without `max_sources`; where calls may say more, where a policy says how rows go, or
    where kernels take rows inside a node, not."""
    weighted = static_specs.uneven("every", 15, 2, "f32", 5, is_weighted=True)
    sums = static_specs.uneven("every", 15, 2, "f32", 5)
    chosen = sums.replace("partial", "partial balance rebalance")
    texts = {**SPECS, "weighted": weighted, "sums": sums, "chosen": chosen}
    for name, text in texts.items():
        shuffle = specs.artifact(text).shuffle()
        inside, between = (static_sources(shuffle, Topology(*each)) for each in ((1, 4), (2, 2)))
        assert isinstance(between, int) == (name in (*STATIC, "sums")), name
        if name == "weighted":
            assert "weights" in str(between)
        elif name == "chosen":
            assert "policy" in str(between)
            assert static_sources(shuffle, Topology(2, 1)) == 16
        elif name in ("reshard", "sums", *EVERYWHERE):  # no pieces
            assert "made once" in str(inside)
        else:
            assert inside == between
    shuffle = specs.artifact(SPECS["redistribute"]).shuffle()
    for gpu, wanted in ((None, None), (GPU, "general")):
        assert isinstance(choose_static(shuffle, Topology(2, 2), gpu, wanted), str)
    assert choose_static(shuffle, Topology(2, 2), GPU) == 4


@pytest.mark.parametrize("name", ["fft_transpose", "halo", "ragged_text"])
def test_where_the_host_waits(pool: Pool, name: str) -> None:
    """For counts, and before that for the sizes of a ragged source; with a handle for nothing.
    Dispatches of static shuffles wait for what hosts say, and for nothing of a GPU."""
    found = pool.run(exact_pieces_work.waits, 2, path(SPECS[name]), "2x1", [2, 3])
    for dispatch, back, again, last in found:
        assert back == last == []
        if name in STATIC:
            assert [each.split(":")[0] for each in (*dispatch, *again)] == ["process.py"] * 2
            continue
        assert again == []
        *sizes, counts = dispatch
        assert counts == "plan"
        assert len(sizes) == 1, sizes


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("ragged_text", "2x1"), ("halo", "2x1"),
        pytest.param("fft_transpose", "2x1", marks=NIGHTLY),  # the gradients of it are by day
        *(pytest.param("ragged_text", topology, marks=NIGHTLY) for topology in ("1x2", "2x2")),
        *(pytest.param("vit_patches", topology, marks=NIGHTLY) for topology in ("2x1", "2x2")),
        pytest.param("kv_long_pages", "2x1", marks=NIGHTLY),
        ("vit_patches_normalised by a call", "2x1"),
        pytest.param("vit_patches_normalised by a call", "1x2", marks=NIGHTLY),
    ],
)  # fmt: skip
def test_handles_last(pool: Pool, name: str, topology: str) -> None:
    num_ranks = ranks_of(topology)
    batches = [sizes[:num_ranks] for sizes in ((2, 1, 3, 1), (1, 3, 0, 2))]
    pool.run(exact_pieces_work.handles_last, num_ranks, path(SPECS[name]), topology, batches)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("fft_transpose", "2x1"), ("ragged_text", "2x1"), ("halo", "2x1"),
        pytest.param("fft_transpose", "2x2", marks=NIGHTLY),
        pytest.param("ragged_text", "2x2", marks=NIGHTLY),
        pytest.param("ragged_text", "1x2", marks=NIGHTLY),
    ],
)  # fmt: skip
def test_gradients(pool: Pool, name: str, topology: str) -> None:
    num_ranks = ranks_of(topology)
    sizes = (2, 3, 0, 1)[:num_ranks]
    pool.run(exact_pieces_work.gradients, num_ranks, path(SPECS[name]), topology, sizes)


@pytest.mark.parametrize(
    ("topology", "in_rounds"),
    [("2x1", True), *(pytest.param(each, True, marks=NIGHTLY) for each in ("2x2", "4x1", "3x2"))],
)
def test_weighted_sums_of_a_static_shuffle(pool: Pool, topology: str, in_rounds: bool) -> None:
    """Weights go to the places that segments have."""
    opens = exact_work.open_in_rounds if in_rounds else exact_work.open_shuffle
    text = static_specs.uneven("every", 15, 2, "f32", 5, is_weighted=True)
    pool.run(exact_pieces_work.weighed, ranks_of(topology), path(text), topology, opens)


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_weighted_sums_as_flows(pool: Pool, topology: str) -> None:
    """Of a static shuffle, too, where slabs would be too large."""
    text = static_specs.uneven("every", 15, 2, "f32", 5, is_weighted=True)
    work = partial(flow_work.without_slabs, work=exact_pieces_work.weighed)
    pool.run(work, ranks_of(topology), path(text), topology, exact_work.open_shuffle)


def test_weighted_sums_that_one_rank_keeps(pool: Pool) -> None:
    text = static_specs.uneven("every", 15, 2, "f32", 5, is_weighted=True)
    pool.run(exact_pieces_work.kept_by_one, 2, path(text), "2x1")


MISTAKES = {
    "fft_transpose": ("no type", "a row less", "no argument", "missing", "no list"),
    "ragged_text": ("negative", "longer", "uncountable", "no bucket", "no lengths", "no type"),
    "vit_patches": ("uneven", "no slot", "the same slots", "no rank"),
}


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        *((name, "2x1") for name in MISTAKES),
        ("ragged_text", "1x2"),
        *(pytest.param(name, "2x2", marks=NIGHTLY) for name in MISTAKES),
    ],
)
def test_mistakes(pool: Pool, name: str, topology: str) -> None:
    """All ranks raise what the general engine raises, and nothing has moved."""
    num_ranks, names = ranks_of(topology), MISTAKES[name]
    work = exact_pieces_work.mistaken
    arguments = path(SPECS[name]), topology, (2, 1, 1, 2)[-num_ranks:], names
    found = pool.run(work, num_ranks, *arguments, True)
    assert found == pool.run(work, num_ranks, *arguments, False)
    for said in found:
        assert said == found[0]
        assert [each == "no error" for each in said] == [False] * len(names) + [True]


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
@pytest.mark.parametrize("name", ["fft_transpose", "ragged_text"])
def test_a_rank_that_dies_is_named(name: str, topology: str) -> None:
    num_ranks, work = ranks_of(topology), exact_pieces_work.one_dies
    check_that_the_last_is_named(work, num_ranks, path(SPECS[name]), topology, [2] * num_ranks)


@given(data=st.data())
@settings(STATEFUL, max_examples=4)
def test_any_static_shuffle(ranks: Ranks, data: st.DataObject) -> None:
    check_calls(ranks, data, ["2x1", "2x2"], is_exact=True)


@NIGHTLY
@pytest.mark.timeout(3600)
@given(data=st.data())
@settings(STATEFUL, max_examples=200)
def test_any_static_shuffle_at_night(ranks: Ranks, data: st.DataObject) -> None:
    check_calls(ranks, data, SHAPES, is_exact=True)
