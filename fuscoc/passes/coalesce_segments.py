"""fsc.relate (a block of cells) -> fsc.point (an address), and the shuffle's copy shape ``runs``.

A block is a nest of loops over the source's dimensions, innermost last. Two neighbouring loops are
one when the outer stride is the inner stride times the inner count; what is left at stride one is
the contiguous run. Strides that only the run knows become operands of ``fsc.point``. Where a
segment has its cells in another order than the source, the loops are nested as it has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.dtypes import num_bytes
from fuscoc.dialect.expressions import Monomial, expression, monomial
from fuscoc.dialect.l0 import Shuffle
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.relation import CellBase, Point, Relate, segment_divisor
from fuscoc.dialect.runs import UNITS


@dataclass(frozen=True)
class Loop:
    """``count`` steps of ``stride`` cells in the source, where dimension ``dim`` advances."""

    count: int
    stride: Monomial
    dim: int


@dataclass(frozen=True)
class Block:
    """The cells of one segment: runs of ``run_cells`` inside ``loops``, outermost first.

    ``columns`` names the strides that only the run knows. ``divisor`` divides them and the first
    cell of every segment.
    """

    run_cells: int
    loops: tuple[Loop, ...]
    columns: Mapping[Monomial, str]
    divisor: int

    def field_runs(self, name: str, type: tuple[str, tuple[int, ...]]) -> dict[str, Any]:
        """The copy shape of a field whose cells have this dtype and shape."""
        dtype, cell_elems = type[0], prod(type[1])
        run_dims: list[dict[str, Any]] = []
        seg_cells = self.run_cells
        for loop in reversed(self.loops):
            src_stride = self.columns.get(loop.stride, loop.stride.constant)
            dst_stride = seg_cells * cell_elems
            run_dims.append(
                {"count": loop.count, "src_stride": src_stride, "dst_stride": dst_stride}
            )
            seg_cells *= loop.count
        constants = [loop.stride.constant for loop in self.loops if loop.stride not in self.columns]
        cells = gcd(self.divisor, self.run_cells, *constants)
        unit = gcd(cells * cell_elems * num_bytes(dtype), max(UNITS))
        return {
            "name": name,
            "dtype": dtype,
            "cell_elems": cell_elems,
            "seg_elems": seg_cells * cell_elems,
            "run_elems": self.run_cells * cell_elems,
            "run_dims": tuple(reversed(run_dims)),
            "unit_bytes": unit,
            "copy_dtype": UNITS[unit],
        }


def run(module: Any) -> None:
    for shuffle in ops_of(module, Shuffle):
        _coalesce(shuffle)


def block_loops(
    lengths: Sequence[int], dims: Sequence[Monomial], order: Sequence[int] = ()
) -> tuple[int, list[Loop]]:
    """The cells of one contiguous run, and the loops around it, outermost first.

    ``dims`` are the extents of the dimensions but the outermost.
    ``order`` are the dimensions as the segment has them, if that is not as the source does.
    """
    strides = [Monomial(1)]
    for size in reversed(dims):
        strides.insert(0, strides[0] * size)
    loops: list[Loop] = []
    for dim in reversed(order or range(len(lengths))):
        if lengths[dim] > 1:
            inner = loops[-1] if loops else None
            if inner is not None and strides[dim] == inner.stride * Monomial(inner.count):
                loops[-1] = replace(inner, count=inner.count * lengths[dim])
            else:
                loops.append(Loop(lengths[dim], strides[dim], dim))
    if loops and loops[0].stride == Monomial(1):
        return loops[0].count, loops[:0:-1]
    return 1, loops[::-1]


def _coalesce(shuffle: Any) -> None:
    relate = terminator(shuffle, 1, Relate)
    lengths, dims = relate.read("lengths"), list(relate.dims)
    sizes, order = [monomial(expression(dim)) for dim in dims], relate.read("order") or ()
    run_cells, loops = block_loops(lengths, sizes, order)
    dynamic = [loop for loop in loops if loop.stride.factors]
    columns = {loop.stride: f"src_stride{i}" for i, loop in enumerate(dynamic)}
    with ir.InsertionPoint(relate), relate.location:
        offset = _offset(relate, ragged=shuffle.read("ragged"))
        strides = [_product(dims[loop.dim :]) for loop in dynamic]
        Point.build(offset, relate.rank, relate.place, strides)
    relate.operation.erase()

    block = Block(run_cells, tuple(loops), columns, segment_divisor(shuffle))
    runs = [block.field_runs(**cell) for cell in shuffle.follow("source").read("cells")]
    shuffle.attributes["runs"] = shuffle.attrs["runs"].encode(runs)


def _offset(relate: Any, *, ragged: bool) -> Any:
    """The first cell of the block, counted from the first cell of the source."""
    starts, dims = list(relate.starts), list(relate.dims)
    if ragged:
        base = CellBase.build(starts[0]).result
        if len(starts) == 1:
            return base
        return arith.addi(base, _row_major(starts[1:], dims[1:]))
    return _row_major(starts, dims)


def _row_major(indices: list[Any], inner: list[Any]) -> Any:
    """Where an element lies; ``inner`` are the extents but the outermost."""
    offset = indices[0]
    for index, dim in zip(indices[1:], inner, strict=True):
        offset = arith.addi(arith.muli(offset, dim), index)
    return offset


def _product(values: list[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = arith.muli(result, value)
    return result
