"""What the network carries, measured once for each process group."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.requests import (
    LEAST_LANES,
    AllGather,
    FinishRound,
    Request,
    Rows,
    StartRound,
    ToHost,
)
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.plan.links import Link

SMALL_BYTES, LARGE_BYTES = 1 << 18, 1 << 24
"""Of one rank: the small ones tell the latency, the difference the bandwidth."""

PROBES = 3
"""The fastest counts: what else runs on the hosts only makes them slower."""

MORE_LANES = (4, 8)
FAST, WORTHWHILE = 12.5e9, 1.15
"""Two lanes fill a NIC. A connection through sockets does not fill a host: where two lanes carry
less than 100 Gbit/s, more are tried, and kept if they carry so many times as much."""

_known: WeakKeyDictionary[dist.ProcessGroup, dict[str, Link]] = WeakKeyDictionary()


def known_links(group: dist.ProcessGroup) -> dict[str, Link]:
    """What has been measured among the ranks of ``group``, by topology."""
    return _known.setdefault(group, {})


def best_link(measure: Callable[[int], Link], more_lanes: Iterable[int] = MORE_LANES) -> Link:
    """What ``measure`` finds on as few lanes as are (nearly) as fast as more."""
    best = measure(LEAST_LANES)
    for num_lanes in more_lanes:
        if best.bandwidth >= FAST:
            break
        found = measure(num_lanes)
        if found.bandwidth < best.bandwidth * WORTHWHILE:
            break
        best = found
    return best


def measure_link(machine: Machine) -> Generator[Request, Any, Link]:
    """Collective over all ranks, which are several nodes: the median of what they find.

    Every rank sends to the next node's rank of its local index, on all wires, as all others do.
    The first round of each size is not timed: it opens the connections.
    """
    topology, rank = machine.context.topology, machine.context.rank
    num_ranks, m, wires = topology.num_ranks, topology.ranks_per_node, machine.lanes.wires
    there, from_there = (rank + m) % num_ranks, (rank - m) % num_ranks
    sent = torch.zeros(LARGE_BYTES, dtype=torch.uint8, device=machine.device)
    received = torch.zeros_like(sent)
    seconds, number = list[float](), 0
    for size in (SMALL_BYTES, LARGE_BYTES):
        part = size // len(wires)
        times = []
        for _ in range(1 + PROBES):
            yield AllGather(torch.zeros(1, dtype=torch.uint8, device=machine.device))
            started = time.perf_counter()
            machine.lanes.fork()
            for lane, wire in enumerate(wires):
                here = slice(lane * part, (lane + 1) * part)
                with machine.lanes.on(wire):
                    yield StartRound(
                        number + lane,
                        lane,
                        (Rows(there, (sent[here],)),),
                        (Rows(from_there, (received[here],)),),
                    )
            for lane in range(len(wires)):
                yield FinishRound(number + lane)
            machine.lanes.join()
            arrived = yield ToHost(received[:1])
            arrived()
            times.append(time.perf_counter() - started)
            number += len(wires)
        seconds.append(min(times[1:]))
    mine = Link.through((SMALL_BYTES, seconds[0]), (LARGE_BYTES, seconds[1]))
    found = torch.tensor([mine.bandwidth, mine.latency], dtype=torch.float64)
    everybody = yield AllGather(found.to(machine.device))
    bandwidth, latency = (statistics.median(column) for column in everybody.t().tolist())
    return Link(bandwidth, latency, len(wires))
