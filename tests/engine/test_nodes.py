"""Which ranks are a node, from what they say when they meet."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from fuscoc_runtime.comm import group
from fuscoc_runtime.comm.fabric import Fabric
from fuscoc_runtime.comm.greeting import Greeting
from fuscoc_runtime.comm.liveness import ProcessId
from fuscoc_runtime.comm.nodes import Nodes, Place, check_memory, find_nodes
from fuscoc_runtime.errors import TopologyError
from fuscoc_runtime.room import MOST
from fuscoc_runtime.topology import Topology

RACK, OTHER = Fabric("aa", 1), Fabric("aa", 2)
NONE = "there is no libnvidia-ml.so.1"


def places(*said: tuple[str, Fabric | str], told: Sequence[int] = ()) -> list[Place]:
    return [Place(host, rank in told, fabric) for rank, (host, fabric) in enumerate(said)]


def alike(keys: Sequence[Hashable]) -> tuple[int, int] | None:
    """Runs of equal keys, if they are equally long and none comes twice."""
    sets = [{rank for rank, each in enumerate(keys) if each == key} for key in dict.fromkeys(keys)]
    size = len(sets[0])
    wanted = [set(range(first, first + size)) for first in range(0, len(keys), size)]
    return (len(sets), size) if sets == wanted else None


@given(st.data())
def test_domains_or_hosts(data: st.DataObject) -> None:
    """Against the rule in words: domains, if all ranks have one and they are small equal runs."""
    num_ranks, most = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))

    def runs(keys: Sequence[Any]) -> list[Any]:
        size = data.draw(
            st.sampled_from([n for n in range(1, num_ranks + 1) if num_ranks % n == 0])
        )
        chosen = [keys[rank // size % len(keys)] for rank in range(num_ranks)]
        for rank in data.draw(st.lists(st.integers(0, num_ranks - 1), max_size=1)):
            chosen[rank] = data.draw(st.sampled_from(keys))
        return chosen

    hosts = runs([f"host-{n}" for n in range(12)])
    fabrics = runs([Fabric(f"{n // 3:x}", n % 3) for n in range(12)])
    for rank in data.draw(st.lists(st.integers(0, num_ranks - 1), max_size=1)):
        fabrics[rank] = NONE
    told = data.draw(st.lists(st.integers(0, num_ranks - 1), max_size=1))
    ranks = places(*zip(hosts, fabrics, strict=True), told=told)

    expected = None if told or NONE in fabrics else alike(fabrics)
    if expected is not None and expected[1] > most:
        expected = None
    by_domain = expected is not None
    expected = expected or alike(hosts)
    if expected is None:
        with pytest.raises(TopologyError, match="ranks"):
            find_nodes(ranks, most)
        return
    found = find_nodes(ranks, most)
    assert found.topology == Topology(*expected)
    assert found.how.startswith("by NVLink domains" if by_domain else "by hosts: ")
    has_domain = any(isinstance(each, Fabric) for each in fabrics)
    assert found.has_unused == (has_domain and not by_domain and not told and expected[0] > 1)


def test_domains_are_as_large_as_kernels_have_room_for() -> None:
    rack = [(f"host-{rank // 4}", RACK) for rank in range(2 * MOST)]
    assert find_nodes(places(*rack[:72])) == Nodes(Topology(1, 72), "by NVLink domains")
    found = find_nodes(places(*rack))
    assert found == Nodes(
        Topology(MOST // 2, 4),
        f"by hosts: an NVLink domain has {2 * MOST} ranks, and kernels of a fixed capacity "
        f"have room for {MOST}",
        has_unused=True,
    )


@pytest.mark.parametrize(
    ("said", "told", "how"),
    [
        ([("a", RACK), ("a", RACK), ("b", RACK), ("b", NONE)], [], f"of rank 3, {NONE}"),
        ([("a", RACK), ("a", RACK), ("b", RACK), ("b", RACK)], [2], "rank 2 has NCCL_HOSTID"),
        ([("a", RACK), ("a", OTHER), ("b", RACK), ("b", OTHER)], [], "domain by domain"),
    ],
)
def test_why_hosts_decide(said: list[Any], told: list[int], how: str) -> None:
    found = find_nodes(places(*said, told=told))
    assert found.topology == Topology(2, 2)
    assert how in found.how
    assert found.has_unused == (not told)


def process(boot: int, namespace: int = 0, host: str = "host") -> ProcessId:
    return ProcessId(f"{host} boot-{boot} pid:[{namespace}]", 7, "12")


UNKNOWN = ProcessId("host", 7, "12")


@pytest.mark.parametrize(
    ("topology", "fabrics", "processes", "is_gpu", "why"),
    [
        # On one host, whatever it is called.
        ("1x2", (NONE, NONE), (process(1), process(1, host="other")), True, None),
        ("1x2", (NONE, NONE), (process(1), process(1, host="other")), False, None),
        # In containers of one host, where files of GPU memory are passed by sockets.
        ("1x2", (NONE, NONE), (process(1, 1), process(1, 2)), True, None),
        ("1x2", (NONE, NONE), (process(1, 1), process(1, 2)), False, "they compute on CPUs"),
        # On two hosts.
        ("1x2", (RACK, RACK), (process(1), process(2)), True, None),
        ("1x2", (RACK, RACK), (process(1), process(2)), False, "they compute on CPUs"),
        ("1x2", (RACK, OTHER), (process(1), process(2)), True, "clique 1 of cluster aa is not"),
        ("1x2", (RACK, NONE), (process(1), process(2)), True, NONE),
        ("2x1", (RACK, NONE), (process(1), process(2)), True, None),
        # Nobody knows.
        ("1x2", (NONE, NONE), (process(1), UNKNOWN), True, None),
        ("1x2", (NONE, NONE), (UNKNOWN, UNKNOWN), False, None),
    ],
)
def test_ranks_of_a_node_share_memory(
    topology: str,
    fabrics: tuple[Fabric | str, ...],
    processes: tuple[ProcessId, ...],
    is_gpu: bool,
    why: str | None,
) -> None:
    ranks = places(*(("host", each) for each in fabrics))
    if why is None:
        check_memory(Topology.parse(topology), ranks, processes, is_gpu)
        return
    with pytest.raises(TopologyError, match="the ranks 0 and 1 are one node") as refused:
        check_memory(Topology.parse(topology), ranks, processes, is_gpu)
    assert why in str(refused.value)


def opened(
    monkeypatch: pytest.MonkeyPatch, ranks: list[Place], chosen: Sequence[Topology | None]
) -> group.Membership:
    """This is rank 0; each rank is on a host of its own."""
    greetings = [
        Greeting(place, process(rank), "token", topology, ())
        for rank, (place, topology) in enumerate(zip(ranks, chosen, strict=True))
    ]
    monkeypatch.setattr(group.dist, "get_rank", lambda _: 0)
    monkeypatch.setattr(group.dist, "get_world_size", lambda _: len(ranks))
    monkeypatch.setattr(group, "_greet", lambda *_: greetings)
    monkeypatch.setattr(group, "_get_default_store", HashStore)
    return group.find_members(cast(Any, set()), chosen[0], torch.device("cuda", 0), ())


def test_opening(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What a user has named wins; else domains, or hosts where not all ranks have one."""
    monkeypatch.setattr(group, "this_place", lambda device: Place("a", False, RACK))
    caplog.set_level(logging.INFO, "fuscoc")
    rack = places(("a", RACK), ("b", RACK))
    given = opened(monkeypatch, rack, [Topology(2, 1)] * 2)
    assert (given.topology, given.nodes) == (Topology(2, 1), "as given")
    found = opened(monkeypatch, rack, [None, None])
    assert (found.topology, found.nodes) == (Topology(1, 2), "by NVLink domains")
    assert not found.is_one_host
    assert opened(monkeypatch, rack, [None, Topology(1, 2)]).topology == Topology(1, 2)
    with pytest.raises(TopologyError, match="rank 1 has the topology 2x1 where rank 0 has 1x2"):
        opened(monkeypatch, rack, [None, Topology(2, 1)])
    assert not [each for each in caplog.records if each.levelno > logging.INFO]
    apart = opened(monkeypatch, places(("a", RACK), ("b", NONE)), [None, None])
    assert (apart.topology, apart.nodes) == (Topology(2, 1), f"by hosts: of rank 1, {NONE}")
    [warned] = [each for each in caplog.records if each.levelno > logging.INFO]
    assert warned.getMessage() == f"2x1 nodes and ranks, by hosts: of rank 1, {NONE}"
    with pytest.raises(TopologyError, match="cannot share memory"):
        opened(monkeypatch, places(("a", RACK), ("b", NONE)), [Topology(1, 2)] * 2)
