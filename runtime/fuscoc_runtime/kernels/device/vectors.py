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


@triton.jit
def floor_div(value, by):
    """The quotient that is rounded down."""
    quotient = value // by
    return tl.where(value - quotient * by < 0, quotient - 1, quotient)


@triton.jit
def sort(x, bits: tl.constexpr):
    """2**bits integers in ascending order, by Batcher's bitonic network (AFIPS 1968): a dimension
    of two for each bit of a place. No two of them add up to more than there is room for."""
    cube = tl.reshape(x, [2] * bits)
    for stage in tl.static_range(1, bits + 1):
        for step in tl.static_range(stage):
            cube = order_pairs(cube, bits, stage, stage - 1 - step)
    return tl.reshape(cube, [2**bits])


@triton.jit
def order_pairs(cube, bits: tl.constexpr, stage: tl.constexpr, bit: tl.constexpr):
    """Put pairs whose places differ in a bit into order: ascending, or at the places that have the
    bit ``stage`` descending."""
    other = tl.reduce(cube, bits - 1 - bit, tl.standard._sum_combine, keep_dims=True) - cube
    larger = has_bit(bits, bit)
    if stage < bits:
        larger = larger ^ has_bit(bits, stage)
    return tl.where(larger == 1, tl.maximum(cube, other), tl.minimum(cube, other))


@triton.jit
def has_bit(bits: tl.constexpr, bit: tl.constexpr):
    """A bit of every place of a cube."""
    return tl.reshape(tl.arange(0, 2), [1] * (bits - bit - 1) + [2] + [1] * bit)
