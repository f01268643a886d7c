"""What tests let the processes of a ``Pool`` do; every function runs on one rank."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime.artifact import load_artifact
from fuscoc_runtime.comm.group import find_members
from fuscoc_runtime.comm.process import ProcessComm
from fuscoc_runtime.comm.requests import AllGather, AllToAll, Transfer, Windows
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.rank import RankReport, run_rank
from fuscoc_runtime.demo.verify import check_rows, expect
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.shuffle import Shuffle
from fuscoc_runtime.topology import Topology

TIMEOUT = 60.0
CPU = torch.device("cpu")


def verified_run(group: Any, artifact: str, topology: str, tokens: int, seed: int) -> RankReport:
    return run_rank(
        load_artifact(artifact), None, tokens, seed, group=group, topology=topology, timeout=TIMEOUT
    )


def dispatch_some(shuffle: Shuffle, tokens: int, seed: int) -> None:
    """Dispatch made-up data and check it."""
    ranks = generate(shuffle.spec, shuffle.topology, tokens, seed)
    data = ranks[shuffle.rank]
    inputs = {s.name: data.inputs[s.name] for s in shuffle.spec.inputs if s.role != "weight"}
    rows, handle = shuffle.dispatch(**data.source, **inputs, **data.extents)
    fields = rows if isinstance(rows, Mapping) else {shuffle.spec.fields[0].name: rows}
    check_rows(expect(shuffle.spec, ranks).rows[shuffle.rank], fields, handle)


def many_dispatches(group: Any, artifact: str, topology: str, sizes: list[int]) -> None:
    """One shuffle, batches that grow and shrink, ranks that are late."""
    shuffle = Shuffle(artifact, group=group, topology=topology, timeout=TIMEOUT)
    for number, tokens in enumerate(sizes):
        time.sleep(0.05 * ((number + shuffle.rank) % 3))
        dispatch_some(shuffle, tokens, number)


def bad_key(group: Any, artifact: str, topology: str) -> str:
    """Rank 1 names a key that does not exist; afterwards everything goes on."""
    shuffle = Shuffle(artifact, group=group, topology=topology, timeout=TIMEOUT)
    idx = torch.zeros(2, 3, dtype=torch.int64)
    idx[1, 2] = 99 if shuffle.rank == 1 else 0
    try:
        shuffle.dispatch(torch.zeros(2, 24), idx=idx)
    except FuscoRuntimeError as error:
        dispatch_some(shuffle, 3, 0)
        return str(error)
    return "no error"


def different_grids(group: Any, artifact: str) -> None:
    Shuffle(artifact, group=group, topology=None, num_programs=1 + dist.get_rank(group))


def describe(group: Any, artifact: str) -> str:
    """The nodes as found out from the hosts."""
    return repr(Shuffle(artifact, group=group))


def communicate(group: Any, num_ranks: int) -> None:
    """Every request, with odd dtypes and counts, against what it has to be."""
    comm = _comm(group, f"1x{num_ranks}")
    rank = comm.members.rank

    def work() -> Any:
        for dtype in (torch.bool, torch.int16, torch.float8_e4m3fn, torch.bfloat16):
            mine = torch.full((2, 3), rank).to(dtype)
            gathered = yield AllGather(mine)
            for peer in range(num_ranks):
                assert torch.equal(
                    gathered[peer].float(), torch.full((2, 3), peer).to(dtype).float()
                )
        assert (yield AllGather(torch.empty(0, 4))).shape == (num_ranks, 0, 4)
        # Rank s sends s * r rows to rank r.
        send = tuple(rank * peer for peer in range(num_ranks))
        rows = torch.cat([torch.full((count, 2), 10 * rank + r) for r, count in enumerate(send)])
        received = yield AllToAll(rows.to(torch.int16), send, send)
        wanted = [torch.full((rank * peer, 2), 10 * peer + rank) for peer in range(num_ranks)]
        assert torch.equal(received, torch.cat(wanted).to(torch.int16))
        yield from _transfers(rank, num_ranks)
        yield from _windows(rank, num_ranks)

    comm.run(work())


def _transfers(rank: int, num_ranks: int) -> Any:
    """Rank s sends s + 2 r rows to rank r != s, in slices of all sizes."""

    def count(source: int, destination: int) -> int:
        return 0 if source == destination else source + 2 * destination

    send = tuple(count(rank, peer) for peer in range(num_ranks))
    recv = tuple(count(peer, rank) for peer in range(num_ranks))
    for slice_rows in (1, 2, 100):
        sent = {
            "a": torch.arange(sum(send) * 3).view(-1, 3) + 1000 * rank,
            "b": torch.arange(sum(send), dtype=torch.uint8),
        }
        received = {"a": torch.zeros(sum(recv), 3, dtype=torch.int64)}
        received["b"] = torch.zeros(sum(recv), dtype=torch.uint8)
        yield Transfer(sent, received, send, recv, slice_rows)
        at = 0
        for peer, rows in enumerate(recv):
            first = sum(count(peer, r) for r in range(rank))
            wanted = torch.arange(first * 3, (first + rows) * 3).view(-1, 3) + 1000 * peer
            assert torch.equal(received["a"][at : at + rows], wanted)
            assert received["b"][at : at + rows].tolist() == list(range(first, first + rows))
            at += rows


def _windows(rank: int, num_ranks: int) -> Any:
    """Every rank stores into its peers' memory; a window only ever grows."""
    for nbytes in (100, 50, 9000):
        windows = yield Windows({"a": nbytes, "empty": 0})
        window = windows["a"]
        assert len(window.local) >= nbytes
        assert window.peer_bases[rank] == window.local.data_ptr()
        yield AllGather(torch.zeros(1))
        for base in window.peer_bases.tolist():
            ctypes.c_uint8.from_address(base + nbytes - 1 - rank).value = nbytes % 200 + rank
        yield AllGather(torch.zeros(1))
        stored = window.local[nbytes - num_ranks : nbytes].flip(0).tolist()
        assert stored == [nbytes % 200 + peer for peer in range(num_ranks)]


def _comm(group: Any, topology: str) -> ProcessComm:
    members = find_members(group, Topology.parse(topology), CPU, ())
    return ProcessComm(members, TIMEOUT)


def dispatch_with_a_death(
    group: Any, artifact: str, topology: str, victim: int, kernel: str, timeout: float
) -> None:
    """Dispatch for ever; the victim is killed before it launches ``kernel`` for the second time."""
    shuffle = Shuffle(artifact, group=group, topology=topology, timeout=timeout)
    if shuffle.rank == victim:
        _die_before(kernel)
    for number in range(100):
        dispatch_some(shuffle, 6, number)


def _die_before(kernel: str) -> None:
    launch, launches = Machine.launch, [0]

    def launch_or_die(machine: Machine, name: str, *arguments: Any) -> None:
        if name.endswith(kernel):
            launches[0] += 1
            if launches[0] == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        launch(machine, name, *arguments)

    Machine.launch = launch_or_die  # type: ignore[method-assign, assignment]


def dispatch_without(group: Any, artifact: str, absent: int, timeout: float) -> None:
    """One rank is alive but does not come."""
    shuffle = Shuffle(artifact, group=group, topology="1x2", timeout=timeout)
    dispatch_some(shuffle, 2, 0)
    if shuffle.rank == absent:
        time.sleep(timeout + 4)
    else:
        dispatch_some(shuffle, 2, 1)
