"""Shuffles whose slots follow from pieces inside a node, along rails between nodes, interpreted:
static ones and those of tables, the mistakes of both, and random layouts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.engine.node.slabs import num_places
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_mistakes, given_work
from tests.node_triton.given_specs import EXAMPLES
from tests.node_triton.test_any_spec import STATEFUL, Ranks, compiled
from tests.node_triton.test_given_slots import LONG_PAGES
from tests.rails import exact_work, rail_work
from tests.specs import EXAMPLES as EXAMPLE_FILES

NAMES = (
    "ulysses", "fft_transpose", "redistribute", "spread", "vit_patches", "vit_patches_nchw",
    "kv_long_pages",
)  # fmt: skip
OF_ANY_RANKS = ("vit_patches", "kv_long_pages")
PATCHES = EXAMPLES["vit_patches"]

pool = pool_of(6)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


DAY = [("2x1", "ulysses"), ("2x1", "vit_patches"), ("2x2", "kv_long_pages")]


@pytest.mark.parametrize(
    ("topology", "name"),
    [
        *DAY,
        *(
            pytest.param(topology, name, marks=pytest.mark.nightly)
            for topology, names in (("2x1", NAMES), ("2x2", NAMES), ("3x2", OF_ANY_RANKS))
            for name in names
            if (topology, name) not in DAY
        ),
    ],
)
def test_examples(pool: Pool, topology: str, name: str) -> None:
    """Calls in a row, of other sizes and tables each; on some ranks there is nothing."""
    small, num_ranks = EXAMPLES[name], Topology.parse(topology).num_ranks
    batches = [(sizes * 2)[:num_ranks] for sizes in small.batches]
    options = {**small.options, "topology": topology}
    pool.run(given_work.epochs, num_ranks, path(small.text), batches, 1, options)


@pytest.mark.parametrize("name", ["redistribute", "vit_patches"])
def test_nobody_waits(pool: Pool, name: str) -> None:
    """Rows that move inside a node, and others between nodes, are those of one shuffle."""
    small, topology = EXAMPLES[name], Topology(2, 1)
    [shuffle] = specs.artifact(small.text).manifest.shuffles
    assert shuffle.node is not None
    assert choose_triton(shuffle, Topology(1, 2), 8) == shuffle.node
    assert choose_triton(shuffle, topology, 8) == shuffle.node.between
    options = {**small.options, "topology": str(topology)}
    waits = pool.run(rail_work.waits, 2, path(small.text), small.batches[0][:2], options)
    assert waits == [[], []]


def test_places_of_long_segments() -> None:
    """As many as there are of 2 MB, not whole tiles of 128; 31 to another node are 64 MiB."""
    shuffle, topology = (
        compiled((EXAMPLE_FILES / "kv_pages.fsc").read_text()).shuffle(),
        Topology(2, 1),
    )
    assert shuffle.node is not None
    assert shuffle.node.between is not None
    assert num_places(shuffle, shuffle.node.between, 15) == 16
    assert choose_triton(shuffle, topology, 30) == shuffle.node.between
    assert "bytes to other nodes" in str(choose_triton(shuffle, topology, 32))


def test_long_segments(pool: Pool) -> None:
    """Those of which a program plans two."""
    small = EXAMPLES["kv_long_pages"]
    text = small.text.replace(
        "page = 4, heads = 8, width = 64", "page = 64, heads = 64, width = 64"
    )
    options = {**small.options, "topology": "2x2"}
    pool.run(given_work.epochs, 4, path(text), [(3, 0, 4, 1), (1, 2, 3, 0)], 1, options)


def test_rounds(pool: Pool) -> None:
    """Rows that travel in several rounds, of which points are told with the first."""
    sizes = [(4, 5), (5, 0)]
    options = {**PATCHES.options, "topology": "2x1"}
    rounds = pool.run(rail_work.in_rounds, 2, path(PATCHES.text), sizes, options)
    assert rounds == [3, 3]


def test_handles_keep_where_segments_lie(pool: Pool) -> None:
    options = {**PATCHES.options, "topology": "2x1"}
    pool.run(given_work.older_handles, 2, path(PATCHES.text), options)


def test_mistakes_of_ragged_sizes(pool: Pool) -> None:
    """As inside a node: the rank whose they are is told, and the calls after them are whole."""
    work = partial(given_mistakes.ragged_mistakes, topology="2x1")
    for rank, said in enumerate(pool.run(work, 2, path(PATCHES.text))):
        excess, *others = said
        assert excess[0].startswith(f"ExcessError: [FSR025] 3 source segments of rank {rank}")
        assert excess[1:] == (3, 4)
        for message, dropped, moved in others:
            assert message.startswith("SizesError: [FSR026]"), message
            assert (dropped, moved) == (0, 0)


def test_mistakes_of_tables(pool: Pool) -> None:
    """A page that is none, a slot that is none, and one that two nodes want: of these one comes,
    and the rank whose the other one is learns of it, which is dropped."""
    pages = [[0, 7, -1, 1], [2, 4, 3]]
    places = [[(1, 3), (0, 0), (0, 1), (1, 16)], [(1, 3), (0, 5), (-1, 0)]]
    work = partial(given_mistakes.wrong_pages, topology="2x1")
    found = pool.run(work, 2, path(LONG_PAGES), pages, places)
    assert [filled for *_, filled in found] == [[5], [3]]
    assert sum(dropped for _, dropped, _ in found) == 3
    assert "[FSR019] 2 points of rank 0" in found[0][0][0]
    said = [each for messages, *_ in found for each in messages]
    assert sum("[FSR024]" in each for each in said) == 1


def test_pages_that_are_given_away_twice(pool: Pool) -> None:
    """One of the two leaves, and the rank whose they are is told."""
    pages = [[0, 2, 0, -1, 4, 2], [1, 2, 3]]
    places = [[(0, 1), (1, 3), (1, 5), (0, 0), (0, 2), (0, 7)], [(0, 9), (1, 0), (0, 3)]]
    work = partial(given_mistakes.shared_pages, topology="2x1")
    found = pool.run(work, 2, path(LONG_PAGES), pages, places)
    assert found[0][0][0].startswith("SourceClashError: [FSR031] rank 0 found 2 segments")
    assert [dropped for _, dropped in found] == [2, 0]
    assert found[1][0] == ["no error"] * 2


@st.composite
def layouts(draw: st.DrawFn, num_ranks: int) -> str:
    """Lines of a matrix of three dimensions, the first of which is cut into blocks of the ranks,
    to one that is cut, in blocks or cyclically, along any, with its dimensions in any order."""
    names = ("a", "b", "c")
    whole = {name: draw(st.integers(1, 3)) for name in names}
    cut = draw(st.sampled_from(names))
    for name in {"a", cut}:
        whole[name] *= num_ranks
    here = {name: str(size) for name, size in whole.items()}
    here["a"] = f"({whole['a']} / ranks)"
    run = draw(st.sampled_from([1, 1, 2]))  # of this many lines that lie apart
    along = draw(st.sampled_from(names))
    width = draw(st.integers(1, 5))
    source_order, target_order = (draw(st.permutations(names)) for _ in range(2))
    dims = [f"{here[name]} * {run if name == along else 1}" for name in source_order]
    at = [
        f"{name}*{run} .. {name}*{run}+{run}" if run > 1 and name == along else name
        for name in source_order
    ]
    places = {"a": f"(rank * {here['a']} + a)", "b": "b", "c": "c"}
    lengths = {name: str(size) for name, size in whole.items()}
    lengths[cut] = part = f"({whole[cut]} / ranks)"
    if draw(st.booleans()):
        rank, places[cut] = f"{places[cut]} / {part}", f"{places[cut]} % {part}"
    else:
        rank, places[cut] = f"{places[cut]} % ranks", f"{places[cut]} / ranks"
    dtype = draw(st.sampled_from(["u8", "bf16", "f32", "f64"]))
    shape = f"{run}, {width}" if run > 1 else f"{width}"
    lines = [
        *(f"index {name} : {here[name]}" for name in names),
        f"segment lines {{ x : {dtype}[{shape}] }}",
        f"layout mine[{', '.join(f's{name}' for name in source_order)}] of {dtype}[{width}] "
        f"dense({', '.join(dims)})",
        f"view parts[a, b, c] = mine[{', '.join(at)}]",
        f"layout theirs[{', '.join(f't{name}' for name in target_order)}] of lines "
        f"dense({', '.join(lengths[name] for name in target_order)})",
        f"dispatch parts[a, b, c] -> theirs[{', '.join(places[name] for name in target_order)}] "
        f"on {rank}",
        "combine reverse",
    ]
    return "shuffle cut {\n  " + "\n  ".join(lines) + "\n}\n"


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    found = Ranks(6)
    yield found
    found.close()


def check_layout(
    ranks: Ranks, data: st.DataObject, topologies: list[str], is_exact: bool = False
) -> None:
    topology = Topology.parse(data.draw(st.sampled_from(topologies)))
    text = data.draw(layouts(topology.num_ranks))
    shuffle = compiled(text).shuffle()
    assert shuffle.node is not None
    assert shuffle.node.pieces is not None
    given = generate(shuffle, topology, 1, data.draw(st.integers(0, 9)))
    expected = expect(shuffle, given)
    most = len(expected.rows[0].written)  # as on every rank
    options: dict[str, Any] = {"topology": str(topology)}
    arguments = compiled(text), given, expected
    if is_exact:
        found = ranks.run(topology.num_ranks, *arguments, options, exact_work.open_shuffle)
    else:
        found = ranks.run(topology.num_ranks, *arguments, {"max_sources": most, **options})
    assert not found


@given(data=st.data())
@settings(STATEFUL, max_examples=5)
def test_any_layout(ranks: Ranks, data: st.DataObject) -> None:
    check_layout(ranks, data, ["2x1", "2x2"])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@given(data=st.data())
@settings(STATEFUL, max_examples=200)
def test_any_layout_at_night(ranks: Ranks, data: st.DataObject) -> None:
    check_layout(ranks, data, ["2x1", "3x1", "2x2", "4x1", "3x2"])
