"""What the tests let ranks of several nodes do, beside what `node_triton/rank_work.py` has; every
function runs on one rank."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.comm import lanes
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.demo.generate import source_shape
from fuscoc_runtime.engine import probe
from fuscoc_runtime.engine.node import slabs
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face import open as face_open
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.plan.links import Link
from fuscoc_runtime.scalar import Scope, builtin_extents
from tests.node_triton import given_work, rank_work
from tests.node_triton.rank_work import batch, run, said_by
from tests.waits import host_waits

HIDDEN, KEYS, TOPK = 24, 12, 3
"""Of ``specs.routed()``."""
Opens = Callable[..., Shuffle]


@contextmanager
def several_hosts() -> Iterator[None]:
    """Ranks that open a shuffle say that they are of several hosts; slabs travel in many rounds."""
    host = mock.patch.dict(os.environ, NCCL_HOSTID=f"host-{os.getpid()}")
    with mock.patch.multiple(slabs, ROUND_BYTES=1, MESSAGE_BYTES=1), host:
        yield


def on_lanes(group: Any, artifact: str, work: Callable[..., Any], *given: Any) -> tuple[Any, int]:
    """``work`` where the network between hosts is taken to want four lanes, each for a few bytes;
    and how many lanes were used."""
    command, used = Rails.command, {0}

    def noted(rails: Rails, what: Crossing, *others: Any, lane: int = 0, **named: Any) -> Any:
        used.add(lane)
        return command(rails, what, *others, lane=lane, **named)

    slow = Link(1e9, 1e-5, num_lanes=4)
    with (
        mock.patch.object(face_open, "_measures", return_value=True),
        mock.patch.object(probe, "link_between", return_value=slow),
        mock.patch.multiple(lanes, LANE_BYTES=64, ALIGNMENT=4),
        mock.patch.object(Rails, "command", noted),
    ):
        return work(group, artifact, *given), max(used) + 1


def under_way(rails: Rails) -> int:
    """What the host of a GPU would take for the exchange that is waited for, 0 for none."""
    with mock.patch.object(rails, "_is_watched", True):
        return rails.under_way()


def open_shuffle(group: Any, artifact: str, topology: str, **options: Any) -> Shuffle:
    """Of a fixed capacity, among the ranks of several nodes."""
    shuffle = rank_work.open_shuffle(group, artifact, topology=topology, **options)
    assert isinstance(shuffle.engine.node, RailNode)
    return shuffle


def points(tokens: int, rank: int) -> dict[str, torch.Tensor]:
    """Inputs whose segments go to three ranks or nodes in turn."""
    random = torch.Generator().manual_seed(rank)
    idx = (torch.arange(TOPK * tokens).view(tokens, TOPK) * 5 + rank) % KEYS
    return {
        "x": torch.rand(tokens, HIDDEN, generator=random),
        "idx": idx,
        "weights": torch.rand(tokens, TOPK, generator=random),
    }


def handles(group: Any, artifact: str, topology: str) -> None:
    """Combines of two dispatches, the later one first, and a dispatch along the earlier routing;
    what ``stats`` says of that."""
    shuffle = open_shuffle(group, artifact, topology)
    given = [points(tokens + shuffle.rank, shuffle.rank) for tokens in (3, 1)]
    made = [(rows.clone(), handle) for rows, handle in (shuffle.dispatch(**g) for g in given)]
    for each, (rows, handle) in reversed([*zip(given, made, strict=True)]):
        sums = each["x"] * each["weights"].sum(1, keepdim=True)
        torch.testing.assert_close(shuffle.combine(rows, handle), sums)
    before, first = made[0]
    held = filled(first)
    rows, _ = shuffle.dispatch(2 * given[0]["x"], handle=first)
    torch.testing.assert_close(rows[held], 2 * before[held])
    stats, num_ranks = shuffle.stats(), shuffle.topology.num_ranks
    owners = given[0]["idx"] // (KEYS // num_ranks)
    away = owners != shuffle.rank  # ranks are nodes
    assert stats is not None
    assert stats.rows_to_rank == tuple(owners.flatten().bincount(minlength=num_ranks).tolist())
    assert (stats.num_sources, stats.num_rounds) == (len(owners), 1)
    assert stats.network.rows == int(away.any(1).sum())
    assert stats.network.saved_rows == int(away.sum()) - stats.network.rows
    assert (stats.nvlink.rows, stats.local.rows) == (0, int((~away).sum()))


def filled(handle: Any) -> torch.Tensor:
    """Slots that hold a row."""
    pairs = zip(handle.key_offsets.tolist(), handle.key_counts.tolist(), strict=False)
    return torch.cat([torch.arange(start, start + count) for start, count in pairs])


def combine_is_refused(group: Any, artifact: str, topology: str) -> tuple[list[str], list[int]]:
    """The last rank gives rows of a wrong shape: what is said on every rank, and which of its sums
    are lost. A whole call follows."""
    shuffle = open_shuffle(group, artifact, topology)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    given = points(3, rank)
    rows, handle = shuffle.dispatch(**given)
    lost: list[int] = []
    if rank == num_ranks - 1:
        said = [said_by(lambda: shuffle.combine(torch.rand(1, 7), handle))]
    else:
        result = shuffle.combine(rows, handle)
        sums = given["x"] * given["weights"].sum(1, keepdim=True)
        is_lost = result.isnan().any(1)
        assert torch.equal(is_lost, result.isnan().all(1))
        torch.testing.assert_close(result[~is_lost], sums[~is_lost])
        lost, said = is_lost.nonzero().flatten().tolist(), []
    said.append(said_by(shuffle.check))
    run(shuffle, batch(shuffle.spec, [2] * num_ranks, 1), combines=1)
    said.append(said_by(shuffle.check))
    return said, lost


def dispatch_is_refused(group: Any, artifact: str, topology: str) -> list[str]:
    """All ranks have too many segments, then rank 1 alone; what is said on every rank."""
    shuffle = open_shuffle(group, artifact, topology)
    few, many = (points(tokens, shuffle.rank) for tokens in (2, rank_work.MAX_SOURCES + 1))
    said = [said_by(lambda: shuffle.dispatch(**many)), said_by(shuffle.check)]
    run(shuffle, batch(shuffle.spec, [1] * shuffle.topology.num_ranks, 1), combines=1)
    given = many if shuffle.rank == 1 else few
    said += [said_by(lambda: shuffle.dispatch(**given)), said_by(shuffle.check)]
    if shuffle.rank == 1:
        said.append(said_by(lambda: shuffle.dispatch(**few)))
    return said


def captured(group: Any, artifact: str, topology: str) -> list[str]:
    """Calls in the memory of captured ones, among others; what is said of points without a slot,
    and between hosts, where none can be captured."""
    shuffle = open_shuffle(group, artifact, topology)
    rings = shuffle.engine.node.rings
    for seed, is_captured in enumerate((True, False, True, True)):
        with mock.patch.object(rings, "next", partial(_entry, rings.next, is_captured)):
            run(shuffle, batch(shuffle.spec, [3, 2], seed), combines=2)
    shuffle.check()
    shuffle = open_shuffle(group, artifact, topology, capacity=8)
    node = shuffle.engine.node
    assert isinstance(node, RailNode)
    with mock.patch.object(node.rings, "next", partial(_entry, node.rings.next, True)):
        _, handle = shuffle.dispatch(**points(4, shuffle.rank))
        assert under_way(node.rails) == 0  # kernels have told that all has come
        said = [f"{int(handle.dropped)} points", said_without_traces(shuffle.check)]
        between_hosts = replace(shuffle.engine.members, is_one_host=False)
        with mock.patch.object(node, "_members", between_hosts):
            said.append(said_by(lambda: shuffle.dispatch(**points(1, shuffle.rank))))
    return said


def said_without_traces(check: Callable[[], None]) -> str:
    """What is said, by an error that keeps nothing of its caller once it is gone."""

    def call() -> tuple[str, weakref.ref[Any]]:
        graph = torch.zeros(0)  # NCCL waits for real ones when it ends
        try:
            check()
            said = "no error"
        except FuscoRuntimeError as error:
            said = str(error)
        return said, weakref.ref(graph)

    gc.disable()
    try:
        said, graph = call()
        assert graph() is None
    finally:
        gc.enable()
    return said


def _entry(next_one: Any, is_captured: bool, _: bool) -> Any:
    return next_one(is_captured)


def one_dies(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank ends without a word; what the others say, and what of a further call."""
    shuffle = open_shuffle(group, artifact, topology)
    return last_ends(shuffle, points(2, shuffle.rank))


