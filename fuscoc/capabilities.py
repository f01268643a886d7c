"""What a backend cannot do: a table for each, of predicates on the checked shuffle.

``fuscoc check``, editors and the pipeline ask the same tables, and no predicate needs MLIR. Code
generators rely on them: a shuffle that no entry objects to has kernels, and a pass that fails on it
is a fault of fuscoc. Even what depends on tile sizes is known here: they follow from the fields.

Kernels inside one node keep to ``align``, ``compact`` and ``capacity``. ``balance``, ``schedule``
and ``slice`` are about what crosses the network, where there are none of these kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TypeAlias

from fuscoc.codegen.cuda_tiles import LINE_BYTES, TARGETS, num_passes, planner_bytes
from fuscoc.codegen.cuda_types import (
    COMBINED,
    MAX_RANKS,
    CudaCast,
    CudaField,
    num_columns,
    unit_bytes,
)
from fuscoc.diagnostics import DiagnosticSink, Label
from fuscoc.lang.agreed import agreed_extents
from fuscoc.lang.checked import (
    CheckedShuffle,
    Combine,
    Const,
    DenseTarget,
    IndexRef,
    PackedTarget,
)
from fuscoc.lang.padding import DEFAULT_PADDING, PADDINGS
from fuscoc.lang.reductions import REDUCTIONS
from fuscoc.lang.scalars import loads
from fuscoc.source import Span

MAX_FANOUT = 32  # a warp looks at whole groups of segments, a lane a point
MAX_FIELDS = 8
MAX_INPUTS = 8  # and as many run-time extents
MAX_PADDING = 2**30  # slots that align adds on one rank, at most: kernels count slots in 32 bits
MAX_TRITON_FANOUT = 1024  # the points of a segment are a vector of one program
MAX_COLUMNS = 1 << 16  # counts of all keys of all ranks are in the windows


@dataclass(frozen=True)
class Fault:
    """What keeps a backend from a shuffle: where the spec says it, and the reason in words."""

    span: Span
    reason: str


Faults: TypeAlias = Iterator[Fault]
Entry: TypeAlias = Callable[[CheckedShuffle], Faults]
Table: TypeAlias = tuple[Entry, ...]


def find_fault(shuffle: CheckedShuffle, table: Table) -> Fault | None:
    """The first fault that a table finds, None if the backend has kernels for the shuffle.

    Entries are asked in order: later ones may assume what earlier ones make sure of.
    """
    return next((fault for entry in table for fault in entry(shuffle)), None)


def check_demanded(shuffle: CheckedShuffle, sink: DiagnosticSink) -> None:
    """Report FSC071 if the shuffle demands a backend that cannot do it."""
    backend = shuffle.policy.backend
    fault = find_fault(shuffle, DEMANDED[backend])
    if fault is not None:
        sink.report(
            "FSC071",
            fault.span,
            f"not yet supported: `backend {backend}` for `{shuffle.name}`",
            fault.reason,
            secondary=[Label(shuffle.option_span("backend"), "demanded here")],
            help=f"leave out `backend {backend}`: `backend auto` takes CUDA where it can, and "
            "Triton elsewhere",
        )


def demands_triton(shuffle: CheckedShuffle) -> Faults:
    if shuffle.policy.backend == "triton":
        yield Fault(shuffle.option_span("backend"), "the spec says `backend triton`")


def demands_cuda(shuffle: CheckedShuffle) -> Faults:
    if shuffle.policy.backend == "cuda":
        yield Fault(shuffle.option_span("backend"), "the spec says `backend cuda`")


def repeats_rows(shuffle: CheckedShuffle) -> Faults:
    """A row is stored to a rank once, and that rank sums up what it sends back of a segment."""
    dedup = shuffle.policy.dedup
    if "rank" not in dedup:
        said = ", ".join(dedup) or "none"
        reason = f"it says `dedup({said})`, and these kernels send a segment to a rank once"
        yield Fault(shuffle.option_span("dedup"), reason)


def pads_far(shuffle: CheckedShuffle) -> Faults:
    target = _packed(shuffle)
    if target.num_keys * (PADDINGS[target.padding](target.align) + 1) > MAX_PADDING:
        padding = f"{target.num_keys} keys from multiples of {target.align} on"
        yield Fault(target.span, f"it has {padding}, more slots than its kernels count")


def fans_out_far(shuffle: CheckedShuffle) -> Faults:
    return _fans_out_beyond(shuffle, MAX_FANOUT)


def fans_out_very_far(shuffle: CheckedShuffle) -> Faults:
    return _fans_out_beyond(shuffle, MAX_TRITON_FANOUT)


def _fans_out_beyond(shuffle: CheckedShuffle, most: int) -> Faults:
    if shuffle.fanout > most:
        fan_out = shuffle.fan_out
        sizes = [each.extent.value for each in fan_out if isinstance(each.extent, Const)]
        reason = f"a segment has {shuffle.fanout} destinations, more than {most}"
        yield Fault(fan_out[sizes.index(max(sizes))].span, reason)


def replies(shuffle: CheckedShuffle) -> Faults:
    """A row comes back as it went, to the segment that it came from."""
    way_back = _reply(shuffle)
    if way_back is not None:
        reason = "its reply has rows of its own, and these kernels bring back those that they sent"
        yield Fault(way_back.span, reason)


def replies_from_given_slots(shuffle: CheckedShuffle) -> Faults:
    """A reply goes by the slot codes of points, which kernels of pieces have none of."""
    way_back = _reply(shuffle)
    if way_back is not None and not isinstance(shuffle.target, PackedTarget):
        reason = "its reply is of a dense target, whose slots these kernels keep for pieces alone"
        yield Fault(way_back.span, reason)


def answers(shuffle: CheckedShuffle) -> Faults:
    """A reply comes back by kernels of its own, which are of the same kind."""
    fault = None if shuffle.reply is None else find_fault(shuffle.reply, TRITON_NODE)
    if fault is not None:
        yield fault


def _reply(shuffle: CheckedShuffle) -> Combine | None:
    """The way back of a reply, or of the dispatch that has one."""
    if shuffle.reply is not None:
        return shuffle.reply.combine
    return shuffle.combine if shuffle.is_reply else None


def places_segments(shuffle: CheckedShuffle) -> Faults:
    """Whether segments lie apart is checked with their slots, where each has one."""
    combine = shuffle.combine
    if combine is not None and combine.checks_cells:
        many = len(shuffle.domain) > shuffle.num_source_dims
        if many or not isinstance(shuffle.target, DenseTarget):
            reason = "inputs say where its segments lie, and some have other than one given slot"
            yield Fault(shuffle.source.span, reason)


def goes_everywhere_unlike_rows(shuffle: CheckedShuffle) -> Faults:
    """To every rank go rows of whole words as they lie in the source, and their sum comes back."""
    if shuffle.every_rank is None:
        return
    reason = _unlike_rows(shuffle)
    if reason is not None:
        yield Fault(shuffle.every_rank.span, f"a segment goes to all ranks, and {reason}")


def _unlike_rows(shuffle: CheckedShuffle) -> str | None:
    if isinstance(shuffle.target, PackedTarget):
        return "its slots are not given"
    if any(loads(each) for each in [*(i.extent for i in shuffle.domain), *shuffle.source.dims]):
        return "inputs say how many there are"
    own = shuffle.domain[: shuffle.num_source_dims]
    indices = [IndexRef(each.name) for each in own]
    in_order = [each.start for each in shuffle.source.subscripts] == indices
    in_order &= list(shuffle.source.dims[1:]) == [each.extent for each in own[1:]]
    if not in_order or any(each.length is not None for each in shuffle.source.subscripts):
        return "does not lie where the one before it ends"
    if len(shuffle.domain) > len(own) + 1 or shuffle.casts or len(shuffle.fields) > 1:
        return "is more than one row as it lies in the source"
    if unit_bytes(_arriving(shuffle)[0]) < LINE_BYTES:
        return f"is no multiple of {LINE_BYTES} bytes"
    combine = shuffle.combine
    if combine is not None and (combine.kind != "sum" or combine.weight is not None):
        return "what comes back is not a plain sum"
    return None


def compares_extents(shuffle: CheckedShuffle) -> Faults:
    """What a rank says of its sizes there is how many slots and segments it has."""
    for name in agreed_extents(shuffle.target):
        reason = f"all ranks must give the same `{name}`, which these kernels do not compare"
        yield Fault(shuffle.target.span, reason)


def has_many_fields(shuffle: CheckedShuffle) -> Faults:
    fields = max(shuffle.fields, shuffle.source.fields, key=len)
    if len(fields) > MAX_FIELDS:
        reason = f"a segment has {len(fields)} fields, more than {MAX_FIELDS}"
        yield Fault(fields[MAX_FIELDS].span, reason)


def weighs_in_f64(shuffle: CheckedShuffle) -> Faults:
    """Weights travel in f32, beside the slot of their point."""
    weight = shuffle.combine.weight if shuffle.combine is not None else None
    wide = any(field.dtype == "f64" for field in shuffle.source.fields)
    if weight is not None and weight.dtype == "f64" and wide:
        yield Fault(weight.span, "its weights are f64, and so are what they weigh")


def has_many_inputs(shuffle: CheckedShuffle) -> Faults:
    inputs = [given for given in shuffle.inputs if given.role != "weight"]
    if len(inputs) > MAX_INPUTS:
        yield Fault(inputs[MAX_INPUTS].span, f"it has more than {MAX_INPUTS} inputs")


def has_many_extents(shuffle: CheckedShuffle) -> Faults:
    if len(shuffle.extents) > MAX_INPUTS:
        yield Fault(shuffle.dispatch_span, f"it has more than {MAX_INPUTS} run-time extents")


def casts_long_rows(shuffle: CheckedShuffle) -> Faults:
    """A row is cast in one part, in the buffer of a warp."""
    if shuffle.casts:
        fields, leaving = _arriving(shuffle), _leaving(shuffle)
        names = {field.name for field in leaving}
        casts = [
            CudaCast(
                each.field,
                each.scales,
                each.block,
                each.scales in names,
                *(each.normalise.constants.values() if each.normalise is not None else ()),
            )
            for each in shuffle.casts
            if not each.given
        ]
        if any(num_passes(fields, leaving, casts, target) > 1 for target in TARGETS):
            span = shuffle.casts[0].span
            yield Fault(span, "a row that is cast is too long for shared memory")


def computes_slowly(shuffle: CheckedShuffle) -> Faults:
    """A warp gathers and casts a row at a time, which takes half as long again as by Triton."""
    for cast in shuffle.casts:
        if cast.normalise is not None and not cast.given and shuffle.policy.backend != "cuda":
            reason = (
                "its cast computes, which Triton's kernels do faster: `backend cuda` takes these"
            )
            yield Fault(cast.span, reason)


def computes_with_inputs(shuffle: CheckedShuffle) -> Faults:
    """Their casts have numbers of the text."""
    for cast in shuffle.casts:
        if cast.given:
            name = cast.given[0].input
            yield Fault(cast.span, f"its cast computes with `{name}`, which a call gives")


def has_many_keys(shuffle: CheckedShuffle) -> Faults:
    target = _packed(shuffle)
    needed = planner_bytes(num_columns(target.num_keys, target.compact))
    if any(needed > each.room for each in TARGETS):
        reason = f"{target.num_keys} keys do not fit in the planner's shared memory"
        yield Fault(target.span, reason)


def pads_otherwise(shuffle: CheckedShuffle) -> Faults:
    """None of the language's own rules: the device headers know that one alone."""
    target = _packed(shuffle)
    if target.padding != DEFAULT_PADDING:
        yield Fault(target.span, f"the slots of its keys are `{target.padding}`")


