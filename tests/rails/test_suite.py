"""What `tests/node_triton` asks of the ranks of one node, of those of several: the same shuffles
and calls, on ranks that are nodes and on nodes of two ranks."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import rank_work
from tests.node_triton.test_any_rows import BACK, CASTS, COPIED, MANY, WEIGHT, rows
from tests.node_triton.test_node_triton import COMPACT, SMALL, SPECS

pytestmark = pytest.mark.nightly  # minutes: four ranks, interpreted

MOST = rank_work.MAX_SOURCES
TOPOLOGIES = ("2x1", "2x2")
GROUPS = {"any": SPECS, "casts": CASTS, "back": BACK, "copied": COPIED, "many": MANY}
TEXTS = {
    f"{group}: {name}": text for group, texts in GROUPS.items() for name, text in texts.items()
}
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


pool = pool_of(4)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def num_ranks(topology: str) -> int:
    return Topology.parse(topology).num_ranks


@every_topology
@pytest.mark.parametrize("name", TEXTS)
def test_every_kind_of_shuffle(pool: Pool, name: str, topology: str) -> None:
    """Uneven ranks, ranks without segments, and as many as there is room for."""
    sizes = [(5, 0, 3, 1), (0, 0, 0, 0), (2, MOST, 0, 4)]
    sizes = [each[: num_ranks(topology)] for each in sizes]
    work = partial(rank_work.epochs, topology=topology)
    pool.run(work, num_ranks(topology), path(TEXTS[name]), sizes, 1)


@every_topology
@pytest.mark.parametrize("text", [SMALL, COMPACT], ids=["expanded", "compact"])
@given(data=st.data(), seed=st.integers(0, 1000))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_epochs(pool: Pool, topology: str, text: str, data: st.DataObject, seed: int) -> None:
    """Any sizes, drops and repeated keys, batch after batch in the same memory."""
    sizes = st.tuples(*[st.integers(0, MOST)] * num_ranks(topology))
    batches = data.draw(st.lists(sizes, min_size=1, max_size=3))
    work = partial(rank_work.epochs, topology=topology)
    pool.run(work, num_ranks(topology), path(text), batches, seed)


@every_topology
def test_gradients_of_several_fields(pool: Pool, topology: str) -> None:
    text = rows(
        "x : f32[24], y : f32[5]",
        back="combine reverse reduce sum(w)",
        fan=3,
        weight=WEIGHT.format("f32"),
    )
    work = partial(rank_work.gradients_of_fields, topology=topology)
    pool.run(work, num_ranks(topology), path(text))


@every_topology
def test_a_rank_that_is_late(pool: Pool, topology: str) -> None:
    pool.run(partial(rank_work.one_is_late, topology=topology), num_ranks(topology), path(SMALL))
