"""One pass over rows where torch would need several: what autograd adds to a node's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.kernels.launches import start
from fuscoc_runtime.kernels.loader import device_module

TILE_WORDS = 1024
WARP_WORDS = 256
"""Of a row that a program takes one after the other, for each of its warps: with few of them many
programs have rows under way."""
INTERPRETED_ROWS = 256
"""Rows of a tile: one on a GPU, where rows are long; many where a program is what costs."""
WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
CLAIMS = 128
"""Parts of rows for which a warp claims places at once."""
MOST_PROGRAMS = 1 << 14
"""Of a launch; each takes a tile in so many. They keep any GPU busy, and cost little where the
device knows that there are hardly any rows."""


def take_rows(rows: Tensor, index: Tensor, end: Tensor | None = None) -> Tensor:
    """``rows[index]``, and 0 where ``index`` (int64 [num_taken]) is -1.

    From ``end`` on, an int64 [1] on the device, nothing is written.
    """
    rows = rows.contiguous()
    result = rows.new_empty((len(index), *rows.shape[1:]))
    if result.numel():
        row_bytes = rows.shape[1:].numel() * rows.element_size()
        word = next(each for each in WORDS if row_bytes % each.itemsize == 0)
        source, target = (each.view(-1).view(word) for each in (rows, result))
        width = row_bytes // word.itemsize
        _launch("take", len(index), source, index, target, len(index), end, width)
    return result


def add_rows(rows: Tensor, index: Tensor, beginnings: Sequence[Tensor] = ()) -> Tensor:
    """The sums of ``rows[index[i]]``, one after the other, in f32, rounded once to the type of the
    rows: [num_sums, width].

    ``rows`` are [num_rows, width] of up to 32 bits, ``index`` int64 [num_sums, num_terms], where -1
    is no term; sum i begins with row i of the ``beginnings``, two at most, of the result's shape.
    """
    rows, index = rows.contiguous(), index.contiguous()
    result = rows.new_empty(len(index), rows.shape[1])
    if result.numel():
        first, second = ([each.contiguous() for each in beginnings] + [None, None])[:2]
        _launch(
            "add", len(index), rows, index, first, second, result, len(index), rows.shape[1],
            index.shape[1],
        )  # fmt: skip
    return result


def put_rows(rows: Tensor, index: Tensor, memory: Tensor) -> None:
    """``memory[index[i]] = rows[i]``, but where ``index`` (int64 or int32 [num_rows]) is below 0.

    Both are contiguous, and no two rows go to one place.
    """
    if rows.numel() and memory.numel():
        row_bytes = rows.shape[1:].numel() * rows.element_size()
        word = next(each for each in WORDS if _is_made_of(each, row_bytes, rows, memory))
        source, target = (each.view(-1).view(word) for each in (rows, memory))
        width = row_bytes // word.itemsize
        words = min(TILE_WORDS, 1 << (width - 1).bit_length())  # rows may be short
        _launch("put", len(index), source, index, target, len(index), width, words=words)


def accumulate_rows(rows: Tensor, index: Tensor, memory: Tensor) -> None:
    """``memory[index[i]] += rows[i]``, one ``i`` after the other, but where ``index`` (int64 or
    int32 [num_rows]) is -1 or below: in f32, or f64 for f64, and rounded once.

    Both are contiguous, and of one floating-point type. A program adds up all rows of a place, so
    the order of additions is that of the rows.
    """
    if rows.numel() and memory.numel():
        if len(memory) < 2**31:  # half as many passes
            index = index.int()
        places, order = index.sort(stable=True)
        width = rows.shape[1:].numel()
        words = min(TILE_WORDS, 1 << (width - 1).bit_length())
        _launch(
            "accumulate", len(index), rows, order, places, memory, len(index), width,
            _triton_dtype(_accumulator(rows.dtype)), words=words,
            num_warps=max(1, words // WARP_WORDS),
        )  # fmt: skip


def settle_places(
    places: Tensor,
    filled: Tensor,
    latest: Tensor | None,
    lost: Tensor | None,
    num_places: int,
    fault: int,
) -> Tensor:
    """``places``, int64 [num_slots, parts], of slots that are filled, and -1 of others, for
    ``put_rows`` or ``accumulate_rows``: [num_slots * parts], int32 if ``num_places`` have numbers
    of 32 bits.

    ``filled`` int32 has bits of slots, 32 a word; or, with ``latest`` int32 [1], for each slot the
    number that it was filled at. The slots of which a part is a ``fault`` are added to ``lost[0]``,
    unless that is None.
    """
    num_slots, parts = places.shape
    dtype = torch.int32 if num_places < 2**31 else torch.int64
    targets = torch.empty(num_slots * parts, dtype=dtype, device=places.device)
    if targets.numel():
        tile_slots, tile_parts = _tile(parts)
        kernel = device_module("rows", interpreted=places.device.type == "cpu").settle
        given = places, filled, latest, lost, targets, num_slots, parts, fault
        start(kernel, (*given, tile_slots, tile_parts), -(-num_slots // tile_slots))
    return targets


def claim_places(places: Tensor, parts: int, faults: tuple[int, int], lost: Tensor) -> None:
    """Mark those of ``places``, int64 [num_slots * parts], that a part before them has, too.

    ``faults`` are what a part has that is out of range, and what one gets whose place is taken;
    to ``lost``, int64 [2], the slots are added that have parts of these. Places are found in a hash
    table, which takes memory for the parts and none for the places that there are; which part comes
    first does not depend on the order of the device.
    """
    num_parts = len(places)
    if not num_parts:
        return
    num_homes = 4 << (num_parts - 1).bit_length()  # a quarter is taken: hardly any looks twice
    table = torch.zeros(2, num_homes, dtype=torch.int64, device=places.device)
    homes = torch.empty_like(places)
    kernels = device_module("rows", interpreted=places.device.type == "cpu")
    given = places, table, homes, num_parts, num_homes, CLAIMS
    start(kernels.claim, given, -(-num_parts // CLAIMS), num_warps=1)
    num_slots, (tile_slots, tile_parts) = num_parts // parts, _tile(parts)
    sizes = num_slots, parts, num_homes, *faults, tile_slots, tile_parts
    start(kernels.concede, (places, table, homes, lost, *sizes), -(-num_slots // tile_slots))


def _tile(parts: int) -> tuple[int, int]:
    """Slots and parts of them that a program looks at together."""
    tile_parts = min(TILE_WORDS, 1 << (parts - 1).bit_length())
    return TILE_WORDS // tile_parts, tile_parts


def _is_made_of(word: torch.dtype, row_bytes: int, *tensors: Tensor) -> bool:
    """Whether rows of so many bytes are whole words, where the tensors lie."""
    starts = (each.storage_offset() * each.element_size() | each.data_ptr() for each in tensors)
    return not any(number % word.itemsize for number in (row_bytes, *starts))


def weigh_rows(
    gradient: Tensor,
    factors: Tensor,
    index: Tensor,
    rows: Tensor | None,
    end: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``gradient[index]`` times ``factors`` [num_taken], rounded once; and, given ``rows``, the dot
    product of every row and its gradient, in f32, or f64 for f64.

    Where ``index`` (int64 [num_taken]) is -1 nothing is read, and the results are 0. ``end`` is as
    for ``take_rows``.
    """
    gradient = gradient.contiguous()
    result = gradient.new_empty((len(index), *gradient.shape[1:]))
    accumulator = _accumulator(gradient.dtype)
    dots = None if rows is None else gradient.new_empty(len(index), dtype=accumulator)
    if result.numel():
        others = factors if rows is None else rows.contiguous()  # an address that is not used
        _launch(
            "weigh", len(index), gradient, factors, index, others, result,
            factors if dots is None else dots, len(index), end, gradient.shape[1:].numel(),
            rows is not None, _triton_dtype(accumulator),
        )  # fmt: skip
    return result, dots


def _launch(
    kernel: str,
    num_rows: int,
    first: Tensor,
    *arguments: Any,
    words: int = TILE_WORDS,
    num_warps: int = 4,
) -> None:
    interpreted = first.device.type == "cpu"
    tile_rows = INTERPRETED_ROWS if interpreted else TILE_WORDS // words
    function = getattr(device_module("rows", interpreted=interpreted), kernel)
    given = (first, *arguments, tile_rows, words)
    grid = min(-(-num_rows // tile_rows), MOST_PROGRAMS)
    start(function, given, grid, num_warps)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return tl.float64 if dtype == torch.float64 else tl.float32
