"""Any spec of the language through the Triton kernels of one node, interpreted.

A spec costs what processors compute for it, half of it in the compiler, half in the interpreter. So
a text without kernels is passed over before it is lowered; any other is lowered once, for its
routing and for the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuscoc
from fuscoc.capabilities import TRITON_NODE, find_fault
from fuscoc.lang.check import check
from fuscoc.source import as_source
from fuscoc.testing import Routing, Spec, routings
from fuscoc.testing.points import points_of
from fuscoc.testing.routing import with_sources
from fuscoc.testing.texts import texts
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import Expected, expect
from fuscoc_runtime.engine.arguments import is_ragged
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.reference import RankData, on_their_ranks
from fuscoc_runtime.scalar import Scope, evaluate
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine.pool import Pool
from tests.engine.test_inner_subscripts import BUFFERS, PACKING
from tests.node_triton import given_work
from tests.specs import EXAMPLES

TOPOLOGIES = [Topology(1, num_ranks) for num_ranks in (1, 2, 3)]
STATEFUL = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
MOST_CALLS = 500
"""Of a process, which keeps the kernels of all artifacts that it has opened."""


@dataclass(frozen=True)
class Room:
    """A spec, and the room that ranks leave in calls of it.

    ``spare``: segments and slots that there is room for and nobody needs. ``is_tight``: the
    capacity is given even where the kernels know one.
    """

    spec: Spec
    spare: int
    is_tight: bool


@dataclass(frozen=True)
class Case(Room):
    """And what the ranks of a node bring to it."""

    routing: Routing


class Ranks:
    """Processes for many examples; new ones after a failure that leaves them out of step."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool, self._calls = Pool(most), 0

    def run(
        self, num_ranks: int, *arguments: Any, work: Callable[..., list[str]] = given_work.one_call
    ) -> list[str]:
        """What is wrong on any rank, after which all are in step."""
        if self._calls == MOST_CALLS:
            self._renew()
        self._calls += 1
        try:
            found = self._pool.run(work, num_ranks, *arguments)
        except BaseException:  # a test that is told to stop leaves ranks at work, too
            self._renew()
            raise
        return [f"rank {rank}: {each}" for rank, wrong in enumerate(found) for each in wrong]

    def close(self) -> None:
        self._pool.close()

    def _renew(self) -> None:
        self.close()
        self._pool, self._calls = Pool(self._most), 0


@pytest.fixture
def pool() -> Iterator[Ranks]:
    ranks = Ranks(TOPOLOGIES[-1].num_ranks)
    yield ranks
    ranks.close()


def has_kernels(text: str) -> bool:
    """Whether there are such kernels for a spec; others are left to the general ones."""
    [shuffle] = check(as_source(text))
    return find_fault(shuffle, TRITON_NODE) is None


@lru_cache(maxsize=100)  # examples repeat texts, and ten thousand are many
def compiled(text: str) -> Artifact:
    """The artifact, read; ranks are given it as it is, so no files need to stay."""
    with TemporaryDirectory(prefix="fuscoc-tests-") as folder:
        return load_artifact(fuscoc.compile(text, Path(folder) / "artifact"))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    topology = draw(st.sampled_from(TOPOLOGIES))
    into = draw(st.booleans())
    text = draw(texts(topology, into=into).filter(has_kernels))
    spec = Spec(text, compiled(text).shuffle())
    routing = draw(routings(spec, topology))
    return Case(spec, draw(st.integers(0, 2)), draw(st.booleans()), routing)


def check_case(pool: Ranks, case: Case) -> None:
    """Rows and results are those of the reference."""
    ranks = with_sources(case.spec.shuffle, case.routing)
    expected = expect(case.spec.shuffle, ranks)
    options = room_for(case, case.routing.topology, [(ranks, expected)])
    wrong = pool.run(len(ranks), compiled(case.spec.text), ranks, expected, options)
    assert not wrong, f"{options}: {wrong}"


