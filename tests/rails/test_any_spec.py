"""Any spec through the kernels that go between nodes, interpreted: several calls of several
routings, each against the reference.

Two thousand at night on 2x2, 4x1 and 3x2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.codegen import triton_tiles
from fuscoc.testing import Routing, Spec, routings
from fuscoc.testing.routing import with_sources
from fuscoc.testing.texts import texts
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.face.choice import Gpu, choose_exact, choose_triton
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.node_triton.test_any_spec import STATEFUL, Ranks, Room, compiled, has_kernels, room_for
from tests.rails import any_work, exact_work, rail_work

EXAMPLES = {"2x2": 334, "4x1": 334, "3x2": 334, "2x1": 100, "3x1": 100}
"""At night, of fixed capacity and as many of exact sizes."""
GPU = Gpu((9, 0), 227 << 10)
SMALL: dict[str, Any] = {"PLAN_POINTS": 8, "SORTED_ROWS": 4, "COUNTED_POINTS": 8}
"""The planner's tiles in three examples of four. Slabs have places for whole tiles, and programs go
through all of them: with tiles as they are chosen most hold nothing of batches as small as these.
Where tiles are small, too, several programs plan what comes from a node, as of large batches."""


class Sizes(NamedTuple):
    """How large calls are: what chooses their kernels, and what opens a shuffle."""

    choose: Callable[[ShuffleSpec, Topology], NodeSpec | str]
    opens: Callable[..., Shuffle]
    are_fixed: bool


SIZES = {
    "fixed": Sizes(
        lambda shuffle, topology: choose_triton(shuffle, topology, 1),
        rail_work.open_shuffle,
        are_fixed=True,
    ),
    "exact": Sizes(
        lambda shuffle, topology: choose_exact(shuffle, topology, GPU),
        exact_work.open_shuffle,
        are_fixed=False,
    ),
}


@dataclass(frozen=True)
class Calls(Room):
    """And what the ranks bring to it, call by call; whether rows travel in rounds, and whether
    weights, if there are some, come with combine. ``artifact``: with tiles as they are chosen, or
    `SMALL` ones."""

    artifact: Artifact = field(repr=False)
    has_small_tiles: bool
    batches: tuple[Routing, ...]
    in_rounds: bool
    is_late: bool


@pytest.fixture
def pool() -> Iterator[Ranks]:
    ranks = Ranks(6)
    yield ranks
    ranks.close()


@lru_cache(maxsize=100)
def compiled_small(text: str) -> Artifact:
    with mock.patch.multiple(triton_tiles, **SMALL):
        return compiled.__wrapped__(text)


@st.composite
def calls(draw: st.DrawFn, topology: Topology, sizes: Sizes) -> Calls:
    is_small, into = draw(st.integers(0, 3)) > 0, draw(st.booleans())
    make = compiled_small if is_small else compiled

    def crosses(text: str) -> bool:
        found = has_kernels(text) and sizes.choose(make(text).shuffle(), topology)
        return isinstance(found, NodeSpec)

    text = draw(texts(topology, into=into).filter(crosses))
    artifact = make(text)
    spec = Spec(text, artifact.shuffle())
    batches = draw(st.lists(routings(spec, topology), min_size=1, max_size=2))
    spare, is_tight, in_rounds, is_late = (
        draw(st.integers(0, 2)),
        *(draw(st.booleans()) for _ in range(3)),
    )
    is_late &= not sizes.are_fixed
    tiled = artifact, is_small
    return Calls(spec, spare, is_tight, *tiled, tuple(batches), in_rounds, is_late)


def check_calls(pool: Ranks, topology: Topology, sizes: Sizes, case: Calls) -> None:
    shuffle = case.spec.shuffle
    brought = [with_sources(shuffle, each) for each in case.batches]
    *batches, again = (
        (ranks, expect(shuffle, ranks)) for ranks in (*brought, any_work.other_rows(brought[-1]))
    )
    options: dict[str, Any] = {"topology": str(topology)}
    if sizes.are_fixed:
        options |= room_for(case, topology, batches)
    ways = sizes.opens, case.in_rounds, case.is_late
    given = case.artifact, batches, again, options, *ways
    wrong = pool.run(topology.num_ranks, *given, work=any_work.calls)
    assert not wrong, f"{options}: {wrong}"


def check_any(pool: Ranks, topology: str, sizes: str, num_examples: int) -> None:
    nodes, chosen = Topology.parse(topology), SIZES[sizes]

    @given(calls(nodes, chosen))
    @settings(STATEFUL, max_examples=num_examples)
    def check(case: Calls) -> None:
        check_calls(pool, nodes, chosen, case)

    check()


@pytest.mark.timeout(900)  # ranks that hang do so for a minute in every attempt to shrink
@pytest.mark.parametrize(("topology", "sizes"), [("2x2", "fixed"), ("4x1", "exact")])
def test_any_spec_between_nodes(pool: Ranks, topology: str, sizes: str) -> None:
    check_any(pool, topology, sizes, 2)


@pytest.mark.nightly
@pytest.mark.timeout(5 * 3600)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("topology", EXAMPLES)
def test_two_thousand_specs_between_nodes(pool: Ranks, topology: str, sizes: str) -> None:
    check_any(pool, topology, sizes, EXAMPLES[topology])
