"""What tests let the processes of a ``Pool`` do; every function runs on one rank."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from fuscoc_runtime.comm.gather import FRAME_BYTES, gather_in_time
from fuscoc_runtime.comm.group import find_members
from fuscoc_runtime.comm.process import ProcessComm
from fuscoc_runtime.comm.requests import (
    AllGather,
    AllToAll,
    Crossing,
    Rows,
    Windows,
)
from fuscoc_runtime.comm.shared_memory import SHARED_MEMORY, SharedAllocator
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.rank import RankReport, run_rank
from fuscoc_runtime.demo.verify import (
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.probe import link_between
from fuscoc_runtime.errors import FuscoRuntimeError, HopTimeoutError, ProtocolError
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.plan.links import Link
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.engine.skew import skewed
from tests.node_triton.rank_work import said_by

TIMEOUT = 60.0
CPU = torch.device("cpu")


def verified_run(group: Any, artifact: str, topology: str, tokens: int, seed: int) -> RankReport:
    return run_rank(
        load_artifact(artifact), None, tokens, seed, group=group, topology=topology, timeout=TIMEOUT
    )


def measured_links(group: Any, topology: str) -> list[Link]:
    """What two shuffles of one group take the network to be."""
    members = [find_members(group, Topology.parse(topology), CPU, ()) for _ in range(2)]
    return [link_between(each) for each in members]


def dispatch_some(shuffle: Shuffle, tokens: int, seed: int, *, combine: bool = False) -> None:
    """Dispatch made-up data and check it; ``combine`` it, too."""
    ranks = generate(shuffle.spec, shuffle.topology, tokens, seed)
    data = ranks[shuffle.rank]
    inputs = {
        s.name: data.inputs[s.name] for s in shuffle.spec.declared.inputs if s.role != "weight"
    }
    rows, handle = shuffle.dispatch(**data.source, **inputs, **data.extents)
    fields = rows if isinstance(rows, Mapping) else {shuffle.spec.declared.fields[0].name: rows}
    check_rows(expect(shuffle.spec, ranks).rows[shuffle.rank], fields, handle)
    if combine:
        weights = {
            s.name: data.inputs[s.name] for s in shuffle.spec.declared.inputs if s.role == "weight"
        }
        shuffle.combine(rows, handle, **weights)


def random_plans(group: Any, artifacts: list[str], topology: str, seeds: range) -> None:
    """A batch for every seed, through the shuffles in turn: every row and every sum is compared
    with the reference."""
    shuffles = [
        Shuffle(path, group=group, topology=topology, timeout=TIMEOUT) for path in artifacts
    ]
    for seed in seeds:
        shuffle = shuffles[seed % len(shuffles)]
        tokens = random.Random(seed).randrange(14)
        _compare(shuffle, generate(shuffle.spec, shuffle.topology, tokens, seed))


def skewed_plans(group: Any, artifacts: list[str], topology: str, seeds: range) -> int:
    """The same where even ranks send all of their rows to other nodes, and odd ranks few. Returns
    the rows that this rank handed to another one."""
    shuffles = [
        Shuffle(path, group=group, topology=topology, timeout=TIMEOUT) for path in artifacts
    ]
    handed = 0
    for seed in seeds:
        shuffle = shuffles[seed % len(shuffles)]
        num_ranks = shuffle.topology.num_ranks
        tokens = random.Random(seed).choices(range(14), k=num_ranks)
        away = [1.0 - 0.9 * (rank % 2) for rank in range(num_ranks)]
        dtype = TORCH_DTYPES[shuffle.spec.declared.fields[0].dtype]
        ranks = skewed(shuffle.topology, dtype, tokens, away, seed)
        handle = _compare(shuffle, ranks, again=True)
        handed += handle.stats.carried.rows
    return handed


def _compare(shuffle: Shuffle, ranks: list[RankData], *, again: bool = False) -> Any:
    """There and back, and there ``again`` by the same handle; this rank's rows and results are
    compared. Returns the handle."""
    spec, rank = shuffle.spec, shuffle.rank
    expected = expect(spec, ranks, rank)
    mine, wanted = ranks[rank], expected.rows[rank]
    inputs = {s.name: mine.inputs[s.name] for s in spec.declared.inputs if s.role != "weight"}
    weights = {s.name: mine.inputs[s.name] for s in spec.declared.inputs if s.role == "weight"}
    rows, handle = shuffle.dispatch(**mine.source, **inputs, **mine.extents)
    fields = rows if isinstance(rows, Mapping) else {spec.declared.fields[0].name: rows}
    check_rows(wanted, fields, handle)
    if expected.results is not None:
        worked = work_on(spec, fields, wanted.written, slot_keys(wanted))
        found = shuffle.combine(worked, handle, **weights)
        named = (
            found if isinstance(found, Mapping) else {spec.declared.source.fields[0].name: found}
        )
        check_result(expected.results[rank], named)
    if again:
        rows, _ = shuffle.dispatch(**mine.source, handle=handle)
        check_rows(wanted, {spec.declared.fields[0].name: rows}, handle)
    return handle


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


def open_each(group: Any, *each: tuple[str, dict[str, Any]]) -> None:
    """Every rank opens an artifact of its own, with options of its own."""
    artifact, options = each[dist.get_rank(group)]
    Shuffle(artifact, group=group, **options)


def describe(group: Any, artifact: str) -> tuple[str, str]:
    """The nodes as found out from the hosts, and how."""
    shuffle = Shuffle(artifact, group=group)
    dispatch_some(shuffle, 3, 0)
    stats = shuffle.stats()
    assert stats is not None
    return repr(shuffle), stats.nodes


def communicate(group: Any, num_ranks: int) -> None:
    """Every request, with odd dtypes and counts, against what it has to be."""
    comm = _comm(group, f"1x{num_ranks}")
    rank = comm.members.rank

    def work() -> Any:
        for dtype in (torch.bool, torch.int16, torch.float32):
            mine = torch.full((2, 3), rank).to(dtype)
            for said in (mine, mine.numpy()):
                gathered = yield AllGather(said)
                assert gathered.dtype == mine.numpy().dtype
                for peer in range(num_ranks):
                    assert gathered[peer].tolist() == torch.full((2, 3), peer).to(dtype).tolist()
        assert (yield AllGather(torch.empty(0, 4))).shape == (num_ranks, 0, 4)
        for count in (479, 480, 481, 5000):  # in a frame, filling it, and beyond
            gathered = yield AllGather(torch.arange(count) * num_ranks + rank)
            assert gathered.T.flatten().tolist() == list(range(count * num_ranks))
        # Rank s sends s * r rows to rank r.
        send = tuple(rank * peer for peer in range(num_ranks))
        rows = torch.cat([torch.full((count, 2), 10 * rank + r) for r, count in enumerate(send)])
        received = yield AllToAll(rows.to(torch.int16), send, send)
        wanted = [torch.full((rank * peer, 2), 10 * peer + rank) for peer in range(num_ranks)]
        assert torch.equal(received, torch.cat(wanted).to(torch.int16))
        yield from _crossings(rank, num_ranks)
        yield from _windows(rank, num_ranks)

    comm.run(work())


def _crossings(rank: int, num_ranks: int) -> Any:
    """Rank s sends s + 2 r + n bytes of two fields to rank r != s in stage n."""

    def rows(stage: int, source: int, destination: int, factor: int) -> torch.Tensor:
        size = (source + 2 * destination + stage) * factor
        return torch.arange(size).add(10 * stage + source).to(torch.uint8)

    def fields(stage: int, peer: int, *, sending: bool) -> Rows:
        pair = (rank, peer) if sending else (peer, rank)
        sent = tuple(rows(stage, *pair, factor) for factor in (1, 3))
        return Rows(peer, sent if sending else tuple(map(torch.zeros_like, sent)))

    peers = [peer for peer in range(num_ranks) if peer != rank]
    for stage in range(5):
        sends, landed = (
            tuple(fields(stage, peer, sending=sending) for peer in peers)
            for sending in (True, False)
        )
        yield Crossing(sends, landed, stage=stage)
        for each in landed:
            for factor, found in zip((1, 3), each.fields, strict=True):
                assert torch.equal(found, rows(stage, each.peer, rank, factor))
    yield Crossing((), (), stage=5)


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
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = [line for line in maps if f" {SHARED_MEMORY}/" in line]
    assert files
    assert all(file.endswith(" (deleted)") for file in files), "a file with a name may stay behind"


def _comm(group: Any, topology: str, timeout: float = TIMEOUT) -> ProcessComm:
    return ProcessComm(find_members(group, Topology.parse(topology), CPU, (), timeout))


def windows_with_a_death(group: Any, before: str, timeout: float) -> None:
    """The node's first rank is killed before it tells the others of a window, or before it maps it
    itself."""
    comm = _comm(group, "1x3", timeout)
    if comm.members.rank == 0:
        setattr(SharedAllocator, before, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    comm.run(_windows(comm.members.rank, 3))


def close_alone(group: Any, artifact: str) -> None:
    """Rank 1 ends before the shuffle is closed."""
    shuffle = Shuffle(artifact, group=group, topology="1x2", timeout=TIMEOUT)
    dispatch_some(shuffle, 3, 0)
    if shuffle.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        shuffle.close()
    finally:
        shuffle.close()  # everything has been let go of
        assert repr(shuffle) == "<Shuffle routed: closed>"


def stage_without(group: Any, timeout: float) -> None:
    """Rank 1 is alive but sends nothing in the second stage."""
    comm = _comm(group, "2x1", timeout)
    rank, byte = comm.members.rank, torch.zeros(1, dtype=torch.uint8)
    there = (Rows(1 - rank, (byte,)),)
    here = (Rows(1 - rank, (byte.clone(),)),)

    def work() -> Any:
        yield Crossing(there, here, stage=0)
        if rank == 0:
            yield Crossing(there, here, stage=1)
        time.sleep(timeout + 4)

    comm.run(work())


def shuffle_for_ever(group: Any, artifact: str, topology: str, timeout: float) -> None:
    """Dispatch and combine batches of changing sizes until something goes wrong."""
    shuffle = Shuffle(artifact, group=group, topology=topology, timeout=timeout)
    for number in itertools.count():
        dispatch_some(shuffle, 2 + 7 * number % 17, number, combine=True)


def dispatch_with_a_death(
    group: Any,
    artifact: str,
    topology: str,
    victim: int,
    kernel: str,
    launch: int,
    timeout: float,
) -> None:
    """Dispatch for ever; the victim is killed before its ``launch``-th launch of ``kernel``."""
    shuffle = Shuffle(artifact, group=group, topology=topology, timeout=timeout)
    if shuffle.rank == victim:
        _before(kernel, launch, lambda: os.kill(os.getpid(), signal.SIGKILL))
    for number in range(100):
        dispatch_some(shuffle, 14, number)


def dispatch_with_a_delay(
    group: Any, artifact: str, late: int, seconds: float, timeout: float
) -> None:
    """One rank comes to the second dispatch, and signals its rows so many seconds later."""
    shuffle = Shuffle(artifact, group=group, timeout=timeout)
    dispatch_some(shuffle, 5, 0)
    if shuffle.rank == late:
        _before("_send", 1, lambda: time.sleep(seconds))
    try:
        dispatch_some(shuffle, 5, 1)
    except HopTimeoutError:
        assert shuffle.rank != late
        dispatch_some(shuffle, 5, 2)  # raises it again


def _before(kernel: str, number: int, act: Callable[[], object]) -> None:
    """``act`` before a kernel is launched for the so manieth time from now."""
    launch, launches = Machine.launch, itertools.count(1)

    def act_and_launch(machine: Machine, name: str, *arguments: Any) -> None:
        if name.endswith(kernel) and next(launches) == number:
            act()
        launch(machine, name, *arguments)

    Machine.launch = act_and_launch  # type: ignore[method-assign, assignment]


def dispatch_without(group: Any, artifact: str, absent: int, timeout: float) -> None:
    """One rank is alive but does not come."""
    shuffle = Shuffle(artifact, group=group, topology="1x2", timeout=timeout)
    dispatch_some(shuffle, 2, 0)
    if shuffle.rank == absent:
        time.sleep(timeout + 4)
    else:
        dispatch_some(shuffle, 2, 1)


def left_alone(group: Any, artifact: str, timeout: float) -> list[str]:
    """Rank 1 comes to no call any more, and lives on; what rank 0 says of a dispatch, and of what
    all ranks of another shuffle tell each other."""
    shuffle, other = (
        Shuffle(artifact, group=group, topology="1x2", timeout=timeout) for _ in range(2)
    )
    dispatch_some(shuffle, 2, 0)
    if shuffle.rank == 1:
        for each in (shuffle, other):
            each.engine.members.liveness.give_up()
        return []
    members = other.engine.members
    return [
        said_by(partial(dispatch_some, shuffle, 2, 1)),
        said_by(partial(members.gather, "a test", "x" * FRAME_BYTES)),
    ]


def no_memory_in_one_node(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank, a node of its own, has no memory for windows; what is said of the call that
    needs them, of the next, and of one of another shuffle."""
    opened = partial(Shuffle, artifact, group=group, topology=topology, timeout=6.0)
    shuffle, other = opened(), opened()
    windows, none = shuffle.engine.comm._windows, torch.OutOfMemoryError("no memory")
    allocate = windows._allocate

    def scarce(nbytes: int) -> Any:
        with mock.patch.object(torch, "zeros", side_effect=none):
            return allocate(nbytes)

    dispatch_some(other, 2, 0)
    if shuffle.rank == shuffle.topology.num_ranks - 1:
        windows._allocate = scarce
    return [said_by(partial(dispatch_some, each, 5, 1)) for each in (shuffle, shuffle, other)]


