"""What there is to say of a shuffle, printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from fuscoc.explain import facts, fixed
from fuscoc.explain.backends import TRITON_FIXED, backends
from fuscoc.explain.formula import Formula, Symbol, of_scalar, product, text, with_values
from fuscoc.explain.tiles import sizes
from fuscoc.lang.dtypes import ITEM_BYTES, spelled
from fuscoc.lang.reductions import REDUCTIONS
from fuscoc.tables import titled_table
from fuscoc_runtime.comm.results import FEW_SMS, LENT_BYTES
from fuscoc_runtime.engine.bounds import extents_of
from fuscoc_runtime.engine.node.state import ALIGNMENT
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.manifest.declared import (
    Bound,
    CastSpec,
    ComputedNumbers,
    FieldSpec,
    GivenNumbers,
    Numbers,
)
from fuscoc_runtime.manifest.program import LaunchStep, PathSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology

if TYPE_CHECKING:
    from fuscoc_runtime.plan import Plan


def show(
    shuffle: ShuffleSpec,
    values: Mapping[str, int],
    topology: Topology | None,
    plan: Plan | None,
    target_dims: Sequence[Formula],
    console: Console,
) -> None:
    """Print everything about one shuffle.

    ``values``: the numbers that are known. ``plan``: that of a static shuffle on the topology.
    ``target_dims``: as in ``facts.layouts``.
    """
    console.print(f"[bold]{shuffle.name}[/]", highlight=False)
    for line in _summary(shuffle, values):
        console.print(f"  {escape(line)}", highlight=False)
    for table in (
        _inputs(shuffle, values),
        _layouts(shuffle, values, target_dims),
        _copies(shuffle, values),
        _hops(shuffle, values),
        _buffers(shuffle, values, plan),
        *_reply_buffers(shuffle, values),
        *_fixed(shuffle, values, topology),
        *_results(shuffle, values, topology),
        _kernels(shuffle),
        _backends(shuffle, topology),
        _tiles(shuffle),
    ):
        if table.row_count:
            console.print()
            console.print(table)
    console.print("\n[bold]Planned[/]", highlight=False)
    console.print(f"  {escape(planning(shuffle))}", highlight=False)


def _summary(shuffle: ShuffleSpec, values: Mapping[str, int]) -> list[str]:
    """The shuffle in sentences."""
    target, segments = shuffle.declared.target, facts.num_segments(shuffle)
    num_bytes = facts.segment_bytes(shuffle.declared.source_fields)
    lines = [
        f"A segment, `{shuffle.declared.segment}`, is {num_bytes:,} bytes: {_fields(shuffle)}.",
        f"Segments of a rank, in `{shuffle.declared.source.layout}`: {_number(segments, values)}.",
    ]
    fanout = [index.name for index in shuffle.declared.fan_out]
    if fanout:
        most = _number(facts.num_destinations(shuffle), values)
        lines.append(f"Each goes to up to {most} slots, one for each {', '.join(fanout)}.")
    if target.kind == "packed":
        placement = target.placement
        owner = f"as `{placement.table}` says" if placement.table else f"by {placement.kind}"
        room = f"at most {target.capacity:,} slots" if target.capacity else "slots for what arrives"
        together = f", {target.group:,} together" if target.group > 1 else ""
        lines.append(
            f"`{target.layout}` is packed by {target.num_keys:,} keys, which are placed on ranks "
            f"{owner}{together}. A rank has {room}."
        )
        if target.align > 1:
            lines.append(f"The slots of a key begin at a multiple of {target.align:,}.")
        if target.compact:
            lines.append("It is compact: a rank holds a segment once, and its slots refer to it.")
        if target.distinct:
            lines.append("Its keys are distinct: a segment goes to a key once.")
    else:
        lines.append(f"`{target.layout}` is dense: the spec computes its slots.")
    if shuffle.into is not None:
        memory = f"`{shuffle.into.argument}`, memory that the call is given"
        does = "copies them into" if shuffle.into.kind == "copy" else "adds them to"
        lines.append(f"Rows land in a window; from there each rank {does} {memory}.")
    if shuffle.declared.casts:
        lines.append(f"Cast on the way: {', '.join(map(_cast, shuffle.declared.casts))}.")
    return [
        *lines,
        _way_back(shuffle),
        *(_bound(each, shuffle) for each in shuffle.declared.bounds),
    ]


def _cast(cast: CastSpec) -> str:
    if cast.normalise is not None:
        shifts, factors = map(_numbers, (cast.normalise.shifts, cast.normalise.factors))
        whose = ", by the rank that sends" if cast.normalise.is_given else ""
        return f"({cast.field} - {shifts}) × {factors}, in f32{whose}"
    return cast.field + (f" by {cast.scales}" if cast.scales else "")


def _numbers(numbers: Numbers) -> str:
    match numbers:
        case GivenNumbers(input=name):
            return name
        case ComputedNumbers(op=op, lhs=lhs, rhs=rhs):
            return f"({_numbers(lhs)} {op} {_numbers(rhs)})"
    return f"[{', '.join(f'{each:.6g}' for each in numbers)}]"


def _bound(bound: Bound, shuffle: ShuffleSpec) -> str:
    value, limit = text(of_scalar(bound.value)), text(of_scalar(bound.limit))
    given = extents_of(bound, shuffle) & set(shuffle.declared.extents)
    when = "with every call" if given else "when it is opened"
    return f"Not proved, and so checked {when}: `{value}` stays below `{limit}`."


def _way_back(shuffle: ShuffleSpec) -> str:
    combine = shuffle.back.declared.combine
    if combine is None:
        return "There is no way back."
    weight = f", times `{combine.weight.input}`" if combine.weight else ""
    does = "copies each segment to where it came from"
    if combine.kind in REDUCTIONS:
        does = REDUCTIONS[combine.kind].does
    if shuffle.reply is not None:
        rows = ", ".join(f"{each.name} {_typed(each)}" for each in shuffle.reply.declared.fields)
        name = shuffle.reply.declared.source.layout
        does = "copies each row to its place" if combine.kind == "copy" else does
        return f"The reply `{name}` has rows of its own ({rows}). The way back {does}{weight}."
    return f"The way back {does}{weight}."


def _fields(shuffle: ShuffleSpec) -> str:
    return ", ".join(f"{each.name} {_typed(each)}" for each in shuffle.declared.source_fields)


def _typed(field: FieldSpec) -> str:
    return spelled(field.dtype, field.shape, field.is_complex)


UNCHANGED = (
    "it depends on nothing that changes. Kernels that plan on GPUs by themselves do so in every "
    "call."
)


def planning(shuffle: ShuffleSpec) -> str:
    """What is planned when."""
    if shuffle.program.is_static and shuffle.baked:
        return (
            f"when compiling, for {', '.join(shuffle.baked)}; for another topology once, by the "
            f"first dispatch: {UNCHANGED}"
        )
    if shuffle.program.is_static:
        return f"once, by the first dispatch, or by `fuscoc compile --topology`: {UNCHANGED}"
    data = list(shuffle.program.inputs)
    depends = [*data, *(each for each in shuffle.declared.extents if each not in data)]
    back = "; combine uses its plan" if shuffle.declared.combine is not None else ""
    back = "; the reply is planned with it" if shuffle.reply is not None else back
    return f"by every dispatch, which depends on {', '.join(depends)}{back}."


def _inputs(shuffle: ShuffleSpec, values: Mapping[str, int]) -> Table:
    table = titled_table("Given with every call", ["name", "what", "type"], ["bytes"])
    into = shuffle.into.declared if shuffle.into is not None else None
    more = into.extents if into is not None else ()
    for name in dict.fromkeys([*shuffle.declared.extents, *more]):
        table.add_row(name, "run-time extent", "", "")
    for each in dict.fromkeys([*shuffle.inputs, *(into.inputs if into else ())]):
        dims = [of_scalar(dim) for dim in each.shape]
        num_bytes = product(ITEM_BYTES[each.dtype], *dims)
        shape = ", ".join(text(with_values(dim, values)) for dim in dims)
        table.add_row(
            each.name,
            each.role,
            escape(f"{each.dtype}[{shape}]"),
            _size(with_values(num_bytes, values)),
        )
    return table


def _layouts(
    shuffle: ShuffleSpec, values: Mapping[str, int], target_dims: Sequence[Formula]
) -> Table:
    left = ["layout", "field", "extents", "cell", "strides in bytes"]
    table = titled_table("Layouts of a rank", left, ["bytes"])
    for layout in facts.layouts(shuffle, target_dims):
        is_packed = shuffle.declared.target.kind == "packed" and layout.role == "target"
        unit = "rows" if shuffle.program.is_compact else "slots"
        for each in layout.fields:
            extents = ", ".join(text(with_values(dim, values)) for dim in layout.dims)
            num_bytes = with_values(product(layout.cells, each.cell_bytes), values)
            size = _size(num_bytes)
            if is_packed:
                is_known = isinstance(num_bytes, int)
                size = f"at most {size}" if is_known else f"{each.cell_bytes:,} × {unit}"
            table.add_row(
                layout.name,
                each.field.name,
                escape(unit if is_packed else f"[{extents}]"),
                escape(f"{_typed(each.field)}: {each.cell_bytes:,} B"),
                ", ".join(text(with_values(stride, values)) for stride in each.strides),
                size,
            )
    return table


def _copies(shuffle: ShuffleSpec, values: Mapping[str, int]) -> Table:
    columns = ["longest run", "runs", "vectors of", "strides of the runs in bytes"]
    table = titled_table("A segment in the source", ["field"], columns)
    for each in facts.copies(shuffle):
        loops = [
            f"{count:,} at {text(with_values(stride, values))}" for count, stride in each.loops
        ]
        table.add_row(
            each.name,
            f"{each.run_bytes:,} B",
            f"{each.num_runs:,}",
            f"{each.vector_bytes} B",
            ", ".join(loops) or "contiguous",
        )
    return table


def _hops(shuffle: ShuffleSpec, values: Mapping[str, int]) -> Table:
    table = titled_table("Hops", ["hop", "from → to"], ["copies of a segment, at most"])
    for hop in facts.hops(shuffle):
        table.add_row(hop.scope, hop.path, text(with_values(hop.copies, values)))
    return table


def _buffers(shuffle: ShuffleSpec, values: Mapping[str, int], plan: Plan | None) -> Table:
    title = "Row buffers of a rank, " + ("as planned" if plan else "at most")
    table = titled_table(title, ["buffer", "rows that are"], ["rows", "bytes of a row", "bytes"])
    segments = with_values(facts.num_segments(shuffle), values)
    if not isinstance(segments, int | Symbol):
        segments = Symbol("segments of a rank", "segments")
    planned = _planned_rows(plan) if plan else {}
    found = facts.buffers(shuffle, segments)
    for each in found:
        rows = planned.get(each.name, with_values(each.rows, values))
        num_bytes = _size(product(rows, each.row_bytes))
        if not isinstance(rows, int):
            num_bytes = f"{each.row_bytes:,} × rows"
        table.add_row(each.name, each.use, text(rows), f"{each.row_bytes:,}", num_bytes)
    most = facts.buffer_rows(shuffle, segments) | planned
    windows = with_values(facts.window_bytes(shuffle, most), values)
    held = [each.name for each in found if each.name in facts.WINDOWS]
    use = f"what peers store into: {', '.join(held)} and signals"
    table.add_row("windows", use, "", "", escape(_size(windows)))
    whose = "Of the rank with most rows." if plan else "If all ranks have equally many segments."
    *some, last = [each.name for each in found if each.name in facts.TRAVELLING]
    table.caption = f"{whose} {', '.join(some)} and {last} are there while a call lasts."
    return table


def _reply_buffers(shuffle: ShuffleSpec, values: Mapping[str, int]) -> list[Table]:
    """Those of the reply, if there is one: its way out is only that of its gradients."""
    if shuffle.reply is None:
        return []
    table = _buffers(shuffle.reply, values, None)
    table.title = f"{table.title}, of the reply"
    table.caption = (
        "Segments are its rows. What is not on the way back is there once gradients have gone out, "
        "and so is what is on the way back above."
    )
    return [table]


def _fixed_segments(shuffle: ShuffleSpec, values: Mapping[str, int]) -> int | Symbol:
    segments = with_values(facts.num_segments(shuffle), values)
    return segments if isinstance(segments, int) else Symbol("max_sources", "max_sources")


def _fixed(
    shuffle: ShuffleSpec, values: Mapping[str, int], topology: Topology | None
) -> list[Table]:
    """Memory of a fixed capacity, where the Triton kernels have it, and rows are moved."""
    if topology is None:
        return []
    segments = _fixed_segments(shuffle, values)
    best = next(each.name for each in backends(shuffle, topology) if each.usable)
    node = choose_triton(shuffle, topology, segments if isinstance(segments, int) else 1)
    if isinstance(node, str) or node.pieces is not None or best not in TRITON_FIXED:
        return []
    title = f"Memory of a rank with `max_sources` on {topology}, by the Triton kernels"
    table = titled_table(title, ["part", "of"], ["bytes"])
    window, slabs = (
        make(shuffle, node, topology, segments) for make in (fixed.window, fixed.slabs)
    )
    for each in (*window, *slabs):
        times = f"{each.count} × " if each.count > 1 else ""
        table.add_row(each.name, escape(each.use), escape(f"{times}{text(each.num_bytes)}"))
    table.add_row("window", "what ranks of the node store into", escape(_size(fixed.total(window))))
    table.caption = f"Every part begins at a multiple of {ALIGNMENT:,} bytes."
    return [table]


def _results(
    shuffle: ShuffleSpec, values: Mapping[str, int], topology: Topology | None
) -> list[Table]:
    """Memory that kernels take for results that peers store into, where they do."""
    if topology is None:
        return []
    cuda, triton, *_ = backends(shuffle, topology)
    if not cuda.usable and (not triton.usable or topology.num_nodes > 1):
        return []
    kernels = shuffle.cuda if cuda.usable else shuffle.node
    taken = fixed.results(shuffle, topology, _fixed_segments(shuffle, values), kernels)
    if taken is None:
        return []
    whose = "CUDA's" if cuda.usable else "the Triton"
    title = f"Memory of a rank for results, with `max_sources` on {topology}, by {whose} kernels"
    table = titled_table(title, ["part", "of"], ["bytes"])
    size = escape(f"{taken.count} × {text(taken.num_bytes)}")
    table.add_row(taken.name, escape(taken.use), size)
    least = f"one has {LENT_BYTES >> 20} MiB or more"
    table.caption = f"Where {least}, with `num_sms` below {FEW_SMS}; beside the windows."
    return [table]


def _planned_rows(plan: Plan) -> dict[str, int]:
    """The rows of a plan's buffers, of the rank that has most."""
    rows = asdict(plan.ranks[0].max_rows)
    return {**rows, "return_slices": rows["landing"], "returned": rows["slices"]}


