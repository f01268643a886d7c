"""Arrays of rows of which only some hold a segment: the others are never read, and become 0."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

vectors = load("vectors")


@triton.jit
def keep(rows, holds, result, num_rows, width, tile_rows: tl.constexpr, tile_words: tl.constexpr):
    """``result[i] = rows[i] if holds[i] else 0``; rows of ``width`` words."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    inside = row < num_rows
    held = inside & (tl.load(holds + row, mask=inside, other=0) != 0)
    for first in range(0, width, tile_words):
        column = first + tl.arange(0, tile_words)
        at, wide = row[:, None] * width + column[None, :], (column < width)[None, :]
        words = tl.load(rows + at, mask=held[:, None] & wide, other=0)
        tl.store(result + at, words, mask=inside[:, None] & wide)


@triton.jit
def weigh(
    gradient,
    factors,
    holds,
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
    """``row_gradient[i] = factors[i] * gradient[i]`` and ``dots[i] = <rows[i], gradient[i]>``."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    inside = row < num_rows
    held = inside & (tl.load(holds + row, mask=inside, other=0) != 0)
    factor = tl.load(factors + row, mask=held, other=0).to(accumulator)
    products = tl.full([tile_rows, tile_words], 0.0, accumulator)
    for first in range(0, width, tile_words):
        column = first + tl.arange(0, tile_words)
        at, wide = row[:, None] * width + column[None, :], (column < width)[None, :]
        incoming = tl.load(gradient + at, mask=held[:, None] & wide, other=0).to(accumulator)
        scaled = (incoming * factor[:, None]).to(row_gradient.dtype.element_ty)
        tl.store(row_gradient + at, scaled, mask=inside[:, None] & wide)
        if with_dots:
            value = tl.load(rows + at, mask=held[:, None] & wide, other=0)
            products += incoming * value.to(accumulator)
    if with_dots:
        tl.store(dots + row, vectors.total(products, 1), mask=inside)