def different_calls(
    group: Any, artifacts: tuple[str, str], topology: str, made: tuple[str, str]
) -> str:
    """Two ranks make two calls, each its own; what is said of them. The next ones are made."""
    shuffle, other = (
        Shuffle(each, group=group, topology=topology, timeout=TIMEOUT) for each in artifacts
    )
    spec = shuffle.spec.declared
    [hidden], [_, topk] = spec.source.fields[0].shape, spec.inputs[0].shape
    assert isinstance(topk, int)
    given = {"x": torch.rand(3, hidden), "idx": torch.ones(3, topk, dtype=torch.int64)}
    rows, handle = shuffle.dispatch(**given)
    calls = {
        "a dispatch of `routed`": lambda: shuffle.dispatch(**given),
        "a dispatch of `other`": lambda: other.dispatch(**given),
        "a dispatch by a handle of `routed`": lambda: shuffle.dispatch(given["x"], handle=handle),
        "a combine of `routed`": lambda: shuffle.combine(rows, handle, weights=torch.rand(3, topk)),
        "closing": shuffle.close,
    }
    said = said_by(calls[made[shuffle.rank]])
    again = other if "closing" in made else shuffle
    again.combine(*again.dispatch(**given), weights=torch.rand(3, topk))
    return said


def _everybody_is_here(rank: int, num_ranks: int, where: str) -> None:
    """Wait for all ranks without the group."""
    store = _get_default_store()
    store.set(f"{where}/{rank}", "")
    store.wait([f"{where}/{each}" for each in range(num_ranks)])


