"""Reductions and prefix sums. Triton's own are jit functions, which one mode could not call."""

import triton
import triton.language as tl


@triton.jit
def total(x, axis: tl.constexpr):
    return tl.reduce(x, axis, tl.standard._sum_combine)


@triton.jit
def running(x, axis: tl.constexpr):
    """Sums of the elements up to and including each."""
    return tl.associative_scan(x, axis, tl.standard._sum_combine)


@triton.jit
def largest(x, axis: tl.constexpr):
    return tl.reduce(x, axis, tl.standard._elementwise_max)


@triton.jit
def smallest(x, axis: tl.constexpr):
    return tl.reduce(x, axis, tl.standard._elementwise_min)


@triton.jit
def pick(x, i, size: tl.constexpr):
    """Element ``i`` of a vector of ``size``."""
    return total(tl.where(tl.arange(0, size) == i, x, 0), 0)
