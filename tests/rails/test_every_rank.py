"""Segments that go to every rank, between nodes, interpreted, against the reference: rows by the
spec's slots and by an input's, and rows to keys. `test_packed.py` has any sizes of the former."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.topology import Topology
from tests.node_triton.test_any_spec import Ranks, compiled
from tests.rails import exact_work, rail_work
from tests.rails.static_specs import EVERY_RANK, everywhere

GRAPH = """shuffle graph {
  index t : rows   index p : ranks   index s : length
  segment row { x : f32[3] }
  layout mine[t] of row
  layout theirs[s] of row dense(length)
  route to(t, p) -> slot = input slots : int64
  weight w(t, p) : f32 = input weights
  dispatch mine[t] -> theirs[to(t, p)] on p
  combine reverse reduce sum(w)
}
"""
KEYS = """shuffle keys {
  index t : rows   index k : 2   index p : ranks   index e : 12
  segment row { x : bf16[5], y : i32 }
  layout mine[t] of row
  layout by_key[e, s] of row packed(s) align 4
  place e on rank by block
  route to(t, k, p) -> e = input keys : int64
  dispatch mine[t] -> by_key[to(t, k, p), *]
}
"""
SPECS = {
    **{kind: everywhere(kind, 11, 2, "f32", 5) for kind in EVERY_RANK},
    "graph": GRAPH,
    "keys": KEYS,
}
WORK: dict[str, Any] = {"fixed": rail_work, "exact": exact_work}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    found = Ranks(6)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("name", "topology", "sizes"),
    [
        # The suite runs every spec on the first two, one of fixed and one of exact sizes, in turn.
        pytest.param(
            name, topology, sizes, marks=[] if (number + turn) % 2 == at else [pytest.mark.nightly]
        )
        for number, name in enumerate(SPECS)
        for at, topology in enumerate(("2x2", "4x1", "2x1", "3x2"))
        for turn, sizes in enumerate(WORK)
    ],
)
def test_calls(ranks: Ranks, name: str, topology: str, sizes: str) -> None:
    """A dispatch and a combine, the latter where there is one, in one round and in several."""
    artifact, where = compiled(SPECS[name]), Topology.parse(topology)
    brought = generate(artifact.shuffle(), where, 4, 1)
    expected = expect(artifact.shuffle(), brought)
    options: dict[str, Any] = {"topology": topology}
    if sizes == "fixed":
        slots = max(len(rows.written) for rows in expected.rows)
        options |= {"max_sources": 12, "capacity": slots}
    for opens in (WORK[sizes].open_shuffle, WORK[sizes].open_in_rounds):
        given = artifact, brought, expected, options, opens
        assert not ranks.run(where.num_ranks, *given)
