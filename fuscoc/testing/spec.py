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

from fuscoc.lang import checked as lang
from fuscoc.lang.check import check
from fuscoc.source import as_source
from fuscoc_runtime import scalar, schema


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


def describe(checked: lang.CheckedShuffle) -> schema.ShuffleSpec:
    """What the manifest says of a shuffle, as far as the spec alone decides it."""
    source = schema.SourceSpec(
        checked.source.layout,
        _fields(checked.source.fields),
        _scalars(checked.source.dims),
        tuple(schema.Subscript(_scalar(s.start), s.length) for s in checked.source.subscripts),
    )
    domain = tuple(schema.DomainIndex(i.name, _scalar(i.extent)) for i in checked.domain)
    runs = [_runs(field, source) for field in source.fields]
    strides = {dim.src_stride for dim in runs[0].run_dims if isinstance(dim.src_stride, str)}
    return schema.ShuffleSpec(
        name=checked.name,
        constants=dict(checked.constants),
        extents=checked.extents,
        inputs=tuple(
            schema.InputSpec(each.name, each.dtype, _scalars(each.shape), each.role)
            for each in checked.inputs
        ),
        domain=domain,
        num_source_dims=checked.num_source_dims,
        ragged=any(_is_ragged(each) for each in (*(i.extent for i in domain), *source.dims)),
        segment=checked.segment,
        fields=_fields(checked.fields),
        source=source,
        target=_target(checked.target),
        combine=_combine(checked.combine),
        policy=schema.PolicySpec(**vars(checked.policy)),
        src_strides=len(strides),
        runs=tuple(runs),
        relation=schema.RelationSpec("", 0, ()),
        extents_kernel=None,
        dispatch=schema.PathSpec(()),
        combine_steps=None,
        casts=tuple(schema.CastSpec(each.field, each.scales, each.block) for each in checked.casts),
    )


def _target(
    target: lang.PackedTarget | lang.DenseTarget,
) -> schema.PackedTarget | schema.DenseTarget:
    if isinstance(target, lang.DenseTarget):
        values = _scalars((target.slot, target.rank, target.length))
        return schema.DenseTarget("dense", target.layout, *values)
    return schema.PackedTarget(
        "packed",
        target.layout,
        _scalar(target.key),
        target.num_keys,
        target.align,
        target.capacity,
        schema.PlacementSpec(target.placement.kind, target.placement.table),
        target.compact,
    )


def _combine(combine: lang.Combine | None) -> schema.CombineSpec | None:
    if combine is None:
        return None
    weight = combine.weight
    if weight is None:
        return schema.CombineSpec(combine.kind, None)
    return schema.CombineSpec(
        combine.kind, schema.WeightSpec(weight.name, weight.input, weight.dtype)
    )


def _fields(fields: Sequence[lang.Field]) -> tuple[schema.FieldSpec, ...]:
    return tuple(schema.FieldSpec(each.name, each.dtype, each.shape) for each in fields)


def _scalars(scalars: Sequence[lang.Scalar]) -> tuple[scalar.Scalar, ...]:
    return tuple(_scalar(each) for each in scalars)


def _scalar(value: lang.Scalar) -> scalar.Scalar:
    match value:
        case lang.Const(number):
            return number
        case lang.IndexRef(name):
            return scalar.Index(name)
        case lang.ExtentRef(name):
            return scalar.Extent(name)
        case lang.Load(name, at):
            return scalar.Load(name, _scalars(at))
        case lang.BinaryOp(op, lhs, rhs):
            return scalar.BinaryOp(op, _scalar(lhs), _scalar(rhs))


def _is_ragged(value: scalar.Scalar) -> bool:
    return any(isinstance(part, scalar.Load) for part in scalar.subexpressions(value))


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
