"""Compact targets: a segment lies once on a rank, and ``row_index`` says where slots read it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import by_slot, expect, slot_keys, work_on
from fuscoc_runtime.engine.dispatch import Dispatched
from fuscoc_runtime.errors import ClosedError, InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import dispatch, inputs_of, lockstep, round_trip
from tests.static import specs as static

TOPOLOGIES = pytest.mark.parametrize("topology", ["1x1", "1x4", "2x2", "3x2"])
KEYS, TOPK, ALIGN = 12, 3, 4


def routed(dtype: str = "f32", hidden: int = 5, *, compact: bool = True, options: str = "") -> str:
    clause = "compact" if compact else ""
    return specs.routed(dtype, hidden, KEYS, TOPK, align=ALIGN, capacity=clause, options=options)


def sent_to(rank: int, num_ranks: int, ranks: list[RankData]) -> list[tuple[int, int]]:
    """The segments of a rank's keys, as (source rank, source)."""
    owner = torch.arange(KEYS) * num_ranks // KEYS
    return [
        (source_rank, source)
        for source_rank, data in enumerate(ranks)
        for source, keys in enumerate(data.inputs["idx"].tolist())
        if any(key >= 0 and owner[key] == rank for key in keys)
    ]


@TOPOLOGIES
@settings(max_examples=4)
@given(st.integers(0, 9), st.integers(0, 10**6))
def test_rows_are_the_segments_of_a_rank(topology: str, tokens: int, seed: int) -> None:
    """In the order of their ranks; through ``row_index`` they are what another target holds."""
    compact, expanded = lockstep(routed(), topology), lockstep(routed(compact=False), topology)
    ranks = generate(compact.spec, compact.topology, tokens, seed)
    found, wanted = round_trip(compact, ranks), dispatch(expanded, ranks)
    for rank, (one, other) in enumerate(zip(found, wanted, strict=True)):
        segments = sent_to(rank, compact.topology.num_ranks, ranks)
        rows, index = one.rows["x"], one.handle.row_index
        plain = [ranks[sender].source["x"][source] for sender, source in segments]
        assert torch.equal(rows, torch.stack(plain) if plain else rows[:0])
        assert index is not None
        assert torch.equal(one.handle.key_offsets, other.handle.key_offsets)
        assert torch.equal(one.handle.key_counts, other.handle.key_counts)
        assert torch.equal(index < 0, other.handle.row_of_slot < 0)
        written = index >= 0
        assert torch.equal(rows[index[written]], other.rows["x"][written])
        assert other.handle.row_index is None


@pytest.mark.parametrize("topology", ["1x4", "3x2"])
def test_combine_is_that_of_the_slots(topology: str) -> None:
    """Bit by bit what the same work on an expanded target gives."""
    compact, expanded = lockstep(routed(), topology), lockstep(routed(compact=False), topology)
    ranks = generate(compact.spec, compact.topology, 7, 1)
    wanted = expect(expanded.spec, ranks).rows

    def back(shuffle: LockstepShuffle, done: list[Dispatched]) -> list[Tensor]:
        worked = [
            work_on(shuffle.spec, by_slot(each.rows, each.handle), rows.written, slot_keys(rows))
            for each, rows in zip(done, wanted, strict=True)
        ]
        weights = [inputs_of(shuffle.spec, data, weights=True) for data in ranks]
        results = shuffle.combine(worked, [each.handle for each in done], weights)
        return [result["x"] for result in results]

    results = back(compact, dispatch(compact, ranks)), back(expanded, dispatch(expanded, ranks))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("options", ["dedup(rank)", "slice 20 B", "balance split schedule fast"])
def test_policies(options: str) -> None:
    """Without dedup of nodes, and in rounds of one row, which are forwarded one after the other."""
    shuffle = lockstep(routed(options=options), "3x2")
    round_trip(shuffle, generate(shuffle.spec, shuffle.topology, 6, 0))


def test_casts_and_other_fields() -> None:
    text = """
    shuffle quantised {
      index t : tokens   index k : 3   index e : 12
      segment wide { x : bf16[8], id : i64 }
      segment narrow { x : f8e4m3[8], scales : f32[2], id : i64 }
      layout source[t] of wide
      layout target[e, s] of narrow packed(s) align 2 compact
      place e on rank by cyclic
      route r(t, k) -> e = input idx : int64
      dispatch source[t] -> target[r(t, k), *] cast(x by scales)
    }"""
    shuffle = lockstep(text, "2x2")
    round_trip(shuffle, generate(shuffle.spec, shuffle.topology, 6, 0))


