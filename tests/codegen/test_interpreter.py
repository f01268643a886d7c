"""What is replaced in Triton's interpreter for a launch: no result changes, and nothing stays."""

from __future__ import annotations

from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from fuscoc_runtime.kernels import rewriting
from fuscoc_runtime.kernels.interpreter import _changes
from fuscoc_runtime.kernels.loader import device_module, launching
from tests.codegen.memory import filled, import_kernels, zeros

SIZE = tl.constexpr(8)
TYPES = {
    "int1": np.bool_,
    "uint8": np.uint8,
    "int16": np.int16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
}
STORED = TYPES | {"bfloat16": np.uint16}  # in the interpreter's memory

with triton.knobs.runtime.scope():
    triton.knobs.runtime.interpret = True

    @triton.jit
    def values(address, TYPE: tl.constexpr):
        return tl.load(address.to(tl.pointer_type(TYPE)) + tl.arange(0, SIZE))

    @triton.jit
    def keep(result, out, place):
        cells = (out + 64 * place).to(tl.pointer_type(result.dtype))
        tl.store(cells + tl.arange(0, SIZE), result)

    @triton.jit
    def larger(a, b):
        return tl.where(a < b, b, a)

    @triton.jit
    def arithmetic(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        a, b = values(left, LEFT), values(right, RIGHT)
        scalar = tl.load(right.to(tl.pointer_type(RIGHT)))
        keep(a + b, out, 0)
        keep(a * scalar, out, 1)
        keep(3 - a, out, 2)
        keep(tl.where(a < b, a, b), out, 3)
        keep((a >= scalar) & (b != 2), out, 4)
        keep(tl.cast(a.to(RIGHT), LEFT), out, 5)
        keep(tl.reduce(tl.broadcast_to(a[:, None], (SIZE, SIZE)), 0, larger), out, 6)

    @triton.jit
    def bits(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        a, b = values(left, LEFT), values(right, RIGHT)
        keep((a & b) | (3 ^ a), out, 0)
        keep((a << 2) - (a >> 1), out, 1)
        keep(a << b, out, 2)

    @triton.jit
    def limits(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        """Numbers that some types do not hold, shifts beyond some, and places that are added."""
        a, b = values(left, LEFT), values(right, RIGHT)
        keep(a + 200, out, 0)
        keep(b - 40000, out, 1)
        keep(-1 * a, out, 2)
        keep(a >> 17, out, 3)
        cells = left.to(tl.pointer_type(LEFT)) + 1
        keep(tl.load(cells + tl.arange(0, SIZE) - 1) * a, out, 4)

    @triton.jit
    def shapes(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        a, b = values(left, LEFT), values(right, RIGHT)
        table = a[:, None] * 2 + b[None, :]
        keep(tl.reduce(table, 1, larger), out, 0)
        scalar = tl.load(left.to(tl.pointer_type(LEFT)))
        keep(tl.reduce(tl.where(scalar < b[:, None], table, scalar - table), 0, larger), out, 1)
        cells = right.to(tl.pointer_type(RIGHT)) + tl.arange(0, SIZE)[:, None]
        keep(tl.reduce(tl.load(cells + 0 * tl.arange(0, 2)[None, :]), 1, larger), out, 2)

    @triton.jit
    def sums(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        """Reductions of every dimension and of all, of blocks that are given more of them."""
        a, b = values(left, LEFT), values(right, RIGHT)
        table = a[:, None] * 100 + b[None, :]
        keep(a + tl.reduce(b, 0, tl.standard._sum_combine), out, 0)
        keep(tl.reduce(table, 1, tl.standard._sum_combine), out, 1)
        wide = tl.reduce(table, 0, tl.standard._sum_combine, keep_dims=True)[:, None, :]
        keep(tl.reduce(tl.reduce(wide, 0, larger), 0, tl.standard._elementwise_max), out, 2)
        keep(a + tl.reduce(a, None, tl.standard._sum_combine), out, 3)
        keep(a + tl.reduce(a, 0, tl.standard._elementwise_min), out, 4)
        keep(tl.reduce(a[None], 0, tl.standard._sum_combine), out, 5)

    @triton.jit
    def division(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        a, b = values(left, LEFT), values(right, RIGHT)
        keep(a % b, out, 0)
        keep(a / 3, out, 1)
        keep(a // b, out, 2)
        keep(a // 3, out, 3)
        keep(a % 3, out, 4)
        keep(20 // b, out, 5)
        keep(20 % tl.load(right.to(tl.pointer_type(RIGHT))) + a, out, 6)

    @triton.jit
    def choices(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        a, b = values(left, LEFT), values(right, RIGHT)
        scalar = tl.load(left.to(tl.pointer_type(LEFT)))
        keep(tl.where(a < b, a, 3), out, 0)
        keep(tl.where(scalar > 1, 2, b), out, 1)
        keep(tl.where(b > 1, scalar, a), out, 2)
        keep((a < b).to(RIGHT), out, 7)
        table = tl.where(a[:, None] < b[None, :], a[:, None], 0 * a[None, :])
        keep(tl.reduce(table, 0, larger), out, 3)
        keep(tl.minimum(a, b), out, 4)
        keep(tl.maximum(a, 2), out, 5)
        keep(tl.maximum(1, b) + tl.minimum(scalar, 3), out, 6)

    @triton.jit
    def beyond(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        """Numbers that some types do not hold, to divide by and to choose."""
        a, b = values(left, LEFT), values(right, RIGHT)
        keep(a // -3, out, 0)
        keep(tl.where(a < b, a, 40000), out, 1)

    @triton.jit
    def loads(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        """Of blocks and of one number, with masks and without, and what is elsewhere."""
        a, b = values(left, LEFT), values(right, RIGHT)
        first = left.to(tl.pointer_type(LEFT))
        cells, live = first + tl.arange(0, SIZE), tl.arange(0, SIZE) < 5
        by = tl.load(right.to(tl.pointer_type(RIGHT)))
        keep(tl.load(cells, mask=live, other=0, volatile=True), out, 0)
        keep(tl.load(cells, mask=live, other=a + a, cache_modifier=".cg"), out, 1)
        keep(tl.load(cells, mask=live, other=b), out, 2)
        keep(tl.load(cells, mask=live, other=-1), out, 3)
        keep(tl.load(cells, mask=live, other=0.5), out, 4)
        keep(tl.load(cells, mask=b < 5, other=7), out, 5)
        one = tl.load(first + 3, mask=by > 5, other=3)
        keep(a + one + tl.load(first + 3, mask=by < 5), out, 6)
        step = by.to(tl.int32)  # of one number, forwards and back
        keep(a + tl.load(first + step) + tl.load(first + 3 + (1 - 2 * step)), out, 7)

    @triton.jit
    def stores(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        a, b = values(left, LEFT), values(right, RIGHT)
        first = out.to(tl.pointer_type(LEFT))
        cells, live = first + tl.arange(0, SIZE), tl.arange(0, SIZE) < 5
        tl.store(cells, a)
        tl.store(cells + 8, a, mask=live)
        tl.store(cells + 16, b, mask=live)
        tl.store(cells + 24, 3, mask=live)
        tl.store(first + 32, 5)
        tl.store(first + 33, tl.load(left.to(tl.pointer_type(LEFT))))
        tl.store(first + 34, 1, mask=tl.load(right.to(tl.pointer_type(RIGHT))) < 0)
        tl.store(cells + 40, -1)
        tl.store(cells + 48, 1.5)

    @triton.jit
    def atomics(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        cell = out.to(tl.pointer_type(LEFT))
        by = tl.load(right.to(tl.pointer_type(RIGHT)))
        before = tl.atomic_add(cell, 5)
        before += tl.atomic_add(cell, by, sem="relaxed", scope="gpu")
        tl.store(cell + 1, before)
        tl.store(cell + 2, tl.atomic_xchg(cell, by + 2, sem="release", scope="sys"))
        tl.atomic_add(cell + 8 + tl.arange(0, SIZE), by, mask=tl.arange(0, SIZE) < 5)
        tl.atomic_xchg(cell + 3, 6)
        tl.atomic_add(cell + 4, 1, mask=by > 5)
        tl.atomic_xchg(cell + 5, -1)

    @triton.jit
    def made(left, right, out, LEFT: tl.constexpr, RIGHT: tl.constexpr):
        """Numbers that are made, and found among others; made twice, as they are kept."""
        a, b = values(left, LEFT), values(right, RIGHT)
        for place in range(2):
            keep(tl.full((SIZE,), 3, LEFT) + tl.full((), 2, LEFT), out, place)
        keep(tl.full((SIZE,), 1.5, LEFT) + tl.arange(8, 16), out, 2)
        table = a[:, None] + b[None, :]
        keep(tl.reduce(table, 1, tl.standard._elementwise_max), out, 3)
        table += tl.reduce(table, 0, tl.standard._elementwise_min, keep_dims=True)
        keep(tl.reduce(table, 1, larger), out, 4)
        keep(a + tl.reduce(a, 0, tl.standard._elementwise_max), out, 5)


def outcome(kernel: Any, left: str, right: str, *, ours: bool) -> bytes | str:
    """What a kernel leaves in memory, or its complaint."""
    a = filled(np.array([5, 1, 0, 7, 100, -1, 2, -7]).astype(STORED[left]))
    b = filled(np.array([1, 2, 3, 1, -5, 7, 2, 1]).astype(STORED[right]))
    out = zeros(512, np.uint8)
    kinds = getattr(tl, left), getattr(tl, right)
    with launching(interpreted=True) if ours else triton.knobs.runtime.scope():
        if not ours:
            triton.knobs.runtime.interpret = True
        try:
            kernel[(1,)](a.ctypes.data, b.ctypes.data, out.ctypes.data, *kinds)
        except Exception as error:
            return str(error)
    return out.tobytes()


@pytest.mark.parametrize("right", TYPES)
@pytest.mark.parametrize("left", TYPES)
def test_the_same_results_and_errors(left: str, right: str) -> None:
    for kernel in (arithmetic, bits, limits, shapes, sums, division, choices, beyond):
        theirs = outcome(kernel, left, right, ours=False)
        assert outcome(kernel, left, right, ours=True) == theirs


@pytest.mark.parametrize("right", ["int32", "int64"])
@pytest.mark.parametrize("left", STORED)
def test_the_same_memory(left: str, right: str) -> None:
    for kernel in (loads, stores, atomics, made):
        for kinds in ((left, right), (left, left)):
            assert outcome(kernel, *kinds, ours=True) == outcome(kernel, *kinds, ours=False)


def test_the_same_is_an_answer() -> None:
    """At least where both types are one, kernels run."""
    for name in set(TYPES) - {"int1"}:
        assert isinstance(outcome(arithmetic, name, name, ours=True), bytes), name
        assert isinstance(outcome(shapes, name, name, ours=True), bytes), name
        assert isinstance(outcome(sums, name, name, ours=True), bytes), name
        assert isinstance(outcome(choices, name, name, ours=True), bytes), name
        for kernel in (loads, stores, made):
            assert isinstance(outcome(kernel, name, name, ours=True), bytes), name
        for kernel in (bits, division):
            is_refused = isinstance(outcome(kernel, name, name, ours=True), str)
            assert is_refused == name.startswith("float"), name
    for name in ("int32", "uint32", "int64"):
        assert isinstance(outcome(atomics, name, name, ours=True), bytes), name


CHAINED = """
import triton

@triton.jit
def chained(a, b, c):
    there = a
    between = a < b < c
    return there, between
"""


def done_by(code: CodeType) -> tuple[Any, ...]:
    """What a function does, wherever it stands."""
    constants = [done_by(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def test_functions_are_rewritten_as_by_triton(tmp_path: Path) -> None:
    """Ours, and one whose chain of comparisons some versions of Triton change, too."""
    path = tmp_path / "chained.py"
    path.write_text(CHAINED, encoding="utf-8")
    modules = [import_kernels(path, interpret=True)]
    modules += [device_module(name, interpreted=True) for name in ("flows", "combine", "pieces")]
    functions = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, InterpretedFunction) and each.fn.__module__ == module.__name__
    ]
    assert len(functions) > 30
    for each in functions:
        theirs = each.rewriter.rewrite_ast()
        rewriting._functions.cache_clear()  # which gives every function once
        with launching(interpreted=True):
            ours = each.rewriter.rewrite_ast()
        assert rewriting._functions.cache_info().currsize == 1
        assert done_by(ours.__code__) == done_by(theirs.__code__), each.__name__


def test_nothing_stays() -> None:
    def now() -> list[Any]:
        return [getattr(place, name, None) for place, names in _changes() for name in names]

    before = now()
    with launching(interpreted=True):
        assert all(new is not old for new, old in zip(now(), before, strict=True))
    assert now() == before
