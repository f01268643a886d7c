"""Which ranks are a node: those whose GPUs are one NVLink domain, or those of one host.

All ranks decide alike, from what each has said of its place when they met.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuscoc_runtime.comm.fabric import Fabric, fabric_of
from fuscoc_runtime.comm.liveness import ProcessId
from fuscoc_runtime.errors import TopologyError
from fuscoc_runtime.room import MOST
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True)
class Place:
    """Where a rank is, as it says itself.

    Attributes:
        host: its host id.
        is_told: whether that is what its user calls it, by NCCL_HOSTID.
        fabric: the NVLink domain of its GPU, or why that does not count.
    """

    host: str
    is_told: bool
    fabric: Fabric | str

    def to_json(self) -> list[Any]:
        """What ``from_json`` reads."""
        fabric = self.fabric
        said = fabric if isinstance(fabric, str) else [fabric.cluster, fabric.clique]
        return [self.host, self.is_told, said]

    @classmethod
    def from_json(cls, said: Any) -> Place:
        """Raises TypeError or ValueError where it is none."""
        host, is_told, fabric = said
        return cls(host, is_told, fabric if isinstance(fabric, str) else Fabric(*fabric))


@dataclass(frozen=True)
class Nodes:
    """The nodes that were found.

    Attributes:
        how: by what, in words.
        has_unused: whether they would be larger, had not something been in the way that ``how``
            tells.
    """

    topology: Topology
    how: str
    has_unused: bool = False


def host_id() -> str:
    """What tells this rank's host from others. NCCL takes the same variable."""
    return os.environ.get("NCCL_HOSTID") or socket.gethostname()


def this_place(device: torch.device) -> Place:
    """Of a rank that computes there."""
    return Place(host_id(), bool(os.environ.get("NCCL_HOSTID")), fabric_of(device))


def find_nodes(places: Sequence[Place], most: int = MOST) -> Nodes:
    """The nodes of ranks at these places; NVLink domains of more than ``most`` ranks are none.

    Raises:
        TopologyError: hosts decide, and ranks are not numbered host by host, equally many on each.
    """
    domains, why = _by_domain(places, most)
    if domains is not None:
        return Nodes(domains, "by NVLink domains")
    hosts = Topology.from_hosts([each.host for each in places])
    spans = hosts.num_nodes > 1 and any(isinstance(each.fabric, Fabric) for each in places)
    is_told = any(each.is_told for each in places)
    return Nodes(hosts, f"by hosts: {why}", spans and not is_told)


def _by_domain(places: Sequence[Place], most: int) -> tuple[Topology | None, str]:
    """NVLink domains as nodes, or why they are none."""
    for rank, place in enumerate(places):
        if place.is_told:
            return None, f"rank {rank} has NCCL_HOSTID"
    for rank, place in enumerate(places):
        if isinstance(place.fabric, str):
            return None, f"of rank {rank}, {place.fabric}"
    try:
        found = Topology.from_hosts([each.fabric for each in places])
    except TopologyError:
        return None, "ranks are not numbered NVLink domain by domain, equally many in each"
    if found.ranks_per_node > most:
        many = f"an NVLink domain has {found.ranks_per_node} ranks"
        return None, f"{many}, and kernels of a fixed capacity have room for {most}"
    return found, ""


def check_memory(
    topology: Topology, places: Sequence[Place], processes: Sequence[ProcessId], is_gpu: bool
) -> None:
    """Whether the ranks of every node can share memory, as far as that is known.

    Raises:
        TopologyError: two cannot. Without this they would wait for each other, or find no file.
    """
    for node in range(topology.num_nodes):
        first, *others = topology.node_ranks(node)
        for peer in others:
            known = [_shared_by(processes[rank], is_gpu) for rank in (first, peer)]
            if known[0] == known[1] or None in known:
                continue
            why = _why_apart(places[first], places[peer]) if is_gpu else "they compute on CPUs"
            if why is not None:
                raise TopologyError(
                    f"in the topology {topology} the ranks {first} and {peer} are one node, and "
                    f"they are on two hosts and cannot share memory: {why}; NCCL_HOSTID or "
                    "`topology` tells nodes apart"
                )


def _shared_by(process: ProcessId, is_gpu: bool) -> str | None:
    """What processes that pass each other files have in common, if it is known: a system that runs,
    told by its boot; on CPUs the numbers of processes, too, by which files are found."""
    _, *known = process.table.split()
    return " ".join(known[: 1 if is_gpu else 2]) or None


def _why_apart(one: Place, other: Place) -> str | None:
    """Why GPUs of two hosts cannot address each other's memory; ``None`` if they can."""
    for fabric in (one.fabric, other.fabric):
        if isinstance(fabric, str):
            return fabric
    return None if one.fabric == other.fabric else f"{one.fabric} is not {other.fabric}"
