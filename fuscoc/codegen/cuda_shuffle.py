"""Checked shuffle -> CUDA kernels, or the reason why the CUDA backend has none for it.

The CUDA backend fuses all steps of a path into one kernel, so of the IR it takes the relation, and
nothing that the passes decide about steps and lists. What it supports follows from the checked
shuffle, and ``fuscoc check`` can tell it without loading MLIR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import fuscoc
from fuscoc.codegen.cuda import CudaSource, print_cuda
from fuscoc.codegen.cuda_tiles import CudaTarget
from fuscoc.codegen.cuda_types import (
    MAX_PADDING,
    CudaCast,
    CudaField,
    CudaInput,
    CudaShuffle,
    Unsupported,
)
from fuscoc.lang.checked import (
    CheckedShuffle,
    Const,
    IndexRef,
    Inside,
    PackedTarget,
    Scalar,
    Source,
    Subscript,
)
from fuscoc.lang.scalars import loads, parts

# Tiles fill a CTA's shared memory, so each generation with less of it has kernels of its own.
TARGETS = (CudaTarget("sm_90", 227 * 1024), CudaTarget("sm_80", 163 * 1024))


@dataclass(frozen=True)
class CudaVariant:
    """The kernels for the GPUs from ``target`` on, and their file in an artifact."""

    target: CudaTarget
    file: str
    source: CudaSource


@dataclass(frozen=True)
class CudaKernels:
    """A shuffle's CUDA kernels; ``inputs`` are the relation's, in the order of the call."""

    inputs: tuple[str, ...]
    weighted: bool
    variants: tuple[CudaVariant, ...]

    def variant(self, arch: str) -> CudaVariant | None:
        """The kernels that serve a GPU such as ``sm_90``; None for one that is too old."""
        number = int(arch.removeprefix("sm_"))
        fitting = (v for v in self.variants if int(v.target.arch.removeprefix("sm_")) <= number)
        return next(fitting, None)


def check_cuda(checked: CheckedShuffle) -> None:
    """Raise ``Unsupported`` where ``cuda_kernels`` would; no module is needed to know that."""
    _kernels(checked, cuda_shuffle(checked), relation="")


def cuda_kernels(checked: CheckedShuffle, module: Any) -> CudaKernels:
    """The CUDA kernels of a shuffle; ``module`` is its own, from coalesce-segments on.

    Raises:
        Unsupported: the backend has none for it; the message says why.
    """
    from fuscoc.codegen.cuda_relation import print_relation  # loads MLIR

    shuffle = cuda_shuffle(checked)
    return _kernels(checked, shuffle, print_relation(module, shuffle))


def _kernels(checked: CheckedShuffle, shuffle: CudaShuffle, relation: str) -> CudaKernels:
    header = _header(checked)
    variants = []
    for target in TARGETS:
        suffix = "" if target is TARGETS[0] else f".{target.arch}"
        source = print_cuda(shuffle, relation, target, header=header)
        variants.append(CudaVariant(target, f"kernels/{checked.name}{suffix}.cu", source))
    names = tuple(given.name for given in shuffle.inputs)
    return CudaKernels(names, shuffle.weighted, tuple(variants))


def cuda_shuffle(checked: CheckedShuffle) -> CudaShuffle:
    """What the CUDA backend needs to know of a shuffle.

    Raises:
        Unsupported: the shuffle is of a kind that the device headers do not know.
    """
    source, target, combine = checked.source, checked.target, checked.combine
    if not isinstance(target, PackedTarget):
        raise Unsupported("its target is dense, not `packed`")
    if target.num_keys * target.align > MAX_PADDING:
        padding = f"{target.num_keys} keys from multiples of {target.align} on"
        raise Unsupported(f"it has {padding}, more slots than its kernels count")
    if any(loads(size) for size in (*source.dims, *(i.extent for i in checked.domain))):
        raise Unsupported("its extents vary with the data")
    scalars = (target.key, *(each.start for each in source.subscripts))
    if any(isinstance(part, Inside) for scalar in scalars for part in parts(scalar)):
        raise Unsupported("where it looks values or segments up is read from an input")
    if not _is_contiguous(source):
        raise Unsupported(f"a segment of `{source.layout}` is not contiguous")
    if combine is not None:
        if len(source.fields) > 1:
            raise Unsupported(f"its combine takes back {len(source.fields)} fields")
        if combine.weight is not None and combine.weight.dtype != "f32":
            raise Unsupported(f"its weights are {combine.weight.dtype}, not f32")
        if not _is_in_order(checked):
            entries = f"the entries of `{source.layout}`, one each and in order"
            raise Unsupported(f"it has a combine, and its segments are not {entries}")
    return CudaShuffle(
        name=checked.name,
        spec=checked.source_file.plain_name,
        fields=_arriving(checked) if checked.casts else _leaving(source),
        extents=checked.extents,
        inputs=tuple(
            CudaInput(given.name, given.dtype) for given in checked.inputs if given.role != "weight"
        ),
        fanout=checked.fanout,
        num_keys=target.num_keys,
        align=target.align,
        combine="none" if combine is None else combine.kind,
        weighted=combine is not None and combine.weight is not None,
        casts=tuple(CudaCast(cast.field, cast.scales, cast.block) for cast in checked.casts),
        source_fields=_leaving(source) if checked.casts else (),
        compact=target.compact,
    )


def _leaving(source: Source) -> tuple[CudaField, ...]:
    """The fields of a segment in the source."""
    return tuple(
        CudaField(field.name, field.dtype, math.prod(field.shape), math.prod(cell.shape))
        for field, cell in zip(source.segment_fields, source.fields, strict=True)
    )


def _arriving(checked: CheckedShuffle) -> tuple[CudaField, ...]:
    """The fields of a row of the target."""
    sizes = [(field, math.prod(field.shape)) for field in checked.fields]
    return tuple(CudaField(field.name, field.dtype, size, size) for field, size in sizes)


def _is_contiguous(source: Source) -> bool:
    """Whether a segment's cells follow each other: whole dimensions behind its first range."""
    ranges = [position for position, each in enumerate(source.subscripts) if _spans(each)]
    inner = slice(ranges[0] + 1, None) if ranges else slice(0)
    return all(map(_is_whole, source.subscripts[inner], source.dims[inner]))