def last_ends(shuffle: Shuffle, given: Mapping[str, Any]) -> list[str]:
    """As ``one_dies``, of dispatches of ``given``."""
    shuffle.dispatch(**given)
    if shuffle.rank == shuffle.topology.num_ranks - 1:
        os._exit(1)

    def calls() -> None:
        for _ in range(3):
            shuffle.dispatch(**given)
            shuffle.check()

    return [said_by(calls), said_by(lambda: shuffle.dispatch(**given))]


def repeats(group: Any, artifact: str, topology: str) -> list[str]:
    """Calls of the same forms, of other data each time, and among them some that only look alike;
    what is said of these."""
    shuffle = open_shuffle(group, artifact, topology)
    repeated = shuffle._executor.repeats
    assert repeated is not None
    taken: list[bool] = []
    for name in ("dispatch", "combine"):
        call = getattr(repeated, name)
        setattr(repeated, name, partial(_noted, taken, call))
    num_ranks = shuffle.topology.num_ranks
    for seed in range(4):
        run(shuffle, batch(shuffle.spec, [3, 2][:num_ranks], seed), combines=2, infers=True)
    assert taken == [False] * 2 + [True] * 10

    given = points(3 - shuffle.rank, shuffle.rank)
    sums = given["x"] * given["weights"].sum(1, keepdim=True)
    taken.clear()
    strided = {**given, "x": torch.stack([given["x"], given["x"]], 2)[..., 0]}
    grown = torch.zeros(given["x"].numel() + 1)[1:].view_as(given["x"]).copy_(given["x"])
    for each in (strided, {**given, "x": grown}):  # no address of a kernel
        rows, handle = shuffle.dispatch(**each)
        torch.testing.assert_close(shuffle.combine(rows.clone(), handle), sums)
    assert taken == [False, True] * 2
    leaf = given["x"].clone().requires_grad_()
    rows, handle = shuffle.dispatch(**{**given, "x": leaf})
    shuffle.combine(rows, handle).sum().backward()
    torch.testing.assert_close(leaf.grad, given["weights"].sum(1, keepdim=True).expand_as(leaf))

    used, begin = list[Sequence[torch.Tensor]](), repeated._begin

    def noted(is_beside: bool, tensors: Sequence[torch.Tensor]) -> Any:
        used.append(tensors)
        return begin(is_beside, tensors)

    with mock.patch.object(repeated, "_begin", noted):
        rows, handle = shuffle.dispatch(**given)
        shuffle.combine(rows.clone(), handle)
    assert handle.launched.weights is not None
    assert any(each is handle.launched.weights for each in used[-1])  # its kernels read them

    said = []
    rows, handle = shuffle.dispatch(**given)
    kept, lent = rows.clone(), rows._version
    given["weights"] += 1
    said.append(said_by(lambda: shuffle.combine(kept, handle)))
    _, handle = shuffle.dispatch(**given)
    assert rows._version > lent  # autograd sees that what it has saved of them is gone
    shuffle.dispatch(**given)
    said.append(said_by(lambda: shuffle.combine(rows, handle)))
    for _ in range(2):
        shuffle.dispatch(**given)
    said.append(said_by(lambda: shuffle.combine(kept, handle)))
    said.append(said_by(lambda: shuffle.dispatch(**{**given, "x": given["x"].double()})))
    return said


