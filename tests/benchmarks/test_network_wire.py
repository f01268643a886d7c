"""The bound of the network's benchmarks, and what its wires are called."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import network_wire
from benchmarks.network_wire import channels, check_nic, communicators, described, wire
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
    assert [channels(wire(each)) for each in ("nic", "channels=2", "all")] == [None, 2, None]
    for each in ("network", "channels", "channels=", "channels=0", "channels=x", "nic=2", "all=1"):
        with pytest.raises(argparse.ArgumentTypeError, match=each):
            wire(each)


def test_nics_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks would share the loopback device, at no speed in particular."""
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("NIC_GB_PER_SECOND", "3.5")
    with pytest.raises(SystemExit, match=r"LD_PRELOAD=nic\.so"):
        check_nic("nic")
    check_nic("all")
    monkeypatch.setenv("LD_PRELOAD", "build/network/nic.so")
    check_nic("nic")
    assert described("nic") == "NICs of 3.5 GB/s, NCCL's sockets"
    assert described("channels=4") == "NVLink, 4 channels of a message"
    monkeypatch.delenv("NIC_GB_PER_SECOND")
    with pytest.raises(SystemExit, match="NIC_GB_PER_SECOND"):
        check_nic("nic")


def test_communicators_share_the_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of each as give a message the wire's channels in all."""
    limits: list[tuple[int, int | None]] = []

    def communicator(count: int, limit: int | None) -> None:
        limits.append((count, limit))

    monkeypatch.setattr(network_wire, "_communicator", communicator)
    for text, sizes in {"channels=1": [1], "channels=2": [1, 2], "all": [1, 2, 4]}.items():
        assert [len(each) for each in communicators([1, 2, 4], text)] == sizes
    assert limits == [(2, 2)] * 2 + [(2, None)] * 2 + [(4, None)] * 4
