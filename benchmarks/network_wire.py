"""What lies between the pretended nodes of `network.py`, and who joins.

``nic``: every node has an NCCL_HOSTID of its own, so NCCL uses its sockets between them, all
contenders get the same threads and sockets, and ``nic.so`` (`network_nic.c`), preloaded, gives
every rank a NIC of NIC_GB_PER_SECOND each way; of 0, which is no network, as all ranks share the
loopback device and the cores then. ``channels=N``: all ranks have one host, so a message between
two of them takes NVLink, by N channels of NCCL of about 20 GB/s each. NCCL gives a message of up to
16 MB a channel its share of the channels that a communicator has, so many for each of its ranks,
and a larger one up to all of them. ``all``: as many as NCCL likes. Channels want a GPU a rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime.topology import Topology

NIC, CHANNELS, ALL = "nic", "channels", "all"
NIC_SOURCE = Path(__file__).with_name("network_nic.c")
NIC_LIBRARY, NIC_RATE = "nic.so", "NIC_GB_PER_SECOND"


def wire(text: str) -> str:
    """``text`` if it is one, for argparse."""
    name, _, number = text.partition("=")
    is_limited = name == CHANNELS and number.isdecimal() and int(number) >= 1
    if text not in (NIC, ALL) and not is_limited:
        raise argparse.ArgumentTypeError(f"{text} is neither {NIC} nor {CHANNELS}=N nor {ALL}")
    return text


def channels(text: str) -> int | None:
    """Of a message; None if nobody limits them."""
    number = text.partition("=")[2]
    return int(number) if number else None


def described(text: str) -> str:
    """A wire in words, as tables name it."""
    limit = channels(text)
    if text == NIC:
        return f"NICs of {os.environ.get(NIC_RATE, '?')} GB/s, NCCL's sockets"
    return f"NVLink, {f'{limit} channels of a message' if limit else 'all channels'}"


def compile_nic(path: Path) -> Path:
    """The library that limits a rank's sockets, for LD_PRELOAD; at ``path``."""
    flags = ("-O2", "-shared", "-fPIC")
    subprocess.run(["cc", *flags, "-o", str(path), str(NIC_SOURCE), "-ldl"], check=True)
    return path


def check_nic(text: str) -> None:
    """Raise ``SystemExit`` if the wire are NICs that nobody has."""
    is_there = NIC_LIBRARY in os.environ.get("LD_PRELOAD", "") and NIC_RATE in os.environ
    if text == NIC and not is_there:
        raise SystemExit(f"--wire {NIC} wants LD_PRELOAD={NIC_LIBRARY} and {NIC_RATE}")


def join(topology: Topology, text: str) -> torch.device:
    """Join a job of such nodes with such a wire; this rank's GPU."""
    check_nic(text)
    # Streams and NCCL's communicators share hardware queues otherwise, and wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    rank, num_gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    num_ranks, m = topology.num_ranks, topology.ranks_per_node
    if m > num_gpus:
        raise SystemExit(f"a node's {m} ranks need a GPU each, and there are {num_gpus}")
    if text == NIC:
        os.environ["NCCL_HOSTID"] = f"node-{topology.node(rank)}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        # Each thread spins while anything is under way: with more, they displace one another.
        os.environ.setdefault("NCCL_SOCKET_NTHREADS", "1")
        os.environ.setdefault("NCCL_NSOCKS_PERTHREAD", "16")
    elif num_gpus < num_ranks:
        raise SystemExit(f"--wire {text} wants a GPU for each of {num_ranks} ranks")
    elif (limit := channels(text)) is not None:
        os.environ["NCCL_MAX_P2P_NCHANNELS"] = str(limit * num_ranks)
    # Ranks of one node are on different GPUs, whatever the others use.
    number = rank if m == 1 or num_gpus >= num_ranks else topology.local_rank(rank)
    device = torch.device("cuda", number % num_gpus)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


Communicators = list[dist.ProcessGroup | None]


def communicators(counts: list[int], text: str) -> list[Communicators]:
    """So many of all ranks each, which have the wire's channels together; None is the job's own.
    Of a wire with fewer channels than communicators there are none. Collective."""
    limit = channels(text)
    return [
        [None] if count == 1 else [_communicator(count, limit) for _ in range(count)]
        for count in counts
        if limit is None or count <= limit
    ]


def _communicator(count: int, limit: int | None) -> dist.ProcessGroup:
    options: Any = dist.ProcessGroupNCCL.Options()
    if limit is not None:
        options.config.max_ctas = limit * dist.get_world_size() // count
    found: dist.ProcessGroup = dist.new_group(pg_options=options)
    return found