def turns(
    group: Any, artifact: str, topology: str, batches: Any, num_turns: int
) -> list[tuple[list[range], ...]]:
    """Calls whose partial rows come back in so many turns, one in one round and one in several; the
    turns of their rounds."""
    options: dict[str, Any] = {"topology": topology, "max_sources": max(map(max, batches))}
    made = []
    small = {"STAGING_BYTES": 0, "MOST_STAGING_BYTES": 0, "num_turns": lambda _: num_turns}
    with mock.patch.multiple(slabs, **small):
        for batch, round_bytes in zip(batches, (slabs.ROUND_BYTES, 1), strict=True):
            bytes_of = {"ROUND_BYTES": round_bytes, "MESSAGE_BYTES": round_bytes}
            host = mock.patch.dict(os.environ, NCCL_HOSTID=f"host-{os.getpid()}")
            with mock.patch.multiple(slabs, **bytes_of), host:
                rank_work.epochs(group, artifact, [batch], 5, **options)
                node = open_shuffle(group, artifact, **options).engine.node
                assert isinstance(node, RailNode)
                made.append(tuple(map(node._commands._turns, range(node.num_rounds))))
    return made


def turn_is_refused(group: Any, artifact: str, topology: str) -> tuple[list[str], list[int]]:
    """As `combine_is_refused`, where partial rows come back in two turns."""
    with mock.patch.object(slabs, "STAGING_BYTES", 0):
        node = open_shuffle(group, artifact, topology).engine.node
        assert [len(node._commands._turns(each)) for each in range(node.num_rounds)] == [2]
        return combine_is_refused(group, artifact, topology)


