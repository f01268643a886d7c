"""Rows that are taken from others by index: those that hold no segment are never read."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

vectors = load("vectors")


@triton.jit
def take(rows, index, result, num_rows, width, tile_rows: tl.constexpr, tile_words: tl.constexpr):
    """``result[i] = rows[index[i]] if index[i] >= 0 else 0``; rows of ``width`` words."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    inside = row < num_rows
    source = tl.load(index + row, mask=inside, other=-1)
    for first in range(0, width, tile_words):
        column = first + tl.arange(0, tile_words)
        wide = (column < width)[None, :]
        taken = rows + source[:, None] * width + column[None, :]
        words = tl.load(taken, mask=(source >= 0)[:, None] & wide, other=0)
        to = result + row[:, None] * width + column[None, :]
        tl.store(to, words, mask=inside[:, None] & wide)


@triton.jit
def weigh(
    gradient,
    factors,
    index,
    rows,
    row_gradient,
    dots,
    num_rows,
    width,
    with_dots: tl.constexpr,
    accumulator: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """``row_gradient[i] = factors[i] * g`` and ``dots[i] = <rows[i], g>``, where ``g`` is
    ``gradient[index[i]]``; 0 for a negative index."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    inside = row < num_rows
    source = tl.load(index + row, mask=inside, other=-1)
    held = source >= 0
    factor = tl.load(factors + row, mask=held, other=0).to(accumulator)
    products = tl.full([tile_rows, tile_words], 0.0, accumulator)
    for first in range(0, width, tile_words):
        column = first + tl.arange(0, tile_words)
        at, wide = row[:, None] * width + column[None, :], (column < width)[None, :]
        taken = gradient + source[:, None] * width + column[None, :]
        incoming = tl.load(taken, mask=held[:, None] & wide, other=0).to(accumulator)
        scaled = (incoming * factor[:, None]).to(row_gradient.dtype.element_ty)
        tl.store(row_gradient + at, scaled, mask=inside[:, None] & wide)
        if with_dots:
            value = tl.load(rows + at, mask=held[:, None] & wide, other=0)
            products += incoming * value.to(accumulator)
    if with_dots:
        tl.store(dots + row, vectors.total(products, 1), mask=inside)