def reduces_otherwise(shuffle: CheckedShuffle) -> Faults:
    """None of the language's own reductions: one that was added without an element type."""
    combine = shuffle.combine
    if combine is not None and combine.kind not in COMBINED:
        yield Fault(combine.span, f"its combine makes {REDUCTIONS[combine.kind].noun}")


def has_very_many_keys(shuffle: CheckedShuffle) -> Faults:
    target = _packed(shuffle)
    if num_columns(target.num_keys, target.compact) > MAX_COLUMNS:
        most = MAX_COLUMNS - (MAX_RANKS if target.compact else 0)
        yield Fault(target.span, f"it has {target.num_keys} keys, more than {most}")


def of_packed(entry: Entry) -> Entry:
    """An entry for packed targets alone."""

    @wraps(entry)
    def asked(shuffle: CheckedShuffle) -> Faults:
        if isinstance(shuffle.target, PackedTarget):
            yield from entry(shuffle)

    return asked


# What neither kind of kernels inside one node can do.
_NODE: Table = (
    repeats_rows,
    of_packed(pads_far),
    weighs_in_f64,
    places_segments,
    compares_extents,
)

CUDA: Table = (
    demands_triton,
    replies,
    *_NODE,
    goes_everywhere_unlike_rows,
    fans_out_far,
    has_many_fields,
    has_many_inputs,
    has_many_extents,
    computes_with_inputs,
    casts_long_rows,
    computes_slowly,
    of_packed(has_many_keys),
)
"""CUDA kernels, which work inside one node."""

