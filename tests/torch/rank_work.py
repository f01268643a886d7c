"""What tests let the processes of a ``Pool`` do; every function runs on one rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fuscoc_runtime import FuscoRuntimeError, Pool, Shuffle, fused_shuffle
from tests.node_triton.rank_work import said_by

HIDDEN, KEYS, TOPK = 24, 12, 3
TIMEOUT = 60.0


def batch(rank: int, tokens: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, HIDDEN, generator=random, requires_grad=True)
    idx = torch.randint(-1, KEYS, (tokens, TOPK), generator=random)
    weights = torch.rand(tokens, TOPK, generator=random, requires_grad=True)
    return {"x": x, "idx": idx, "weights": weights}


def gradients(group: Any, artifact: str, options: dict[str, Any]) -> list[float]:
    """A layer with a parameter for every key, against the same in plain torch; largest errors."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    keys = torch.rand(KEYS, generator=torch.Generator().manual_seed(7))
    local = KEYS // num_ranks
    mine = keys[rank * local : (rank + 1) * local].clone().requires_grad_()

    @fused_shuffle(artifact, group=group, timeout=TIMEOUT, **options)
    def layer(rows: Tensor, counts: Tensor, handle: Any) -> Tensor:
        assert counts.shape == (local,)
        key = torch.searchsorted(handle.key_offsets[1:], torch.arange(len(rows)), right=True)
        return (rows * mine[key.clamp(max=local - 1)][:, None]).tanh()

    given = batch(rank, 4 + 3 * rank)
    y = layer(**given)
    y.square().sum().backward()

    copy = {name: each.detach().clone() for name, each in given.items()}
    x, weights = copy["x"].requires_grad_(), copy["weights"].requires_grad_()
    every = keys.clone().requires_grad_()
    idx = copy["idx"]
    rows = (x[:, None] * every[idx.clamp(min=0)][..., None]).tanh()
    wanted = (rows * (weights * (idx >= 0))[..., None]).sum(1)
    wanted.square().sum().backward()
    dist.all_reduce(every.grad, group=group)
    pairs = (
        (y, wanted),
        (given["x"].grad, x.grad),
        (given["weights"].grad, weights.grad),
        (mine.grad, every.grad[rank * local : (rank + 1) * local]),
    )
    return [float((found - right).abs().max()) for found, right in pairs]


