"""What lies between the pretended nodes of `network.py` and `network_fixed.py`, and who joins.

``network``: every node has an NCCL_HOSTID of its own, so NCCL uses its sockets between them, and
all contenders get the same threads and sockets; preload ``nic.so`` (`network_nic.c`) for a NIC a
rank. ``channels=N``: all ranks have one, so a message between two of them takes NVLink, by N
channels of NCCL of about 20 GB/s each. NCCL gives a message of up to 16 MB a channel its share of
the channels that a communicator has, so many for each of its ranks, and a larger one up to all of
them. ``channels=all``: as many as NCCL likes. Channels want a GPU a rank.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime.topology import Topology

NETWORK, CHANNELS, ALL = "network", "channels", "all"


def wire(text: str) -> str:
    """``text`` if it is one, for argparse."""
    name, _, number = text.partition("=")
    is_number = number == ALL or (number.isdecimal() and int(number) >= 1)
    if text != NETWORK and not (name == CHANNELS and is_number):
        raise argparse.ArgumentTypeError(f"{text} is neither {NETWORK} nor channels=N nor =all")
    return text


def channels(text: str) -> int | None:
    """Of a message; None if nobody limits them."""
    number = text.partition("=")[2]
    return int(number) if number.isdecimal() else None


def join(topology: Topology, text: str) -> torch.device:
    """Join a job of such nodes with such a wire; this rank's GPU."""
    # Streams and NCCL's communicators share hardware queues otherwise, and wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    rank, num_gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    num_ranks, m = topology.num_ranks, topology.ranks_per_node
    if m > num_gpus:
        raise SystemExit(f"a node's {m} ranks need a GPU each, and there are {num_gpus}")
    if text == NETWORK:
        os.environ["NCCL_HOSTID"] = f"node-{topology.node(rank)}"
        # Each thread spins while anything is under way: with more, they displace one another.
        os.environ.setdefault("NCCL_SOCKET_NTHREADS", "1")
        os.environ.setdefault("NCCL_NSOCKS_PERTHREAD", "16")
    elif (limit := channels(text)) is not None:
        os.environ["NCCL_MAX_P2P_NCHANNELS"] = str(limit * num_ranks)
    # Ranks of one node are on different GPUs, whatever the others use.
    number = rank if m == 1 or num_gpus >= num_ranks else topology.local_rank(rank)
    device = torch.device("cuda", number % num_gpus)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def communicators(count: int, text: str) -> list[dist.ProcessGroup]:
    """``count`` of all ranks, which have the wire's channels together; collective."""
    return [_communicator(count, channels(text)) for _ in range(count)]


def _communicator(count: int, limit: int | None) -> dist.ProcessGroup:
    options: Any = dist.ProcessGroupNCCL.Options()
    if limit is not None:
        options.config.max_ctas = limit * dist.get_world_size() // count
    found: dist.ProcessGroup = dist.new_group(pg_options=options)
    return found
