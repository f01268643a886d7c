"""Shuffles whose slots follow from pieces inside a node, along rails between nodes, interpreted:
static ones and those of tables, and the mistakes of both. `test_packed.py` has random layouts."""

from __future__ import annotations

from functools import partial

import pytest

from fuscoc_runtime.engine.node.slabs import num_places
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_mistakes, given_work
from tests.node_triton.given_specs import EXAMPLES
from tests.node_triton.test_any_spec import compiled
from tests.node_triton.test_given_slots import LONG_PAGES
from tests.rails import rail_work
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


DAY = [("2x1", "ulysses"), ("2x1", "vit_patches")]
"""`test_long_segments` has pages on two nodes of two."""


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
    sizes = [(3, 0, 2, 1), (0, 0, 0, 0), (1, 2, 0, 0)]
    pool.run(given_work.epochs, 4, path(text), sizes, 1, options)


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