def _kernels(shuffle: ShuffleSpec) -> Table:
    table = titled_table("Steps", ["", "kernel", "list", "from → to"], [])
    kernels = {shuffle.program.relation.extents_kernel: "sizes → points and cells of each"}
    kernels[shuffle.program.relation.kernel] = "points → where each goes"
    for number, (kernel, ends) in enumerate((name, ends) for name, ends in kernels.items() if name):
        table.add_row("" if number else "plan", kernel, "", ends)
    paths = {"dispatch": shuffle.program.dispatch, "combine": shuffle.program.combine}
    if shuffle.reply is not None:
        gradient, reply = shuffle.program.combine, shuffle.reply.program
        paths = {"dispatch": shuffle.program.dispatch, "reply": reply.combine, "gradient": gradient}
    for name, path in paths.items():
        if path is not None:
            _path_rows(table, name, path)
    return table


def _path_rows(table: Table, name: str, path: PathSpec) -> None:
    for number, step in enumerate(path.steps):
        title = "" if number else name
        if isinstance(step, LaunchStep):
            peers = any(buffer.startswith("peers.") for buffer in step.bind.values())
            ends = f"{step.src} → {step.dst}{' of a peer' if peers else ''}"
            table.add_row(title, step.kernel, step.list, ends)
        else:
            ends = "slices → landing" if name == "dispatch" else "return_slices → staging"
            table.add_row(title, "(network)", "", ends)


def _backends(shuffle: ShuffleSpec, topology: Topology | None) -> Table:
    where = f" on {topology}" if topology else ""
    table = titled_table(
        f"Backends{where}: the first that can, runs it", ["kernels", "", "why"], []
    )
    for each in backends(shuffle, topology):
        style = "green" if each.usable else "yellow"
        answer = "yes" if each.usable else "no"
        table.add_row(each.name, f"[{style}]{answer}[/]", escape(each.note))
    return table


def _tiles(shuffle: ShuffleSpec) -> Table:
    title = "Tiles of the kernels"
    table = titled_table(title, ["kernels", "size", "", "because"], [])
    before = ""
    for size in sizes(shuffle):
        kernels = "" if size.kernels == before else size.kernels
        table.add_row(kernels, size.name, str(size.value), size.why)
        before = size.kernels
    return table


def _number(formula: Formula, values: Mapping[str, int]) -> str:
    return text(with_values(formula, values))


def _size(num_bytes: Formula) -> str:
    """Bytes as a formula, or as a number with its order of magnitude."""
    if isinstance(num_bytes, int) and num_bytes >= 10_000:
        return f"{num_bytes:,} ({decimal(num_bytes)})"
    return text(num_bytes)