def test_gradients_are_those_of_an_expanded_target() -> None:
    found = [_gradients(compact, "2x2") for compact in (True, False)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def _gradients(compact: bool, topology: str) -> list[Tensor]:
    """Of every rank's rows and weights, after a product with the key's number."""
    shuffle = lockstep(routed(compact=compact), topology)
    ranks = generate(shuffle.spec, shuffle.topology, 6, 2)
    x = [data.source["x"].clone().requires_grad_() for data in ranks]
    weights = [data.inputs["weights"].clone().requires_grad_() for data in ranks]
    named = [inputs_of(shuffle.spec, data, weights=False) for data in ranks]
    worked, handles = [], []
    for each in shuffle.dispatch([[rows] for rows in x], named):
        held, handle = by_slot(each.rows, each.handle)["x"], each.handle
        slots = torch.arange(handle.num_slots)
        key = torch.searchsorted(handle.key_offsets, slots, right=True)
        worked.append(held.sin() * key[:, None])
        handles.append(handle)
    results = shuffle.combine(worked, handles, [{"weights": weight} for weight in weights])
    torch.stack([result["x"].square().sum() for result in results]).sum().backward()
    grads = [each.grad for each in (*x, *weights)]
    assert all(grad is not None for grad in grads)
    return [grad for grad in grads if grad is not None]


def test_a_static_shuffle_is_baked() -> None:
    text = """
    shuffle spread {
      index t : 6   index k : 3   index e : 8
      segment row { x : f32[2] }
      layout source[t] of row
      layout target[e, s] of row packed(s) compact
      place e on rank by block
      route r(t, k) -> e = (t + k * k) % 8
      dispatch source[t] -> target[r(t, k), *]
      combine reverse reduce sum
    }"""
    baked, planned = (
        LockstepShuffle(static.artifact(text, topologies), topology=Topology(2, 2))
        for topologies in (("2x2",), ())
    )
    assert baked.machines[0].plan is not None
    ranks = generate(baked.spec, baked.topology, 6, 0)
    for one, other in zip(round_trip(baked, ranks), round_trip(planned, ranks), strict=True):
        assert torch.equal(one.rows["x"], other.rows["x"])
        assert one.handle.row_index is not None
        assert other.handle.row_index is not None
        assert torch.equal(one.handle.row_index, other.handle.row_index)


def test_combine_takes_slots() -> None:
    shuffle = lockstep(routed(), "1x4")
    ranks = generate(shuffle.spec, shuffle.topology, 6, 0)
    done = dispatch(shuffle, ranks)
    weights = [inputs_of(shuffle.spec, data, weights=True) for data in ranks]
    with pytest.raises(InputError, match="`x`"):
        shuffle.combine([each.rows for each in done], [each.handle for each in done], weights)


def test_a_fixed_capacity() -> None:
    """Rows for every segment that may come, and further slots of padding."""
    shuffle = Shuffle(specs.artifact(routed()), max_sources=9, capacity=20)
    idx = torch.tensor([[0, 1, -1], [5, 5, 11]])
    weights = torch.rand(2, TOPK)
    rows, handle = shuffle.dispatch(torch.ones(2, 5), idx=idx, weights=weights)
    assert rows.shape == (9, 5)
    assert handle.num_slots == 20
    assert handle.row_index.tolist() == [
        *(0, -1, -1, -1),
        *(0, -1, -1, -1),
        *(1, 1, -1, -1),
        *(1, -1, -1, -1),
        *(-1, -1, -1, -1),
    ]
    stats = shuffle.stats()
    assert stats is not None
    assert (stats.num_rows, stats.local.rows, stats.nvlink.rows) == (5, 2, 0)
    narrow = Shuffle(specs.artifact(routed()), max_sources=9, capacity=4)
    least, _ = narrow.dispatch(torch.ones(1, 5), idx=idx[:1], weights=weights[:1])
    assert least.shape == (4, 5)
    shuffle.close()
    assert not handle.is_live
    with pytest.raises(ClosedError):
        _ = handle.key_counts


def test_gradients_of_an_unweighted_sum_with_both_engines() -> None:
    """Two layers share one shuffle, whose handles are outdated by the time of the backward pass."""
    text = routed().replace("sum(w)", "sum")
    idx = torch.tensor([[0, 3, 3], [-1, 2, 7], [1, 1, 1], [11, 0, 4], [2, -1, 5]])
    torch.manual_seed(1)
    x = torch.rand(5, 5)

    def layer(shuffle: Shuffle, h: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(h, idx=idx)
        index = handle.row_index
        taken = torch.where(index[:, None] >= 0, rows[index.clamp(min=0)], 7)
        return shuffle.combine(taken.sin(), handle)

    found = []
    for options in ({}, {"max_sources": 6}):
        shuffle = Shuffle(specs.artifact(text), **options)
        leaf = x.clone().requires_grad_()
        y = layer(shuffle, layer(shuffle, leaf))
        found.append((y, *torch.autograd.grad(y.square().sum(), [leaf])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options", [{}, {"max_sources": 8}], ids=["exact", "fixed"])
def test_a_compiled_function_gathers_by_it(options: dict[str, int]) -> None:
    shuffle = Shuffle(specs.artifact(routed()), **options)

    def layer(x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(x.sin(), idx=idx, weights=weights)
        taken = rows.cos()[handle.row_index.clamp(min=0)]
        return shuffle.combine(taken, handle)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for tokens in (4, 7):
        torch.manual_seed(tokens)
        idx, weights = torch.randint(-1, KEYS, (tokens, TOPK)), torch.rand(tokens, TOPK)
        one = torch.randn(tokens, 5, requires_grad=True)
        other = one.detach().clone().requires_grad_()
        results = layer(one, idx, weights), compiled(other, idx, weights)
        torch.testing.assert_close(*results)
        for result in results:
            result.square().sum().backward()
        torch.testing.assert_close(one.grad, other.grad)
