"""How ranks of a test on real GPUs take theirs: each its own, or several one where there are fewer.

Ranks that share a GPU wait for each other's kernels. Under MPS these run side by side, each rank's
on SMs of its own (`tests.gpus.torchrun`); without it in time slices, which is slow.
"""

from __future__ import annotations

import os
from unittest import mock

import torch
import torch.distributed as dist

from fuscoc_runtime.topology import Topology


def device_of(topology: Topology, rank: int) -> torch.device:
    """Its GPU. Those of one node are different while there are enough, whatever others use."""
    gpus = torch.cuda.device_count()
    has_own = gpus >= topology.num_ranks or topology.ranks_per_node == 1
    return torch.device("cuda", (rank if has_own else topology.local_rank(rank)) % gpus)


def join(topology: Topology | None = None, is_one_host: bool = False) -> torch.device:
    """Join torchrun's job, of one node or of ``topology``; the device of this rank.

    Nodes are hosts for NCCL, with its network in between, unless they are all ``is_one_host``.
    Where ranks of a host share a GPU, which NCCL refuses, each is a host of its own to it, and no
    call can be captured that NCCL carries.
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    topology = topology or Topology(1, num_ranks)
    device, host = device_of(topology, rank), dict[str, str]()
    num_hosts = 1 if is_one_host else topology.num_nodes
    if num_hosts > 1:
        host = {"NCCL_HOSTID": f"node-{topology.node(rank)}"}
    if torch.cuda.device_count() < num_ranks // num_hosts:
        host = {"NCCL_HOSTID": f"rank-{rank}"}
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    torch.cuda.set_device(device)
    with mock.patch.dict(os.environ, host):
        dist.init_process_group("nccl", device_id=device)  # connects at once
    if topology.num_nodes > 1:
        os.environ.update(host)  # for groups that are made later; one node has no others
    return device
