"""A checked spec as its manifest says it, derived without the compiler's back half.

What the artifact of a spec says is compared with this, so it shares nothing with the passes: the
copy shape is worked out again here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.source import as_source
from fuscoc.spec_json import spec_json
from fuscoc_runtime import scalar, schema
from fuscoc_runtime.decode import decode


class UnknownShuffleError(ValueError):
    """A shuffle that the spec has not; the message lists those that it has."""


@dataclass(frozen=True, repr=False)
class Spec:
    """One shuffle of a ``.fsc`` text.

    ``shuffle`` is the manifest's description of it without anything that is only known after
    compiling: no kernels, no steps, and ``unit_bytes`` of 1.
    """

    text: str
    shuffle: schema.ShuffleSpec

    def with_policy(self, **changes: Any) -> Spec:
        """The same shuffle with other options, e.g. ``balance="split"``; the text stays."""
        policy = replace(self.shuffle.policy, **changes)
        return Spec(self.text, replace(self.shuffle, policy=policy))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """How hypothesis shows it in a falsifying example."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        return f"Spec({self.shuffle.name}):\n{self.text.strip()}\n"


def load_spec(source: str | Path, name: str | None = None, **defines: int) -> Spec:
    """Check a spec, given as a path or as its text; ``name`` chooses between several shuffles.

    ``defines`` overrides constants of the spec.

    Raises:
        CompileError: the spec has errors.
        UnknownShuffleError: it has no shuffle of that name, or several and no name is given.
    """
    found = {spec.shuffle.name: spec for spec in load_specs(source, **defines)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        question = "which of them?" if name is None else f"there is no `{name}`"
        raise UnknownShuffleError(f"the spec holds {', '.join(found)}: {question}")
    return found[name]


def load_specs(source: str | Path, **defines: int) -> list[Spec]:
    """Every shuffle of a spec; see ``load_spec``."""
    file = as_source(source)
    return [Spec(file.text, describe(each)) for each in check(file, defines)]


def describe(checked: CheckedShuffle) -> schema.ShuffleSpec:
    """What the manifest says of a shuffle, as far as the spec alone decides it."""
    unknown = {
        "ragged": False,
        "src_strides": 0,
        "runs": [],
        "relation": {"kernel": "", "block": 0, "outputs": []},
        "extents_kernel": None,
        "dispatch": {"steps": [], "dtypes": {}},
        "combine_steps": None,
        "baked": {},
    }
    spec = decode(schema.ShuffleSpec, {**spec_json(checked), **unknown})
    source = spec.source
    runs = tuple(_runs(field, source) for field in source.fields)
    strides = {dim.src_stride for dim in runs[0].run_dims if isinstance(dim.src_stride, str)}
    sizes = (*(index.extent for index in spec.domain), *source.dims)
    parts = [part for size in sizes for part in scalar.subexpressions(size)]
    ragged = any(isinstance(part, scalar.Load) for part in parts)
    return replace(spec, ragged=ragged, src_strides=len(strides), runs=runs)


Stride = tuple[int, tuple[str, ...]]
"""A product: a number, and run-time sizes as text, sorted."""


def _runs(field: schema.FieldSpec, source: schema.SourceSpec) -> schema.FieldRuns:
    """The contiguous run of a segment's block of cells, and the loops around it.

    Neighbouring dimensions of the block are one loop where the outer one's stride is the inner
    one's stride times its count.
    """
    loops: list[tuple[int, Stride]] = [(1, (1, ()))]  # innermost first; the first is the run
    stride: Stride = (1, ())
    for subscript, dim in zip(reversed(source.subscripts), reversed(source.dims), strict=True):
        length = subscript.length or 1
        count, inner = loops[-1]
        if length > 1:
            if stride == (inner[0] * count, inner[1]):
                loops[-1] = (count * length, inner)
            else:
                loops.append((length, stride))
        stride = _times(stride, dim)
    run_cells, dims = loops[0][0], []
    cells, names = run_cells, [each for _, each in reversed(loops[1:]) if each[1]]
    for count, each in loops[1:]:
        src_stride = f"src_stride{names.index(each)}" if each[1] else each[0]
        dims.append(schema.RunDim(count, src_stride, cells * field.num_elems))
        cells *= count
    return schema.FieldRuns(
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
