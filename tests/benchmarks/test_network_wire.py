"""The bound of the network's benchmarks, and what its wires are called."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.network_wire import channels, wire
from fuscoc_runtime.topology import Topology
from tests.benchmarks import network_work
from tests.benchmarks.network_work import MODEL
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool

pool = pool_of(4)


@pytest.mark.parametrize("topology", ["2x2", "4x1"])
@pytest.mark.parametrize("kind", ["uniform", "imbalanced", "cyclic"])
@pytest.mark.parametrize("count", [1, 2])
def test_the_bound_sends_what_must_cross(pool: Pool, topology: str, kind: str, count: int) -> None:
    """Every token once to every other node that has an expert of it, a node's ranks alike."""
    found = pool.run(network_work.raw_wire, 4, topology, kind, count)
    ranks = Topology.parse(topology)
    nodes, m = ranks.num_nodes, ranks.ranks_per_node
    rows = [[0] * nodes for _ in range(nodes)]
    for source, (tokens, _) in enumerate(found):
        for experts in tokens:
            for node in {expert * nodes // MODEL.experts for expert in experts}:
                rows[source // m][node] += 1
    for rank, (_, came) in enumerate(found):
        wanted = {
            node * m + rank % m: -(-rows[node][rank // m] // m) * MODEL.row_bytes
            for node in range(nodes)
            if node != rank // m and rows[node][rank // m]
        }
        assert came == wanted


def test_wires() -> None:
    assert [channels(wire(each)) for each in ("network", "channels=2", "channels=all")] == [
        None, 2, None,
    ]  # fmt: skip
    for each in ("sockets", "channels", "channels=", "channels=0", "channels=x", "network=2"):
        with pytest.raises(argparse.ArgumentTypeError, match=each):
            wire(each)