TRITON_NODE: Table = (
    demands_cuda,
    replies_from_given_slots,
    *_NODE,
    fans_out_very_far,
    of_packed(has_very_many_keys),
    answers,
)
"""Triton kernels of fixed capacity inside one node."""

NODE_KERNELS = {
    "cuda": (*CUDA, reduces_otherwise, of_packed(pads_otherwise)),
    "triton": TRITON_NODE,
}
"""Kernels of fixed capacity inside one node, by what prints them, also where a reduction or a
padding was added to the language."""

GENERAL: Table = ()
"""Triton kernels for any ranks do all that the language accepts: what they cannot is refused where
the text says it, by the codes from FSC061 to FSC070."""

DEMANDED = {"auto": GENERAL, "triton": GENERAL, "cuda": NODE_KERNELS["cuda"]}
"""What ``backend`` insists on."""


def _packed(shuffle: CheckedShuffle) -> PackedTarget:
    assert isinstance(shuffle.target, PackedTarget), "of_packed asks only then"
    return shuffle.target


def _leaving(shuffle: CheckedShuffle) -> tuple[CudaField, ...]:
    """The fields of a segment in the source."""
    return tuple(
        CudaField(field.name, field.dtype, math.prod(field.shape), math.prod(cell.shape))
        for field, cell in zip(shuffle.source.segment_fields, shuffle.source.fields, strict=True)
    )


def _arriving(shuffle: CheckedShuffle) -> tuple[CudaField, ...]:
    """The fields of a row of the target."""
    sizes = [(field, math.prod(field.shape)) for field in shuffle.fields]
    return tuple(CudaField(field.name, field.dtype, size, size) for field, size in sizes)
