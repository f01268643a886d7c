"""How a segment lies in its source, worked out from what the spec declares alone.

Shares nothing with the passes, which work it out on IR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fuscoc_runtime import scalar
from fuscoc_runtime.manifest.declared import Declared, FieldSpec, SourceSpec
from fuscoc_runtime.manifest.program import FieldRuns, RunDim

Stride = tuple[int, tuple[str, ...]]
"""A product: a number, and run-time sizes as text, sorted."""


def is_ragged(declared: Declared) -> bool:
    """Whether a size is looked up in an input."""
    sizes = (*(index.extent for index in declared.domain), *declared.source.dims)
    parts = [part for size in sizes for part in scalar.subexpressions(size)]
    return any(isinstance(part, scalar.Load) for part in parts)


def copy_shape(runs: FieldRuns) -> FieldRuns:
    """Without the width of its loads and stores."""
    return replace(runs, unit_bytes=1, copy_dtype="i8")


def expected_runs(field: FieldSpec, source: SourceSpec) -> FieldRuns:
    """The contiguous run of a segment's block of cells, and the loops around it.

    Neighbouring dimensions of the block are one loop where the outer one's stride is the inner
    one's stride times its count.
    """
    loops: list[tuple[int, Stride]] = [(1, (1, ()))]  # innermost first; the first is the run
    strides: list[Stride] = [(1, ())]
    for dim in reversed(source.dims[1:]):
        strides.insert(0, _times(strides[0], dim))
    for at in reversed(source.order or range(len(source.subscripts))):
        length = source.subscripts[at].length or 1
        count, inner = loops[-1]
        if length > 1:
            if strides[at] == (inner[0] * count, inner[1]):
                loops[-1] = (count * length, inner)
            else:
                loops.append((length, strides[at]))
    run_cells, dims = loops[0][0], []
    cells, names = run_cells, [each for _, each in reversed(loops[1:]) if each[1]]
    for count, each in loops[1:]:
        src_stride = f"src_stride{names.index(each)}" if each[1] else each[0]
        dims.append(RunDim(count, src_stride, cells * field.num_elems))
        cells *= count
    return FieldRuns(
        name=field.name,
        dtype=field.dtype,
        run_elems=run_cells * field.num_elems,
        run_dims=tuple(reversed(dims)),
        seg_elems=cells * field.num_elems,
        cell_elems=field.num_elems,
        unit_bytes=1,
        copy_dtype="i8",
    )


def _times(stride: Stride, dim: scalar.Scalar) -> Stride:
    factors = list(_factors(dim))
    number = math.prod(each for each in factors if isinstance(each, int))
    sizes = [scalar.render(each) for each in factors if not isinstance(each, int)]
    return stride[0] * number, tuple(sorted([*stride[1], *sizes]))


def _factors(dim: scalar.Scalar) -> Sequence[scalar.Scalar]:
    if isinstance(dim, scalar.BinaryOp) and dim.op == "*":
        return [*_factors(dim.lhs), *_factors(dim.rhs)]
    return [dim]
