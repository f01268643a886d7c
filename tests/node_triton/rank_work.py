"""What the tests let processes do; every function runs on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.demo.generate import generate_inputs, source_shape
from fuscoc_runtime.demo.verify import (
    by_slot,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.report import signed
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.node.triton_pieces import PiecesMemory
from fuscoc_runtime.engine.node.watch import GRACE_SECONDS
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Scope, builtin_extents

TIMEOUT = 60.0
MAX_SOURCES = 12


def open_shuffle(group: Any, artifact: Artifact | str, **options: Any) -> Shuffle:
    """With the Triton kernels of one node."""
    given = {"max_sources": MAX_SOURCES, "timeout": TIMEOUT, **options}
    shuffle = Shuffle(artifact, group=group, **given)
    engine = shuffle._executor.engine
    assert isinstance(engine, NodeEngine)
    assert isinstance(engine.node, TritonNode)
    assert shuffle.backend == "triton"
    return shuffle


def epochs(
    group: Any,
    artifact: str,
    batches: Sequence[Sequence[int]],
    seed: int,
    first: int = 0,
    **options: Any,
) -> None:
    """Dispatches and combines in a row, ``batches[i][rank]`` segments each, some ranks late, as if
    there had been ``first`` of each before."""
    shuffle = open_shuffle(group, artifact, **options)
    if first:
        pretend(shuffle, first)
    for number, sizes in enumerate(batches):
        time.sleep(0.02 * ((number + shuffle.rank) % 3))
        ranks = batch(shuffle.spec, sizes, seed + number)
        run(shuffle, ranks, combines=1 + number % 2)
    shuffle.check()


def pretend(shuffle: Shuffle, epoch: int) -> None:
    """Let the latest epoch be that one."""
    node = shuffle.engine.node
    assert isinstance(node, TritonNode)
    for place in EPOCHS:
        node.state[place] = epoch
    memory = node._memory
    memory.pretend(epoch)
    if isinstance(memory, PiecesMemory):
        ranks, stride = shuffle.topology.num_ranks, memory.limits.max_sources
        memory.part("notes", torch.int32, ranks).fill_(signed(2 * epoch))
        memory.part("dispatch_flags", torch.int32, ranks * stride).fill_(signed(ARRIVED * epoch))
    shuffle.engine.members.meet("test")


ARRIVED = 1 << 16  # as in kernels/device/move.py
EPOCHS = (0, 1, 2, 7, 8)  # words of the state, see kernels/device/words.py


def batch(spec: ShuffleSpec, sizes: Sequence[int], seed: int) -> list[RankData]:
    """Data of every rank. Keys are drawn with replacement, so that some segments repeat one."""
    from fuscoc_runtime.topology import Topology

    topology = Topology(1, len(sizes))
    ranks = []
    for rank, data in enumerate(generate_inputs(spec, topology, sizes, seed)):
        here = replace(data, extents={**data.extents, **builtin_extents(rank, len(sizes))})
        ranks.append(replace(data, source=source_of(spec, here, seed * 31 + rank)))
    return ranks


def source_of(spec: ShuffleSpec, data: RankData, seed: int) -> dict[str, Tensor]:
    """Any source fields of the sizes that the inputs and extents of a rank give."""
    random = torch.Generator().manual_seed(seed)
    shape = source_shape(spec, Scope(data.extents, data.inputs))
    return {
        field.name: _values((*shape, *field.shape), field.dtype, random)
        for field in spec.declared.source.fields
    }


def _values(shape: Sequence[int], dtype: str, random: torch.Generator) -> Tensor:
    from fuscoc_runtime.dtypes import TORCH_DTYPES

    kind = TORCH_DTYPES[dtype]
    if kind.is_floating_point:  # no NaN, of which a cast promises no bits
        return torch.randn(shape, generator=random).to(kind)
    nbytes = torch.Size(shape).numel() * kind.itemsize
    return torch.randint(256, (nbytes,), generator=random, dtype=torch.uint8).view(kind).view(shape)


def run(shuffle: Shuffle, ranks: Sequence[RankData], combines: int, infers: bool = False) -> None:
    """One dispatch and some combines of it, compared with the reference. ``infers``: extents are
    read off shapes, and of one field rows are given to combine as a tensor."""
    data, spec = ranks[shuffle.rank], shuffle.spec
    expected = expect(spec, list(ranks), shuffle.rank)
    extents = {} if infers else data.extents
    given = {**data.source, **data.inputs}
    given = {name: each.to(shuffle.device) for name, each in given.items()}
    rows, handle = shuffle.dispatch(**given, **extents)
    fields = by_field(rows, spec.declared.fields[0].name)
    own = expected.rows[shuffle.rank]
    num_slots = len(own.written)
    num_rows = own.num_rows if spec.program.is_compact else num_slots
    used = {name: tensor[:num_rows] for name, tensor in fields.items()}
    check_rows(own, used, handle)
    if expected.results is None:
        return
    held = {name: each[:num_slots] for name, each in by_slot(used, handle).items()}
    outputs = filled_up(work_on(spec, held, own.written, slot_keys(own)), handle.num_slots)
    for _ in range(combines):
        brought: Any = outputs
        if infers and len(outputs) == 1:
            [brought] = outputs.values()
        result = by_field(shuffle.combine(brought, handle), next(iter(outputs)))
        check_result(expected.results[shuffle.rank], result)


def filled_up(worked: Mapping[str, Tensor], num_slots: int) -> dict[str, Tensor]:
    """Rows for all slots that a combine takes: behind those of a call, ones that must not count."""
    outputs = {}
    for name, each in worked.items():
        outputs[name] = each.new_empty(num_slots, *each.shape[1:])
        outputs[name].view(-1).view(torch.uint8).fill_(0xFF)
        outputs[name][: len(each)] = each
    return outputs


def by_field(rows: Tensor | Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """What a call gives: a mapping, or the one field of that name."""
    return dict(rows) if isinstance(rows, Mapping) else {name: rows}


def gradients(group: Any, artifact: str, **options: Any) -> None:
    """Of rows and weights through two layers, some of whose points are dropped or repeat a key."""
    shuffle = open_shuffle(group, artifact, **options)
    random = torch.Generator().manual_seed(shuffle.rank)
    tokens = 5 + shuffle.rank
    idx = torch.randint(-1, 12, (tokens, 3), generator=random)
    leaves = [torch.rand(tokens, width, generator=random).requires_grad_() for width in (24, 3)]

    def fused(x: Tensor, weights: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        taken = rows[handle.row_index.clamp(min=0)]
        return shuffle.combine(taken.sin(), handle)

    def plain(x: Tensor, weights: Tensor) -> Tensor:
        return x.sin() * (weights * (idx >= 0)).sum(1, keepdim=True)

    found, wanted = (
        torch.autograd.grad(layer(layer(*leaves), leaves[1]).square().sum(), leaves)
        for layer in (fused, plain)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def gradients_of_fields(group: Any, artifact: str, **options: Any) -> None:
    """Of two fields and their weights, of points of which some are dropped."""
    shuffle = open_shuffle(group, artifact, **options)
    random = torch.Generator().manual_seed(shuffle.rank)
    tokens = 4 + shuffle.rank
    idx = torch.randint(-1, 12, (tokens, 3), generator=random)
    leaves = [torch.rand(tokens, n, generator=random).requires_grad_() for n in (24, 5, 3)]

    def fused(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(x, y, idx=idx, weights=weights)
        results = shuffle.combine({name: each.sin() for name, each in rows.items()}, handle)
        return sum((each.square().sum() for each in results.values()), torch.zeros(()))

    def plain(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        factor = (weights * (idx >= 0)).sum(1, keepdim=True)
        return (x.sin() * factor).square().sum() + (y.sin() * factor).square().sum()

    found, wanted = (torch.autograd.grad(layer(*leaves), leaves) for layer in (fused, plain))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def mistakes(group: Any, artifact: str, **options: Any) -> list[str]:
    """The errors that ``check`` raises after keys that do not exist and rows without a slot."""
    shuffle = open_shuffle(group, artifact, capacity=8, **options)
    found = []
    for keys in ([[0, 12, -1], [-2, 3, 4]], [[0, 0, 0]] * 4, [[5, 5, 5]]):
        idx = torch.tensor(keys)
        weights = torch.ones(idx.shape)
        shuffle.dispatch(torch.ones(len(idx), 24), idx=idx, weights=weights)
        found.append(said_by(shuffle.check))
        while found[-1] != "no error":
            found.append(said_by(shuffle.check))
    return found


def one_bad_index(group: Any, artifact: str, **options: Any) -> tuple[list[str], list[int]]:
    """Good calls around one with a key that does not exist on rank 1, and one beyond the capacity
    of rank 0: what ``check`` says after each, and what each handle says of dropped points."""
    shuffle = open_shuffle(group, artifact, capacity=40, **options)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    messages, dropped = [], []
    for number, key in enumerate([1, 99, 1, 0, 1]):
        tokens = 10 if key == 0 else 3
        idx = torch.arange(3 * tokens).view(tokens, 3) % 12
        if key == 0:
            idx[:] = 0
        elif rank == 1:
            idx[2, 1] = key
        x, weights = torch.rand(tokens, 24), torch.rand(tokens, 3)
        rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        # Slots of key 0 are dealt out to the points of rank 0 first.
        points = torch.arange(3 * tokens).view(tokens, 3) + rank * 3 * tokens
        lives = (idx < 12) & ((idx != 0) | (points < 40))
        result = shuffle.combine(rows, handle)
        torch.testing.assert_close(result, x * (weights * lives).sum(1, keepdim=True))
        dropped.append(int(handle.dropped))
        assert dropped[-1] == int((~lives).sum()), number
        if number in (2, 4):  # not by the call after the bad one
            messages.append(said_by(shuffle.check))
            messages.append(said_by(shuffle.check))
    assert num_ranks == 2
    return messages, dropped


def said_by(call: Callable[[], object]) -> str:
    try:
        call()
    except FuscoRuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def one_refuses(group: Any, artifact: str) -> list[str]:
    """Rank 1 has too many segments, then rows of a wrong shape, then no handle; the others join.
    What is said on every rank; each call in between is whole, and compared with the reference."""
    shuffle = open_shuffle(group, artifact)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    said = []

    def whole(seed: int) -> None:
        run(shuffle, batch(shuffle.spec, [3] * num_ranks, seed), combines=2)

    tokens = MAX_SOURCES + 1 if rank == 1 else 4
    x, weights = torch.rand(tokens, 24), torch.rand(tokens, 3)
    idx = torch.arange(3 * tokens).view(tokens, 3) % 12
    if shuffle.spec.program.fanout == 1:
        idx = idx[:, 0]
    own = idx // (12 // num_ranks)
    needs_one = (own == 1).view(tokens, -1).any(1)
    weighted = {"weights": weights} if shuffle.spec.declared.combine.weight else {}
    handle: Any = None

    def dispatch() -> None:
        nonlocal handle
        _, handle = shuffle.dispatch(x, idx=idx, **weighted)

    said.append(said_by(dispatch))
    if handle is not None:
        full = torch.rand(handle.num_slots, 24)
        lost = shuffle.combine(full, handle).isnan()
        assert torch.equal(lost.any(1), needs_one)
        assert torch.equal(lost.all(1), needs_one)
    said.append(said_by(shuffle.check))
    whole(1)
    x, idx = x[:4], idx[:4]
    weighted = {name: each[:4] for name, each in weighted.items()}
    for wrong in (torch.rand(1, 23), None):
        dispatch()
        given = torch.rand(handle.num_slots, 24)
        if rank != 1:
            lost = shuffle.combine(given, handle).isnan().any(1)
            assert torch.equal(lost, needs_one)
        elif wrong is None:
            said.append(said_by(lambda given=given: shuffle.combine(given, None)))
            said.append(said_by(lambda given=given: shuffle.combine(given, handle)))
        else:
            said.append(said_by(lambda wrong=wrong: shuffle.combine(wrong, handle)))
            whole(2)  # rank 1's next dispatch comes while its peers have not looked yet
        if wrong is not None and rank != 1:
            whole(2)
    whole(3)
    said.append(said_by(shuffle.check))
    said.append(said_by(shuffle.check))
    return said


def one_is_late(group: Any, artifact: str, **options: Any) -> None:
    """By more than the grace, and less than the timeout: nobody has ended, so waits go on."""
    shuffle = open_shuffle(group, artifact, **options)
    for number in range(2):
        if shuffle.rank == number:
            time.sleep(2 * GRACE_SECONDS)  # the other rank takes some of it until it waits
        run(shuffle, batch(shuffle.spec, [3] * shuffle.topology.num_ranks, number), combines=1)
    shuffle.check()


def padding_after_refusals(group: Any, artifact: str) -> list[int]:
    """Slots of a compact target that refer to rows of a dispatch which rank 1 has refused, when
    only one handle is kept."""
    shuffle = open_shuffle(group, artifact, num_handles=1)
    stale = []
    for tokens in (MAX_SOURCES, 1) * 3:
        x, weights = torch.rand(tokens, 24), torch.rand(tokens, 3)
        idx = torch.arange(3 * tokens).view(tokens, 3) % 12
        if shuffle.rank == 1 and tokens == MAX_SOURCES:
            wrong = partial(shuffle.dispatch, x.double(), idx=idx)
            assert "InputError" in said_by(wrong)
            continue
        _, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        if tokens == 1:
            held = int((handle.row_index >= 0).sum())
            stale.append(held - int(handle.key_counts.sum()))
    return stale


def two_in_turn(group: Any, artifact: str) -> list[bool]:
    """Handles of refused and of live dispatches, of two shuffles that share a pool or not."""
    shuffle = open_shuffle(group, artifact)
    x, weights = torch.rand(2, 24), torch.rand(2, 3)
    idx = torch.zeros(2, 3, dtype=torch.int64)
    _, first = shuffle.dispatch(x, idx=idx, weights=weights)
    assert said_by(lambda: shuffle.dispatch(x.double(), idx=idx)).startswith("InputError")
    live = [first.is_live]
    shuffle.dispatch(x, idx=idx, weights=weights)
    return [*live, first.is_live]


def one_is_absent(group: Any, artifact: str, timeout: float) -> str:
    """Rank 1 is alive but does not come."""
    shuffle = open_shuffle(group, artifact, timeout=timeout)
    if shuffle.rank == 1:
        return ""
    idx = torch.zeros(1, 3, dtype=torch.int64)
    rows, handle = shuffle.dispatch(torch.ones(1, 24), idx=idx, weights=torch.ones(1, 3))
    assert len(handle.key_counts.nonzero()) == 0
    first, second = said_by(shuffle.check), said_by(lambda: shuffle.combine(rows, handle))
    assert first == second
    return first