def compiled(group: Any, artifact: str, options: dict[str, Any]) -> float:
    """``torch.compile`` without a break, as many tokens as there are on each rank."""
    rank = dist.get_rank(group)

    @fused_shuffle(artifact, group=group, timeout=TIMEOUT, **options)
    def layer(rows: Tensor) -> Tensor:
        return rows.tanh()

    def step(x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        return layer(x * 2, idx=idx, weights=weights).sin()

    traced = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    worst = 0.0
    for tokens in (5 + rank, 2):
        one, other = batch(rank, tokens), batch(rank, tokens)
        step(**one).sum().backward()
        traced(**other).sum().backward()
        for name in ("x", "weights"):
            worst = max(worst, float((one[name].grad - other[name].grad).abs().max()))
    return worst


def mistakes(group: Any, artifact: str) -> list[str]:
    """Rank 1 makes one mistake after the other; all ranks say so, and go on."""
    rank = dist.get_rank(group)
    entered = []

    @fused_shuffle(artifact, group=group, timeout=TIMEOUT)
    def layer(rows: Tensor) -> Tensor:
        entered.append(len(rows))
        return rows

    def drop(given: dict[str, Any], name: str) -> None:
        del given[name]

    def replace(name: str, change: Callable[[Tensor], Any]) -> Callable[[dict[str, Any]], None]:
        def make(given: dict[str, Any]) -> None:
            given[name] = change(given[name])

        return make

    changes: tuple[Callable[[dict[str, Any]], None], ...] = (
        replace("x", lambda x: x.detach().double()),
        replace("x", lambda x: x[:, 1:]),
        replace("x", lambda x: x.detach().to("meta")),
        replace("x", lambda x: x.tolist()),
        replace("idx", lambda idx: idx[1:]),
        replace("idx", lambda idx: idx + 99),
        replace("weights", lambda weights: weights[:, :1]),
        replace("weights", lambda weights: weights.detach().half()),
        lambda given: drop(given, "idx"),
        lambda given: drop(given, "weights"),
        lambda given: given.update(gates=given["weights"]),
    )
    messages = []
    for change in changes:
        given: dict[str, Any] = dict(batch(rank, 4))
        if rank == 1:
            change(given)
        try:
            layer(**given)
        except FuscoRuntimeError as error:
            messages.append(str(error))
    assert not entered, "a function was called before its arguments were checked"
    layer(**batch(rank, 2))
    assert len(entered) == 1
    return messages


def groups(group: Any, artifact: str) -> list[str]:
    """Sub-groups and meshes; 4 ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    seen = []
    for each in (mesh["ep"], (mesh, "dp"), (mesh, 1)):
        with Shuffle(artifact, group=each, timeout=TIMEOUT) as shuffle:
            given = batch(dist.get_rank(), 3)
            rows, handle = shuffle.dispatch(given["x"].detach(), idx=given["idx"])
            y = shuffle.combine(rows, handle, weights=given["weights"].detach())
            sums = (given["weights"] * (given["idx"] >= 0)).sum(1, keepdim=True)
            torch.testing.assert_close(y, given["x"] * sums)
            seen.append(repr(shuffle))
    for wrong in (mesh, (mesh, "tp"), "ep", dist.GroupMember.NON_GROUP_MEMBER):
        try:
            Shuffle(artifact, group=wrong)
        except FuscoRuntimeError as error:
            seen.append(str(error))
    assert isinstance(mesh, DeviceMesh)
    return seen


def layers(group: Any, artifact: str, options: dict[str, Any]) -> list[int]:
    """Three layers in a pool, forward and backward, beside three without; bytes of windows."""
    rank = dist.get_rank(group)
    results, nbytes = [], []
    for pool in (Pool(), None):
        stack = [
            Shuffle(artifact, group=group, timeout=TIMEOUT, pool=pool, **options) for _ in range(3)
        ]
        given = batch(rank, 6)
        h = given["x"]
        for layer in stack:
            rows, handle = layer.dispatch(h, idx=given["idx"], weights=given["weights"])
            h = layer.combine(rows.tanh(), handle)
        h.sum().backward()
        results.append((h, given["x"].grad, given["weights"].grad))
        memory = {id(layer._held): layer.memory().num_bytes for layer in stack}
        nbytes.append(sum(memory.values()))
        for layer in stack:
            layer.close()
    for pooled, alone in zip(*results, strict=True):
        assert torch.equal(pooled, alone)
    return nbytes


def closed(group: Any, artifact: str) -> list[str]:
    """What every rank hears, closing two shuffles whose last dispatch rank 1 got wrong."""
    messages = []
    for leaves_block in (False, True):
        shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT, max_sources=4)
        given = {name: each.detach() for name, each in batch(dist.get_rank(group), 4).items()}
        given["idx"] += 99 * dist.get_rank(group)
        try:
            with shuffle if leaves_block else nullcontext():
                shuffle.dispatch(**given)
            shuffle.close()
        except FuscoRuntimeError as error:
            messages.append(str(error))
        assert repr(shuffle) == "<Shuffle routed: closed>"
    return messages


def few(group: Any, artifact: str, options: dict[str, Any]) -> list[float]:
    """A step of at most three tokens a rank, of which rows are cut; largest errors of its result
    and gradients."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT, **options)
    given = batch(dist.get_rank(group), (3, 0, 2, 1)[dist.get_rank(group)])
    leaves = given["x"], given["weights"]
    rows, handle = shuffle.dispatch(**given)
    most = shuffle.capacity_for(3)
    assert most < len(rows) or not options
    y = shuffle.combine(rows[:most].tanh(), handle)
    found = [y, *torch.autograd.grad(y.square().sum(), leaves)]
    plain = given["x"].tanh() * (given["weights"] * (given["idx"] >= 0)).sum(1, keepdim=True)
    wanted = [plain, *torch.autograd.grad(plain.square().sum(), leaves)]
    pairs = [(one, other) for one, other in zip(found, wanted, strict=True) if one.numel()]
    return [float((one - other).abs().max()) for one, other in pairs]


def tangents(group: Any, artifact: str, options: dict[str, Any], wants: bool) -> list[str]:
    """Arguments that are duals of forward-mode differentiation, one after the other, in calls like
    earlier ones, of tensors that want gradients or not; what is said of them. Others are whole."""
    said = []
    with Shuffle(artifact, group=group, timeout=TIMEOUT, **options) as shuffle:
        given = {
            name: each.detach().requires_grad_(wants and each.is_floating_point())
            for name, each in batch(shuffle.rank, 4).items()
        }
        for _ in range(2):
            rows, handle = shuffle.dispatch(**given)
            wanted = shuffle.combine(rows.clone(), handle)
        held = rows.detach().clone().requires_grad_(wants)

        def say(call: Callable[[], Any]) -> None:
            try:
                call()
            except FuscoRuntimeError as error:
                said.append(str(error))
            else:
                said.append("no error")

        with forward_ad.dual_level():
            x, rows, weights = (
                forward_ad.make_dual(each, torch.ones_like(each))
                for each in (given["x"], held, given["weights"])
            )
            say(lambda: shuffle.dispatch(**{**given, "x": x}))
            say(lambda: shuffle.dispatch_fresh(**{**given, "x": x}))
            say(lambda: shuffle.dispatch(**{**given, "weights": weights}))
            _, new = shuffle.dispatch(**given)
            say(lambda: shuffle.dispatch(x, handle=new))
            _, last = shuffle.dispatch(**given)
            say(lambda: shuffle.combine(rows, last))
            rows, handle = shuffle.dispatch(**given)
            assert torch.equal(shuffle.combine(rows.clone(), handle), wanted)
    return said


def forked(group: Any, artifact: str, options: dict[str, Any]) -> list[str]:
    """What a forked process says of calls of its parent's shuffle, which works as before."""
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT, **options)
    given = {name: each.detach() for name, each in batch(dist.get_rank(group), 3).items()}
    rows, handle = shuffle.dispatch(**given)
    fields = given["x"].clone().requires_grad_()
    y = shuffle.dispatch(**{**given, "x": fields})[0]
    calls: list[Callable[[], Any]] = [
        lambda: shuffle.dispatch(**given),
        lambda: shuffle.combine(rows, handle),
        shuffle.check,
        lambda: y.sum().backward(),
        shuffle.close,
    ]
    reads, writes = os.pipe()
    if not (child := os.fork()):
        for call in calls:
            os.write(writes, f"{said_by(call)}\n".encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as said:
        found = said.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    y.sum().backward()
    rows, handle = shuffle.dispatch(**given)
    wanted = given["x"] * (given["weights"] * (given["idx"] >= 0)).sum(1, keepdim=True)
    torch.testing.assert_close(shuffle.combine(rows, handle), wanted)
    shuffle.close()
    return found