def room_for(
    case: Room, topology: Topology, batches: Sequence[tuple[Sequence[RankData], Expected]]
) -> dict[str, int]:
    """Options by which there is room for each of these batches, with what a case has to spare."""
    shuffle = case.spec.shuffle
    fanout = shuffle.program.num_points_each(topology.num_ranks)
    outermost = shuffle.declared.domain[0].extent
    num_sources, num_slots = 1 - case.spare, 1 - case.spare
    for ranks, expected in batches:
        points = points_of(shuffle, topology, ranks)
        num_sources = max(num_sources, *(len(each.columns["source"]) // fanout for each in points))
        if is_ragged(shuffle.declared.source.dims):  # as many of these fit, though all are empty
            here = [Scope(data.extents, data.inputs) for data in on_their_ranks(ranks)]
            num_sources = max(num_sources, *(evaluate(outermost, scope) for scope in here))
        num_slots = max(num_slots, *(len(rows.written) for rows in expected.rows))
    options = {"max_sources": num_sources + case.spare}
    if shuffle.declared.target.kind == "dense" or case.is_tight:
        options["capacity"] = num_slots + case.spare
    return options


def test_replicated_keys(pool: Ranks) -> None:
    """The copy of an expert that a table names has its tokens, of another table each time."""
    text = (EXAMPLES / "moe_replicated.fsc").read_text(encoding="utf-8")
    for constants, small in (
        ("hidden = 7168, experts = 256, topk = 8", "hidden = 16, experts = 5, topk = 2"),
        ("reps = 4, slots = 288", "reps = 2, slots = 9"),
    ):
        assert constants in text
        text = text.replace(constants, small)
    shuffle = compiled(text).shuffle()
    for seed in range(2):
        ranks = generate(shuffle, Topology(1, 3), 7, seed)
        wrong = pool.run(3, compiled(text), ranks, expect(shuffle, ranks), {"max_sources": 9})
        assert not wrong


FANNED = """shuffle fanned {
  index t : rows
  index k : 3
  segment item { a : c128[2] }
  layout table[t] of item
  layout whole[u, d] of c128 dense(length, 7)
  index u : length
  index v : 3
  view runs[u, v] = whole[u, v*2+1 .. v*2+3]
  route to(t, k) -> (rank, u, v) = input places : int64[3]
  dispatch table[t] -> runs[to(t, k).u, to(t, k).v] on to(t, k).rank
}
"""


def test_as_many_entries_as_points(pool: Ranks) -> None:
    """Inputs say where each of a segment's three points goes, and there is room for no more."""
    shuffle = compiled(FANNED).shuffle()
    assert shuffle.node is not None
    assert shuffle.node.pieces is not None
    ranks = generate(shuffle, Topology(1, 2), 7, 1)
    expected = expect(shuffle, ranks)
    points = points_of(shuffle, Topology(1, 2), ranks)
    most = max(len(each.columns["source"]) for each in points) // shuffle.program.fanout
    slots = max(len(rows.written) for rows in expected.rows)
    options = {"max_sources": most, "capacity": slots}
    assert not pool.run(2, compiled(FANNED), ranks, expected, options)


@pytest.mark.parametrize("text", [BUFFERS, PACKING], ids=["buffers", "packing"])
def test_inner_subscripts(pool: Ranks, text: str) -> None:
    """Inputs say where in a line a segment goes."""
    shuffle = compiled(text).shuffle()
    for seed in range(2):
        ranks = generate(shuffle, Topology(1, 2), 5, seed)
        wrong = pool.run(2, compiled(text), ranks, expect(shuffle, ranks), {"max_sources": 32})
        assert not wrong


@pytest.mark.timeout(900)  # ranks that hang do so for a minute in every attempt to shrink
@given(case=cases())
@settings(STATEFUL, max_examples=at_night(30))
def test_any_spec(pool: Ranks, case: Case) -> None:
    check_case(pool, case)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(40))
@pytest.mark.timeout(3600)
@given(case=cases())
@settings(STATEFUL, max_examples=250)
def test_ten_thousand_specs(pool: Ranks, part: int, case: Case) -> None:
    check_case(pool, case)
