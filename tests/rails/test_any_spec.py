"""Any spec with a packed target through kernels of fixed capacity between nodes, interpreted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.testing import Spec, routings
from fuscoc.testing.texts import texts
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.topology import Topology
from tests.node_triton.test_any_spec import (
    STATEFUL,
    Case,
    Ranks,
    check_case,
    compiled,
    has_kernels,
)

TOPOLOGIES = [Topology(2, 1), Topology(3, 1), Topology(2, 2), Topology(4, 1), Topology(3, 2)]


@pytest.fixture
def pool() -> Iterator[Ranks]:
    ranks = Ranks(6)
    yield ranks
    ranks.close()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    topology = draw(st.sampled_from(TOPOLOGIES))

    def crosses(text: str) -> bool:
        return has_kernels(text) and not isinstance(
            choose_triton(compiled(text).shuffle(), topology, 1), str
        )

    text = draw(texts(topology).filter(crosses))
    spec = Spec(text, compiled(text).shuffle())
    routing = draw(routings(spec, topology))
    return Case(spec, routing, draw(st.integers(0, 2)), draw(st.booleans()))


@pytest.mark.nightly
@pytest.mark.timeout(5 * 3600)
@given(case=cases())
@settings(STATEFUL, max_examples=1000)
def test_any_spec_between_nodes(pool: Ranks, case: Case) -> None:
    check_case(pool, case, topology=str(case.routing.topology))