def _spans(subscript: Subscript) -> bool:
    return subscript.length is not None and subscript.length > 1


def _is_whole(subscript: Subscript, dim: Scalar) -> bool:
    return subscript.start == Const(0) and dim == Const(subscript.length or 1)


def _is_in_order(checked: CheckedShuffle) -> bool:
    """Whether segment i lies behind segment i - 1, and together they are the whole source."""
    outer = checked.num_source_dims
    subscripts, dims = checked.source.subscripts, checked.source.dims
    return (
        len(subscripts) >= outer
        and all(
            subscript.start == IndexRef(index.name) and dim == index.extent
            for subscript, dim, index in zip(
                subscripts[:outer], dims[:outer], checked.domain[:outer], strict=True
            )
        )
        and not any(map(_spans, subscripts[:outer]))
        and all(map(_is_whole, subscripts[outer:], dims[outer:]))
    )


def _header(checked: CheckedShuffle) -> tuple[str, ...]:
    """The spec's own words for what the kernels do, with their lines."""
    source, target = checked.source_file, checked.target
    spans = [*(field.span for field in checked.fields), *(given.span for given in checked.inputs)]
    if isinstance(target, PackedTarget):
        spans.append(target.placement.span)
    spans.append(checked.dispatch_span)
    spans += [checked.combine.span] if checked.combine is not None else []
    lines = sorted({line for span in spans for line in source.lines(span)})
    title = f"// Shuffle `{checked.name}` in {source.plain_name}, by fuscoc {fuscoc.__version__}."
    return (f"{title} Do not edit.", "//", *source.quoted(lines, "//"))