def _noted(taken: list[bool], call: Any, *arguments: Any) -> Any:
    found = call(*arguments)
    taken.append(found is not None)
    return found


def rounds(group: Any, artifact: str, topology: str, batches: Any) -> tuple[int, int, int]:
    """Calls whose slabs travel in several rounds, between ranks that say they are of several hosts;
    how many, and of how many places. Then how many of one host."""
    with mock.patch.multiple(slabs, ROUND_BYTES=1, MESSAGE_BYTES=1):
        with mock.patch.dict(os.environ, NCCL_HOSTID=f"host-{os.getpid()}"):
            rank_work.epochs(group, artifact, batches, 5, topology=topology)
            node = open_shuffle(group, artifact, topology).engine.node
        inside = open_shuffle(group, artifact, topology).engine.node
    assert isinstance(node, RailNode)
    assert isinstance(inside, RailNode)
    return node.num_rounds, node._stride, inside.num_rounds


def routed_in_rounds(
    group: Any, artifact: str, topology: str, tables: Sequence[Any], length: int
) -> int:
    """As ``given_work.routed``, in rounds."""
    options = {"topology": topology, "capacity": length, "max_sources": len(tables[0][0])}
    work = partial(given_work.routed, group, artifact, tables, length, options)
    return _rounds(group, artifact, work, options)


def in_rounds(
    group: Any, artifact: str, batches: Sequence[Sequence[int]], options: Mapping[str, Any]
) -> int:
    """As ``given_work.epochs``, in rounds."""
    work = partial(given_work.epochs, group, artifact, batches, 1, options)
    return _rounds(group, artifact, work, options)


def open_in_rounds(group: Any, artifact: Any, **options: Any) -> Shuffle:
    """A shuffle whose slabs travel in several rounds."""
    with several_hosts():
        return open_shuffle(group, artifact, **options)


