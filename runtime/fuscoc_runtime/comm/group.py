"""Who takes part: joining a job, finding the nodes, and the groups that talk."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.liveness import ProcessId, this_process
from fuscoc_runtime.errors import ProtocolError, TopologyError
from fuscoc_runtime.topology import Topology

# The communication library's own limit is only a backstop: waits end earlier, with a better error.
BACKSTOP = timedelta(seconds=30)


@dataclass(frozen=True, eq=False)
class Membership:
    """This rank's place among the ranks.

    Attributes:
        rank: index in ``group``; ranks are numbered node by node.
        group: all ranks.
        node_group: the ranks of this rank's node, in order of their local rank.
        processes: the process of every rank.
        device: where this rank computes.
    """

    rank: int
    topology: Topology
    group: dist.ProcessGroup
    node_group: dist.ProcessGroup
    processes: tuple[ProcessId, ...]
    device: torch.device


def join(timeout: float, device: torch.device | None = None) -> torch.device:
    """Join the job that torchrun's variables describe, unless this process has joined one.

    ``timeout`` is in seconds. Returns the device of this rank: ``device``, or the CUDA device
    LOCAL_RANK if there is one, else the CPU.
    """
    if device is None:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        has_own_gpu = local_rank < torch.cuda.device_count()
        device = torch.device("cuda", local_rank) if has_own_gpu else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout) + BACKSTOP)
    return device


def find_members(
    group: dist.ProcessGroup | None,
    topology: Topology | None,
    device: torch.device,
    timeout: float,
    agreed: tuple[object, ...],
) -> Membership:
    """Find out who the ranks of ``group`` are (``None``: all of the job); collective in ``group``.

    Without a ``topology``, ranks with the same host id (NCCL_HOSTID, else the host's name) form a
    node. ``agreed`` are settings that must be the same on every rank.

    Raises:
        TopologyError: ranks are not numbered node by node, or ``topology`` has another size.
        ProtocolError: ranks differ in ``agreed``.
    """
    world = group if group is not None else dist.group.WORLD
    if world is None:
        raise TopologyError("there is no process group: call torch.distributed.init_process_group")
    rank, num_ranks = dist.get_rank(world), dist.get_world_size(world)
    mine = (host_id(), this_process(), agreed)
    theirs: list[tuple[str, ProcessId, tuple[object, ...]]] = [mine] * num_ranks
    dist.all_gather_object(theirs, mine, group=world)
    hosts, processes, settings = zip(*theirs, strict=True)
    for peer, setting in enumerate(settings):
        if setting != settings[0]:
            raise ProtocolError(f"rank {peer} has {setting} where rank 0 has {settings[0]}")
    found = topology if topology is not None else Topology.from_hosts(hosts)
    if found.num_ranks != num_ranks:
        raise TopologyError(f"the topology {found} is not for {num_ranks} ranks")
    node_group = _node_group(world, found, rank, timedelta(seconds=timeout) + BACKSTOP)
    return Membership(rank, found, world, node_group, processes, device)


def host_id() -> str:
    """What tells this rank's node from others. NCCL takes the same variable."""
    return os.environ.get("NCCL_HOSTID") or socket.gethostname()


def _node_group(
    group: dist.ProcessGroup, topology: Topology, rank: int, timeout: timedelta
) -> dist.ProcessGroup:
    if topology.num_nodes == 1:
        return group
    global_ranks = dist.get_process_group_ranks(group)
    members = [global_ranks[peer] for peer in topology.node_ranks(topology.node(rank))]
    # Only the members meet here, so a group that is part of a larger job works too.
    node_group: dist.ProcessGroup = dist.new_group(
        members, timeout=timeout, use_local_synchronization=True
    )
    return node_group
