"""What the network carries, measured once for each process group."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.lanes import LEAST_LANES, lanes_of
from fuscoc_runtime.comm.rails import Beside, Rails
from fuscoc_runtime.comm.requests import Crossing, Rows
from fuscoc_runtime.kernels.commands import Await, CommandList, as_numbers
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


def link_between(members: Membership) -> Link:
    """What the network of a job with several nodes does for every rank; collective over all ranks
    the first time.

    Raises:
        HopTimeoutError, NetworkError: a rank has not come in time.
    """
    group = members.group
    assert group is not None
    known, topology = _known.setdefault(group, {}), str(members.topology)
    if topology not in known:
        # gloo works on everything at once: there is nothing to gain by more lanes.
        more_lanes = MORE_LANES if members.device.type == "cuda" else ()
        known[topology] = best_link(partial(measure_link, members, Rails(members)), more_lanes)
    return known[topology]


def divide_slabs(rails: Rails, members: Membership, most_bytes: int) -> None:
    """Let slabs travel on as many lanes as the network is measured to want, if that is to be
    measured and any of them, of up to so many bytes, is worth several; collective over all ranks.
    NVLink inside a host, and a network as fast as NICs, are filled by one.

    Raises:
        HopTimeoutError, NetworkError: a rank has not come in time.
    """
    may_be_several = rails.is_measured and not members.is_one_host
    if may_be_several and lanes_of(most_bytes, max(MORE_LANES)) > 1:
        link = link_between(members)
        rails.divide_among(1 if link.bandwidth >= FAST else link.num_lanes)


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


def measure_link(members: Membership, rails: Rails, num_lanes: int) -> Link:
    """Collective over all ranks, which are several nodes: the median of what they find.

    Every rank sends to the next node's rank of its local index, on all lanes, as all others do.
    """
    rails.open_lanes(num_lanes)
    sent = torch.zeros(LARGE_BYTES, dtype=torch.uint8, device=members.device)
    received = torch.zeros_like(sent)
    found = []
    for size in (SMALL_BYTES, LARGE_BYTES):
        commands = _to_the_next(members, rails, num_lanes, sent[:size], received[:size])
        carry_out = partial(rails.submit, commands, as_numbers(()))
        fastest = min(_seconds(members, carry_out) for _ in range(PROBES))
        nanoseconds = members.meet("measuring", round(fastest * 1e9))
        found.append([each / 1e9 for each in nanoseconds])
    links = [
        Link.through((SMALL_BYTES, small), (LARGE_BYTES, large))
        for small, large in zip(*found, strict=True)
    ]
    bandwidth, latency = (
        statistics.median(getattr(each, name) for each in links)
        for name in ("bandwidth", "latency")
    )
    return Link(bandwidth, latency, num_lanes)


def _to_the_next(
    members: Membership, rails: Rails, num_lanes: int, sent: torch.Tensor, received: torch.Tensor
) -> CommandList:
    """Bytes for the next node, in equal parts on all lanes, for those of the node before."""
    topology, rank, device = members.topology, members.rank, members.device
    num_ranks, m = topology.num_ranks, topology.ranks_per_node
    there, from_there = (rank + m) % num_ranks, (rank - m) % num_ranks
    parts = zip(sent.chunk(num_lanes), received.chunk(num_lanes), strict=True)
    exchanges = [
        rails.command(
            Crossing((Rows(there, (mine,)),), (Rows(from_there, (theirs,)),)),
            is_told=True,
            beside=Beside(device, lane) if device.type == "cuda" else None,
            lane=lane,
        )
        for lane, (mine, theirs) in enumerate(parts)
    ]
    return CommandList(device, [*exchanges, *map(Await, exchanges)])


def _seconds(members: Membership, carry_out: Callable[[], None]) -> float:
    """What it takes behind another one, which opens connections, and with which all begin alike;
    each rank is waited for in time."""
    carry_out()
    if members.device.type != "cuda":
        started = time.perf_counter()
        carry_out()
        return time.perf_counter() - started
    begun, ended = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    begun.record()
    carry_out()
    ended.record()
    members.meet("measuring")  # behind what it waits for
    return float(begun.elapsed_time(ended)) / 1e3
