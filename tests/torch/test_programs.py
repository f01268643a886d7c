"""Random programs of dispatches, combines and backward passes, beside the same in plain torch.

Every value is held twice. What torch does has no windows: rows are gathered by index and never
overwritten, and what is saved for its backward pass is a copy, so that later changes in place do
not reach it. What fuscoc does is equal to that, or is refused for a reason that the program gave.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fuscoc_runtime import Pool, Shuffle
from fuscoc_runtime.errors import InputError
from tests.drawn import at_night
from tests.engine import specs
from tests.node_exact.rank_work import on_the_device

TOKENS, HIDDEN, KEYS, TOPK, ALIGN = 3, 4, 4, 2, 2
SPECS = {"weighted": {}, "sum": {"reduce": "sum"}, "compact": {"capacity": "compact"}}


@cache
def opened(name: str, engine: str) -> list[Shuffle]:
    """Two that share their windows."""
    text = specs.routed("f32", HIDDEN, KEYS, TOPK, align=ALIGN, **SPECS[name])
    pool, most = Pool(), TOKENS if engine == "fixed" else None
    with on_the_device() if engine == "kernels" else nullcontext():
        return [Shuffle(specs.artifact(text), pool=pool, max_sources=most) for _ in range(2)]


@dataclass(eq=False)
class Pair:
    """A tensor of the program and its twin in plain torch."""

    found: Tensor
    wanted: Tensor

    def each(self, work: Callable[[Tensor], Tensor]) -> Pair:
        return Pair(work(self.found), work(self.wanted))

    def times(self, other: Pair) -> Pair:
        return Pair(self.found * other.found, self.wanted.clone() * other.wanted)


class Plain:
    """Dispatch and combine on one rank. ``point`` [num_slots]: which of ``idx`` a slot is for."""

    def __init__(self, idx: Tensor, is_compact: bool) -> None:
        slots: list[int] = []
        for key in range(KEYS):
            slots += torch.nonzero(idx.flatten() == key).flatten().tolist()
            slots += [-1] * (-len(slots) % ALIGN)
        self.point = torch.tensor(slots, dtype=torch.int64)
        self.held = torch.nonzero(self.point >= 0).flatten()
        self.tokens, index = torch.unique(self.point[self.held] // TOPK, return_inverse=True)
        empty = torch.full_like(self.point, -1)
        self.row_index = empty.index_copy(0, self.held, index) if is_compact else None
        self.token_of_slot = empty.index_copy(0, self.held, self.tokens[index])

    def dispatch(self, x: Tensor) -> Tensor:
        if self.row_index is not None:
            return x[self.tokens]
        return in_slots(x, self.token_of_slot)

    def combine(self, rows: Tensor, weights: Tensor | None) -> Tensor:
        point, terms = self.point[self.held], rows.clone()[self.held]
        if weights is not None:
            terms = terms * weights.clone().flatten()[point, None]
        return torch.zeros(TOKENS, HIDDEN).index_add(0, point // TOPK, terms)


def in_slots(rows: Tensor, index: Tensor | None) -> Tensor:
    """Rows of a compact target in their slots, 0 in the others; others as they are."""
    if index is None:
        return rows
    return torch.cat([rows, rows.new_zeros(1, HIDDEN)])[index]


@dataclass(eq=False)
class Dispatched:
    """``number``: of dispatches and backward passes by then, unless rows are of their own;
    ``weights``: those that were given, if any were."""

    plain: Plain
    rows: Pair
    handle: Any
    number: int | None
    weights: Pair | None


class Program:
    """Draws its steps from ``random`` and makes them."""

    def __init__(self, random: Random, name: str, engine: str) -> None:
        self.random, self.name, self.is_fixed = random, name, engine == "fixed"
        self.is_weighted, self.shuffles = name != "sum", opened(name, engine)
        self.leaves: list[Pair] = []
        self.scale = self.leaf(HIDDEN)
        self.weights = [self.leaf(TOKENS, TOPK) for _ in range(2)]
        row = self.leaf(1, HIDDEN)
        self.sources = [self.leaf(TOKENS, HIDDEN), row.each(lambda x: x.expand(TOKENS, HIDDEN))]
        self.idx = torch.randint(-1, KEYS, (TOKENS, TOPK))
        self.done: list[Dispatched] = []
        self.results: list[Pair] = []
        self.number, self.has_changed, self.is_over = 0, False, False

    def leaf(self, *size: int) -> Pair:
        """Small integers, whose sums are exact."""
        values, wants = torch.randint(-2, 3, size).float(), self.random.random() < 0.5
        self.leaves.append(Pair(*(values.clone().requires_grad_(wants) for _ in range(2))))
        return self.leaves[-1]

    def run(self) -> None:
        steps = [self.layer, self.layer, self.dispatch, self.again, self.change, self.backward]
        steps.append(self.along)
        for step in [*self.random.choices([*steps, self.checkpointed], k=7), self.backward]:
            if not self.is_over:
                step()
        for each in self.done:
            self.check_rows(each)

    def modes(self) -> list[AbstractContextManager[Any]]:
        """That of a call, and that of its twin, whose results are no inference tensors."""
        mode = self.random.choice([nullcontext] * 3 + [torch.no_grad, torch.inference_mode])
        return [mode(), nullcontext() if mode is nullcontext else torch.no_grad()]

    def dispatch(self) -> None:
        weights = self.some_weights(is_needed=self.is_fixed)
        plain, shuffle = Plain(self.idx, self.name == "compact"), self.random.choice(self.shuffles)
        self.send(plain, shuffle, weights, weights, idx=self.idx)

    def along(self) -> None:
        """Other rows go where those of an earlier dispatch went, perhaps with other weights."""
        if not self.done:
            return
        each, given = self.random.choice(self.done[-3:]), self.some_weights()
        weights = each.weights if given is None else given
        try:
            self.send(each.plain, self.shuffles[0], weights, given, handle=each.handle)
        except InputError as error:
            self.check_refusal(str(error), is_stale=False)

    def some_weights(self, is_needed: bool = False) -> Pair | None:
        """What a call may be given, or nothing."""
        if not self.is_weighted:
            return None
        return self.random.choice(self.weights + [None] * (not is_needed))

    def send(
        self,
        plain: Plain,
        shuffle: Shuffle,
        weights: Pair | None,
        given: Pair | None,
        **named: Any,
    ) -> None:
        """Dispatch by the ``given`` weights, or by those of a handle; ``weights`` are then its."""
        x, (found, wanted) = self.random.choice(self.sources), self.modes()
        if given is not None:
            named["weights"] = given.found
        with found:
            is_fresh = x.found.requires_grad and torch.is_grad_enabled()
            rows, handle = shuffle.dispatch(x.found, **named)
        with wanted:
            twin = plain.dispatch(x.wanted.clone())
        self.number += 1
        number = None if is_fresh else self.number
        self.done.append(Dispatched(plain, Pair(rows, twin), handle, number, weights))
        self.check_rows(self.done[-1])

    def check_rows(self, each: Dispatched) -> None:
        if each.number in (None, self.number):
            at = each.plain.held if self.name != "compact" else slice(len(each.plain.tokens))
            assert torch.equal(each.rows.found[at], each.rows.wanted[at])

    def layer(self) -> None:
        self.dispatch()
        self.again()

    def again(self) -> None:
        """Combine what becomes of rows, or the rows themselves, which may be overwritten."""
        if not self.done:
            return
        each = self.random.choice(self.done[-3:])
        kind = self.random.choice(["rows", "rows", "scaled", "in place", "parts"])
        is_stale = each.number not in (None, self.number)
        if is_stale and (kind != "rows" or self.name == "compact"):
            return
        found, wanted = self.modes()
        try:
            rows = in_slots(each.rows.found, each.handle.row_index)
            worked = Pair(rows, in_slots(each.rows.wanted, each.plain.row_index))
            if kind == "scaled":
                worked = worked.times(self.scale)
            elif kind == "in place":
                self.has_changed = True
                worked = worked.each(Tensor.neg_)
            elif kind == "parts":
                worked = worked.each(lambda rows: torch.cat([rows[:2], 3 * rows[2:]]))
            late = None if self.is_fixed else self.some_weights(is_needed=each.weights is None)
            named = {} if late is None else {"weights": late.found}
            with found:
                y = self.shuffles[0].combine(worked.found, each.handle, **named)
        except InputError as error:
            self.check_refusal(str(error), is_stale)
        else:  # what has come since may have left the rows alone, as some backward passes do
            if not is_stale:
                with wanted:
                    self.add_result(y, each.plain, worked.wanted, late or each.weights)

    def add_result(self, y: Tensor, plain: Plain, slots: Tensor, weights: Pair | None) -> None:
        twin = plain.combine(slots, None if weights is None else weights.wanted)
        assert torch.equal(y, twin)
        self.results.append(Pair(y, twin))
        if not y.is_inference() and twin.abs().max() < 1e3:
            self.sources.append(self.results[-1])

    def check_refusal(self, text: str, is_stale: bool) -> None:
        causes = {"is outdated": self.is_fixed, "has put its own rows since": is_stale}
        causes["has been changed in place"] = self.is_fixed and self.has_changed
        assert any(cause in text and is_due for cause, is_due in causes.items()), text

    def checkpointed(self) -> None:
        """A layer that is computed again for its backward pass, from copies of what it is given."""
        x, idx = self.random.choice(self.sources), self.idx.clone()
        plain, reenters = Plain(idx, self.name == "compact"), self.random.random() < 0.5
        weights = self.weights[0] if self.is_weighted else None
        named = {} if weights is None else {"weights": weights.found.clone()}
        reenters &= x.found.requires_grad  # otherwise its rows are in the window, and refused

        def layer(x: Tensor) -> Tensor:
            rows, handle = self.shuffles[0].dispatch(x, idx=idx, **named)
            slots = in_slots(rows, handle.row_index)
            return self.shuffles[0].combine(slots * self.scale.found, handle)

        y = checkpoint(layer, x.found.clone(), use_reentrant=reenters)
        self.number += 1
        slots = in_slots(plain.dispatch(x.wanted.clone()), plain.row_index) * self.scale.wanted
        self.add_result(y, plain, slots, weights)

    def change(self) -> None:
        """In place: what calls were given."""
        self.has_changed = True
        with torch.no_grad():
            if self.random.random() < 0.5:
                self.idx.copy_(self.idx.flip(0))
            else:
                self.random.choice([*self.weights, self.sources[0]]).each(Tensor.neg_)

    def backward(self) -> None:
        """Of some results in any order, perhaps twice."""
        live = [y for y in self.results if y.found.requires_grad and y.wanted.requires_grad]
        some = self.random.sample(live, min(len(live), 2)) * self.random.choice([1, 1, 2])
        self.number += 1
        for y in some:
            y.wanted.sum().backward(retain_graph=True)
        try:
            for y in some:
                y.found.sum().backward(retain_graph=True)
        except RuntimeError as error:
            self.check_saved(str(error))
        for leaf in self.leaves:
            if leaf.found.requires_grad and not self.is_over:
                zero = torch.zeros_like(leaf.found)
                grads = leaf.found.grad, leaf.wanted.grad
                assert torch.equal(*(zero if grad is None else grad for grad in grads))

    def check_saved(self, text: str) -> None:
        """What autograd has saved was changed by the program, or is in the window; or what the
        routing has read was changed, and is read again."""
        self.is_over = True
        if "has been changed in place" in text:
            self.check_refusal(text, is_stale=False)
            return
        assert "has been modified by an inplace operation" in text
        assert self.has_changed or any(each.number is not None for each in self.done), text


@settings(max_examples=at_night(20))
@given(st.integers(0, 2**32), st.sampled_from(sorted(SPECS)))
def test_exact(seed: int, name: str) -> None:
    run(seed, name, "general")


@settings(max_examples=5)
@given(st.integers(0, 2**32), st.sampled_from(sorted(SPECS)))
def test_exact_in_kernels(seed: int, name: str) -> None:
    run(seed, name, "kernels")


@settings(max_examples=5)
@given(st.integers(0, 2**32), st.sampled_from(sorted(SPECS)))
def test_fixed(seed: int, name: str) -> None:
    run(seed, name, "fixed")


@pytest.mark.parametrize("engine", ["general", "kernels"])
def test_weights_count_as_they_are_when_combine_is_called(engine: str) -> None:
    """Also where autograd keeps the routing, whose operator has copied them."""
    shuffle = opened("weighted", engine)[0]
    x, weights = torch.randn(TOKENS, HIDDEN, requires_grad=True), torch.rand(TOKENS, TOPK)
    idx = torch.arange(TOKENS * TOPK).view(TOKENS, TOPK) % KEYS
    rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    total = weights.neg_().sum(1, keepdim=True)
    sums = shuffle.combine(rows, handle)
    torch.testing.assert_close(sums, x * total)
    [gradient] = torch.autograd.grad(sums.sum(), [x])
    torch.testing.assert_close(gradient, total.expand_as(x))


def run(seed: int, name: str, engine: str) -> None:
    torch.manual_seed(seed)
    Program(Random(seed), name, engine).run()
