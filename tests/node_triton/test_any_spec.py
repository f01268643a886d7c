"""Any spec of the language through the Triton kernels of one node, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fuscoc.testing import Routing, Spec, routings
from fuscoc.testing import specs as any_specs
from fuscoc.testing.points import points_of
from fuscoc.testing.routing import with_sources
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.pool import Pool
from tests.node_triton import given_work

TOPOLOGIES = [Topology(1, num_ranks) for num_ranks in (1, 2, 3)]
STATEFUL = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


class Ranks:
    """Processes for many examples; new ones after a failure, which leaves them out of step."""

    def __init__(self) -> None:
        self._pool = Pool(TOPOLOGIES[-1].num_ranks)

    def run(self, num_ranks: int, *arguments: Any) -> None:
        try:
            self._pool.run(given_work.one_call, num_ranks, *arguments)
        except Exception:
            self.close()
            self._pool = Pool(TOPOLOGIES[-1].num_ranks)
            raise

    def close(self) -> None:
        self._pool.close()


@pytest.fixture
def pool() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Spec, Routing]:
    """A spec that has such kernels, and what the ranks of a node bring to it."""
    topology = draw(st.sampled_from(TOPOLOGIES))
    spec = draw(any_specs(topology))
    assume(spec.shuffle.program.copies_once("rank"))  # others are left to the general kernels
    return spec, draw(routings(spec, topology))


def check(pool: Ranks, spec: Spec, routing: Routing) -> None:
    """Rows and results are those of the reference."""
    ranks = with_sources(spec.shuffle, routing)
    points = points_of(spec.shuffle, routing.topology, ranks)
    expected = expect(spec.shuffle, ranks)
    sizes = [len(each.columns["source"]) // spec.shuffle.program.fanout for each in points]
    options = {"max_sources": max(1, *sizes)}
    if spec.shuffle.program.target.kind == "dense":
        options["capacity"] = max(1, *(len(rows.written) for rows in expected.rows))
    path = str(specs.artifact(spec.text).path)
    pool.run(len(ranks), path, ranks, expected, options)


@given(case=cases())
@settings(STATEFUL, max_examples=25)
def test_any_spec(pool: Ranks, case: tuple[Spec, Routing]) -> None:
    check(pool, *case)


@pytest.mark.nightly
@given(case=cases())
@settings(STATEFUL, max_examples=10_000)
def test_ten_thousand_specs(pool: Ranks, case: tuple[Spec, Routing]) -> None:
    check(pool, *case)
