"""Ranks, nodes and forwarders."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.comm import group, nodes
from fuscoc_runtime.errors import TopologyError
from fuscoc_runtime.topology import Topology

topologies = st.builds(Topology, st.integers(1, 6), st.integers(1, 6))


def test_numbering() -> None:
    topology = Topology(3, 4)
    assert topology.num_ranks == 12
    assert [topology.node(rank) for rank in (0, 3, 4, 11)] == [0, 0, 1, 2]
    assert [topology.local_rank(rank) for rank in (0, 3, 4, 11)] == [0, 3, 0, 3]
    assert list(topology.node_ranks(1)) == [4, 5, 6, 7]
    assert str(topology) == "3x4"


@given(topologies)
def test_parse_and_discovery_round_trip(topology: Topology) -> None:
    assert Topology.parse(str(topology)) == topology
    hosts = [f"host{topology.node(rank)}" for rank in range(topology.num_ranks)]
    assert Topology.from_hosts(hosts) == topology


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "2x",
        "x2",
        "2 x 2",
        "0x4",
        "2x0",
        "-1x2",
        "2x2x2",
        "257x256",
        "9999999999x9999999999",
    ],
)
def test_bad_text(text: str) -> None:
    with pytest.raises(TopologyError):
        Topology.parse(text)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([], "no ranks"),
        (["a", "b", "a", "b"], "rank 1 is on host 'b'"),
        (["a", "a", "b"], "host 'b' has 1 ranks where 'a' has 2"),
        (["a", "b", "b"], "rank 2 is on host 'b'"),
        (["a", "a", "b", "a"], "rank 2"),
    ],
)
def test_hosts_that_make_no_topology(hosts: list[str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology.from_hosts(hosts)


def test_a_node_is_a_host_or_what_nccl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    assert nodes.host_id() == socket.gethostname()
    monkeypatch.setenv("NCCL_HOSTID", "node-3")
    assert nodes.host_id() == "node-3"


@pytest.mark.parametrize("topology", [Topology(1, 1), Topology(2, 2)])
def test_a_topology_is_for_all_ranks_of_the_group(
    monkeypatch: pytest.MonkeyPatch, topology: Topology
) -> None:
    monkeypatch.setattr(group.dist, "get_rank", lambda _: 0)
    monkeypatch.setattr(group.dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(group, "_greet", lambda mine, *_: [mine, mine])
    with pytest.raises(TopologyError, match=f"the topology {topology} is not for 2 ranks"):
        group.find_members(cast(Any, "both"), topology, torch.device("cpu"), ())
