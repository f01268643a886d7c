"""Who takes part: joining a job, finding the nodes, and the groups that talk."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

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
        processes: the process of every rank.
        device: where this rank computes.
        store: a key-value store of these ranks and this membership alone.
    """

    rank: int
    topology: Topology
    group: dist.ProcessGroup
    processes: tuple[ProcessId, ...]
    device: torch.device
    store: Store


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
    mine = (host_id(), this_process(), secrets.token_hex(8), agreed)
    theirs: list[tuple[str, ProcessId, str, tuple[object, ...]]] = [mine] * num_ranks
    dist.all_gather_object(theirs, mine, group=world)
    hosts, processes, tokens, settings = zip(*theirs, strict=True)
    for peer, setting in enumerate(settings):
        if setting != settings[0]:
            raise ProtocolError(f"rank {peer} has {setting} where rank 0 has {settings[0]}")
    found = topology if topology is not None else Topology.from_hosts(hosts)
    if found.num_ranks != num_ranks:
        raise TopologyError(f"the topology {found} is not for {num_ranks} ranks")
    # Rank 0's token tells this membership's keys from those of any other, earlier or later.
    store = PrefixStore(f"fuscoc/{tokens[0]}", _get_default_store())
    return Membership(rank, found, world, processes, device, store)


def host_id() -> str:
    """What tells this rank's node from others. NCCL takes the same variable."""
    return os.environ.get("NCCL_HOSTID") or socket.gethostname()


def node_group(members: Membership) -> dist.ProcessGroup:
    """The ranks of this rank's node, in order of their local rank; collective over all ranks."""
    topology, group = members.topology, members.group
    if topology.num_nodes == 1:
        return group
    ranks = dist.get_process_group_ranks(group)
    nodes = [[ranks[peer] for peer in topology.node_ranks(n)] for n in range(topology.num_nodes)]
    if group is dist.group.WORLD:
        mine, _ = dist.new_subgroups_by_enumeration(nodes)  # type: ignore[no-untyped-call]
    else:
        # The job's other ranks do not come here, so only the members meet.
        node = nodes[topology.node(members.rank)]
        mine = dist.new_group(node, use_local_synchronization=True)
    found: dist.ProcessGroup = mine
    return found