def weighed(group: Any, artifact: str, options: Mapping[str, Any], opens: Opens) -> list[str]:
    """Sums of rows that go to three slots each, by weights that dispatch is given; gradients of
    rows and of weights. Then the last rank refuses a dispatch, and a combine of the next; what is
    said on every rank, and in which sums something is lost."""
    shuffle = opens(group, artifact, **options)
    rank, num_ranks = shuffle.rank, shuffle.topology.num_ranks
    random = torch.Generator().manual_seed(rank)
    shape = source_shape(shuffle.spec, Scope(builtin_extents(rank, num_ranks)))
    x, given = (
        torch.rand((*shape, last), generator=random).requires_grad_() for last in (HIDDEN, TOPK)
    )
    rows, handle = shuffle.dispatch(x, w=given)
    result = shuffle.combine(rows, handle)
    torch.testing.assert_close(result, x * given.sum(-1, keepdim=True))
    back = torch.rand(result.shape, generator=random)
    result.backward(back)
    torch.testing.assert_close(x.grad, back * given.detach().sum(-1, keepdim=True))
    of_weights = (back * x.detach()).sum(-1, keepdim=True).expand_as(given)
    torch.testing.assert_close(given.grad, of_weights)
    shuffle.check()

    x, given = x.detach(), given.detach()
    sums = x * given.sum(-1, keepdim=True)
    refuses = rank == num_ranks - 1
    said, lost = list[str](), list[bool]()
    rows, handle = shuffle.dispatch(x, w=given)
    if refuses:
        said.append(said_by(lambda: shuffle.combine(torch.rand(1, 7), handle)))
    else:
        result = shuffle.combine(rows, handle)
        is_lost = result.isnan().any(-1)
        torch.testing.assert_close(result[~is_lost], sums[~is_lost])
        lost = is_lost.flatten().tolist()
    said.append(said_by(shuffle.check))
    rows, handle = shuffle.dispatch(x, w=given)
    torch.testing.assert_close(shuffle.combine(rows, handle), sums)
    wrong = x[..., 1:].contiguous() if refuses else x
    said.append(said_by(lambda: shuffle.dispatch(wrong, w=given)))
    said.append(said_by(shuffle.check))
    return [*said, "".join(".x"[each] for each in lost)]


def bytes_sent(group: Any, artifact: str, options: Mapping[str, Any]) -> list[int]:
    """By node, in all rounds of a dispatch."""
    node = open_in_rounds(group, artifact, **options).engine.node
    assert isinstance(node, RailNode)
    memory, made = node._slabs.memory, node._slabs
    sent = [0] * node._num_nodes
    for each in made.rounds:
        started = node.rails.between(memory.out, memory.landed, made.ranges(each))
        for rows in started.sends:
            to = node._members.topology.node(rows.peer)
            sent[to] += sum(field.nbytes for field in rows.fields)
    return sent


def _rounds(group: Any, artifact: str, work: Callable[[], None], options: Mapping[str, Any]) -> int:
    """Some ``work`` between ranks that say they are of several hosts; in how many rounds slabs
    travel."""
    with several_hosts():
        work()
        node = open_shuffle(group, artifact, **options).engine.node
    assert isinstance(node, RailNode)
    return node.num_rounds


def waits(group: Any, artifact: str, sizes: Sequence[int], options: Mapping[str, Any]) -> list[str]:
    """Where the host waits in a dispatch, one along its routing and two combines."""
    shuffle = open_shuffle(group, artifact, **options)
    data = batch(shuffle.spec, sizes, 1)[shuffle.rank]
    with host_waits() as found:
        rows, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
        shuffle.combine(rows, handle)
        rows, handle = shuffle.dispatch(**data.source, handle=handle)
        shuffle.combine(rows, handle)
    shuffle.check()
    return found


def too_many_slots(group: Any, artifact: str, topology: str) -> list[str]:
    """Rank 1 has a longer target than there is room for; what is said on every rank, and there of
    a further call. The others have the rows that came from ranks that joined."""
    shuffle = open_shuffle(group, artifact, topology, capacity=6)
    rank, num_ranks = shuffle.rank, shuffle.topology.num_ranks
    x = torch.arange(num_ranks).float()[:, None].expand(-1, 3) + 10 * rank
    to = torch.tensor([[r, rank] for r in range(num_ranks)])
    said, found = [], []

    def dispatch() -> None:
        found.append(shuffle.dispatch(x.contiguous(), to=to, length=7 if rank == 1 else 5))

    said.append(said_by(dispatch))
    if rank == 1:
        return [*said, said_by(dispatch)]
    [(rows, handle)] = found
    joined = [r for r in range(num_ranks) if r != 1]
    assert handle.launched.filled.nonzero().flatten().tolist() == joined
    assert rows[joined, 0].tolist() == [10.0 * r + rank for r in joined]
    assert int(handle.dropped) == 0
    said.append(said_by(shuffle.check))
    return said
