"""Checked shuffle -> CUDA kernels, for a shuffle that the table of their faults lets through.

The CUDA backend fuses all steps of a path into one kernel, so of the IR it takes the relation, and
nothing that the passes decide about steps and lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import fuscoc
from fuscoc.capabilities import CUDA, find_fault
from fuscoc.codegen.cuda import CudaSource, print_cuda
from fuscoc.codegen.cuda_relation import print_relation
from fuscoc.codegen.cuda_tiles import TARGETS, CudaTarget
from fuscoc.codegen.cuda_types import (
    CudaCast,
    CudaInput,
    CudaShuffle,
    arriving_fields,
    leaving_fields,
)
from fuscoc.lang.checked import (
    CheckedShuffle,
    PackedTarget,
)


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


def cuda_kernels(checked: CheckedShuffle, module: Any) -> CudaKernels:
    """The CUDA kernels of a shuffle, which has them: ``capabilities.CUDA`` finds no fault.

    ``module`` is its own, from coalesce-segments on.
    """
    assert find_fault(checked, CUDA) is None
    shuffle, header = cuda_shuffle(checked), _header(checked)
    relation = print_relation(module, shuffle)
    variants = []
    for target in TARGETS:
        suffix = "" if target is TARGETS[0] else f".{target.arch}"
        source = print_cuda(shuffle, relation, target, header=header)
        variants.append(CudaVariant(target, f"kernels/{checked.name}{suffix}.cu", source))
    names = tuple(given.name for given in shuffle.inputs)
    return CudaKernels(names, shuffle.weighted, tuple(variants))


def cuda_shuffle(checked: CheckedShuffle) -> CudaShuffle:
    """What the kernels of one node need to know of a shuffle that has some."""
    target, combine = checked.target, checked.combine
    assert isinstance(target, PackedTarget)
    return CudaShuffle(
        name=checked.name,
        spec=checked.source_file.plain_name,
        fields=arriving_fields(checked) if checked.casts else leaving_fields(checked),
        extents=checked.extents,
        inputs=tuple(
            CudaInput(given.name, given.dtype) for given in checked.inputs if given.role != "weight"
        ),
        fanout=checked.fanout,
        num_keys=target.num_keys,
        align=target.align,
        combine=combine.kind if combine is not None else None,
        weighted=combine is not None and combine.weight is not None,
        casts=tuple(CudaCast(cast.field, cast.scales, cast.block) for cast in checked.casts),
        source_fields=leaving_fields(checked) if checked.casts else (),
        compact=target.compact,
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
