"""How ranks of a test on real GPUs take theirs: each its own, or several one where there are fewer.

Kernels of ranks that share a GPU wait for each other, and run side by side under MPS alone. Without
it they run in time slices: right, and slow.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from fuscoc_runtime.topology import Topology

PROGRAMS = 7
"""Of an SM, at most."""


def device_of(topology: Topology, rank: int) -> torch.device:
    """Its GPU. Those of one node are different while there are enough, whatever others use."""
    gpus = torch.cuda.device_count()
    has_own = gpus >= topology.num_ranks or topology.ranks_per_node == 1
    return torch.device("cuda", (rank if has_own else topology.local_rank(rank)) % gpus)


def join(topology: Topology | None = None, is_one_host: bool = True) -> torch.device:
    """Join torchrun's job of one node or of ``topology``; the device of this rank.

    Nodes are hosts for NCCL, with its network in between, unless ``is_one_host``. Where ranks of a
    host share a GPU, which NCCL refuses, it takes each for a host of its own; and the job is to
    name its topology when it opens shuffles, which would be guessed from hosts.
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    topology = topology or Topology(1, num_ranks)
    hosts = 1 if is_one_host else topology.num_nodes
    if torch.cuda.device_count() < num_ranks // hosts:
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    elif not is_one_host:
        os.environ["NCCL_HOSTID"] = f"node-{topology.node(rank)}"
    device = device_of(topology, rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def share(device: torch.device) -> int | None:
    """SMs of a rank where several share a GPU: each must leave room for the others. Programs lie
    on SMs of their own while there are some, and NCCL's kernel needs the registers of a whole one:
    so there must be fewer programs than SMs. None, which is all, where nobody shares."""
    ranks = -(-dist.get_world_size() // torch.cuda.device_count())
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return None if ranks == 1 else max(1, int(sms) // (ranks + 1) // PROGRAMS)