def gathers_given_up(group: Any) -> list[int]:
    """Some ranks give up gathers to which the last one does not come; what all hear in the next."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    for number in range(rank, 2 if rank < last else 0):
        with pytest.raises(TimeoutError):
            gather_in_time(torch.tensor([7]), group, 0.1, f"call {number}")
    _everybody_is_here(rank, last + 1, f"after gathers of {last}")
    heard = gather_in_time(torch.tensor([rank]), group, TIMEOUT, "the next call")
    return [int(each) for each in heard]


def gathers_that_differ(group: Any) -> str:
    """The last of three ranks gives up a gather; all have come to different ones in the next."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    if rank == last:
        with pytest.raises(TimeoutError):
            gather_in_time(torch.tensor([7]), group, 0.1, "an earlier call")
    _everybody_is_here(rank, last + 1, "after an earlier gather")
    with pytest.raises(ProtocolError) as caught:
        gather_in_time(torch.tensor([rank]), group, TIMEOUT, f"call {rank}")
    return str(caught.value)


def no_memory_amid_a_call(group: Any, artifact: str, topology: str, part: str) -> list[str]:
    """The last rank has no memory for a part of a call; what is said of that, of the next, and of
    one of another shuffle."""
    opened = partial(Shuffle, artifact, group=group, topology=topology, timeout=10.0)
    shuffle, other = opened(), opened()
    rank, last = shuffle.rank, shuffle.topology.num_ranks - 1
    for each in (shuffle, other):
        dispatch_some(each, 2, 0)
    none = torch.OutOfMemoryError("no memory")
    said = []
    with mock.patch(f"fuscoc_runtime.{part}", side_effect=none) if rank == last else nullcontext():
        try:
            said.append(said_by(partial(dispatch_some, shuffle, 5, 1, combine=True)))
        except torch.OutOfMemoryError as error:
            said.append(str(error))
    _everybody_is_here(rank, last + 1, f"after {part}")
    return said + [said_by(partial(dispatch_some, each, 5, 1)) for each in (shuffle, other)]
