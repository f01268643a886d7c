"""Any spec through the kernels that go between nodes, interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.testing import Spec, routings
from fuscoc.testing.routing import with_sources
from fuscoc.testing.texts import texts
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.face.choice import Gpu, choose_exact, choose_triton
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.node_triton.test_any_spec import (
    STATEFUL,
    Case,
    Ranks,
    check_case,
    compiled,
    has_kernels,
)
from tests.rails import exact_work

TOPOLOGIES = [Topology(2, 1), Topology(3, 1), Topology(2, 2), Topology(4, 1), Topology(3, 2)]
GPU = Gpu((9, 0), 227 << 10)


@pytest.fixture
def pool() -> Iterator[Ranks]:
    ranks = Ranks(6)
    yield ranks
    ranks.close()


def fixed(shuffle: ShuffleSpec, topology: Topology) -> bool:
    """Whether there are kernels of fixed capacity."""
    return not isinstance(choose_triton(shuffle, topology, 1), str)


def exact(shuffle: ShuffleSpec, topology: Topology) -> bool:
    """Whether exact sizes have kernels, on GPUs."""
    return not isinstance(choose_exact(shuffle, topology, GPU), str)


@st.composite
def cases(draw: st.DrawFn, can: Callable[[ShuffleSpec, Topology], bool]) -> Case:
    topology = draw(st.sampled_from(TOPOLOGIES))

    def crosses(text: str) -> bool:
        return has_kernels(text) and can(compiled(text).shuffle(), topology)

    into = draw(st.booleans())
    text = draw(texts(topology, into=into).filter(crosses))
    spec = Spec(text, compiled(text).shuffle())
    routing = draw(routings(spec, topology))
    return Case(spec, routing, draw(st.integers(0, 2)), draw(st.booleans()))


@pytest.mark.nightly
@pytest.mark.timeout(5 * 3600)
@given(case=cases(fixed))
@settings(STATEFUL, max_examples=1000)
def test_any_spec_between_nodes(pool: Ranks, case: Case) -> None:
    check_case(pool, case, topology=str(case.routing.topology))


@pytest.mark.nightly
@pytest.mark.timeout(5 * 3600)
@given(case=cases(exact))
@settings(STATEFUL, max_examples=500)
def test_any_spec_of_exact_sizes(pool: Ranks, case: Case) -> None:
    shuffle, topology = case.spec.shuffle, case.routing.topology
    ranks = with_sources(shuffle, case.routing)
    expected, options = expect(shuffle, ranks), {"topology": str(topology)}
    given = compiled(case.spec.text), ranks, expected, options, exact_work.open_shuffle
    assert not pool.run(len(ranks), *given)
