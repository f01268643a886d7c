"""Spec texts over the whole language: what ``specs()`` draws.

Every text is one shuffle. Its parts are drawn independently: where segments come from (rows, a
grid, tiles of a grid, pieces of ragged pictures or documents, rows that an input chooses), where
they go (packed by key, or slots that the spec computes), fan-out, fields and their casts,
placement, capacity, the way back and the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from fuscoc.lang.dtypes import COMPLEX, NARROW, SUMMABLE, TYPES
from fuscoc.lang.policy import CHOICES
from fuscoc_runtime.topology import Topology

CASTABLE = ("bf16", "f16", "f32", "f8e4m3", "f8e5m2")
COMPUTABLE = (*CASTABLE, "u8", "i8", "i16")


@dataclass(frozen=True)
class FieldText:
    """A field as a spec declares it."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        dims = f"[{', '.join(map(str, self.shape))}]" if self.shape else ""
        return f"{self.name} : {self.dtype}{dims}"


@dataclass(frozen=True)
class Cast:
    """The fields before and after a cast, and the clause that asks for it; empty if none is."""

    leaving: tuple[FieldText, ...]
    arriving: tuple[FieldText, ...]
    clause: str


@st.composite
def casts(draw: st.DrawFn, fields: Sequence[FieldText], *, may_apply: bool) -> Cast:
    """Some of the fields as other types, with or without scales, or normalised; shrinks to none.

    ``may_apply``: the source may have scales, which are fields of its own.
    """
    leaving, arriving, items = list(fields), list(fields), []
    for position, field in enumerate(fields):
        if field.dtype in COMPUTABLE and draw(st.integers(0, 3)) == 3:
            wanted = draw(st.sampled_from(CASTABLE))
            arriving[position] = FieldText(field.name, wanted, field.shape)
            items.append(draw(computed(field)))
            continue
        dtype = draw(st.sampled_from(("", *CASTABLE))) if field.dtype in CASTABLE else ""
        if dtype in ("", field.dtype):
            continue
        arriving[position] = FieldText(field.name, dtype, field.shape)
        ends = [arriving] if dtype in NARROW else []
        ends += [leaving] if field.dtype in NARROW and may_apply else []
        scaled = draw(st.sampled_from([None, *ends]))
        if scaled is None:
            items.append(field.name)
            continue
        # One for the segment, or one for each of its elements.
        shape = draw(st.sampled_from([(), field.shape]))
        scaled.append(FieldText(f"{field.name}_scales", "f32", shape))
        items.append(f"{field.name} by {field.name}_scales")
    clause = f"cast({', '.join(items)})" if items else ""
    return Cast(tuple(leaving), tuple(arriving), clause)


@st.composite
def computed(draw: st.DrawFn, field: FieldText) -> str:
    """A line of a field, of numbers for all its channels or for each; shrinks to ``a / 1``."""
    terms = [field.name]
    for op in draw(st.lists(st.sampled_from("/*-+"), min_size=1, max_size=3)):
        several = len(field.shape) > 0 and draw(st.booleans())
        count = field.shape[-1] if several else 1
        numbers = draw(st.lists(NUMBERS, min_size=count, max_size=count))
        number = f"[{', '.join(numbers)}]" if several else numbers[0]
        terms = ["(", *terms, op, number, ")"]
    return " ".join(terms[1:-1]).replace("( ", "(").replace(" )", ")")


NUMBERS = st.sampled_from(["1", "255", "0.485", "17.25", "0.001"])

# How segments go to several places, if they do: to some, or to one for each rank.
FAN_OUTS = ("", *(f"const fan = {fan}\nindex k : fan" for fan in (1, 2, 3)), "index k : ranks")
NUM_KEYS = (1, 2, 3, 5, 8, 16, 24, 64)
DEDUPS = ("", "dedup(node)", "dedup(rank)", "dedup(none)")
COMPACT_DEDUPS = ("", "dedup(rank)")


@dataclass(frozen=True)
class Source:
    """Where segments come from.

    ``indices`` enumerate them; a route may depend on the first ``num_routed`` of them, whose
    extents do not vary. ``access`` is what dispatch reads; ``cells`` are the run lengths of a
    segment that is a block of cells, and ``number`` says which block of a picture it is. Segments
    that may overlap do not come back.
    """

    declarations: tuple[str, ...]
    indices: tuple[str, ...]
    access: str
    layout: str
    cells: tuple[int, ...] = ()
    num_routed: int = 1
    number: str = ""
    comes_back: bool = True


@st.composite
def texts(draw: st.DrawFn, topology: Topology | None = None, *, into: bool = False) -> str:
    """The text of a correct spec with one shuffle, ``generated``; shrinks to plain rows.

    With ``topology``, its ranks can own the keys. With ``into``, rows go into memory of the
    caller's, if slots are computed.
    """
    source = draw(st.sampled_from(SOURCES).flatmap(lambda f: f()))
    fans_out = source.num_routed == len(source.indices)
    fan_out = draw(st.sampled_from(FAN_OUTS)) if fans_out else ""
    num_fields = draw(st.integers(1, 3)) if not source.cells else 1
    dtypes = draw(
        st.lists(st.sampled_from(sorted(TYPES)), min_size=num_fields, max_size=num_fields)
    )
    answered = fans_out and draw(st.integers(0, 3)) == 3
    summed = not answered and source.comes_back and (bool(fan_out) or draw(st.booleans()))
    if summed and (num_fields > 1 or dtypes[0] not in SUMMABLE):
        num_fields, dtypes = 1, [draw(st.sampled_from(sorted(SUMMABLE)))]
    weighted = summed and source.num_routed == len(source.indices) and draw(st.booleans())
    shapes = [draw(st.lists(st.integers(1, 5), max_size=2)) for _ in dtypes]
    routed = [*source.indices[: source.num_routed], *(["k"] if fan_out else [])]
    params = ", ".join(routed)

    lines = [f"index {source.indices[0]} : rows"]
    lines += source.declarations
    lines += fan_out.splitlines()
    fields = [
        FieldText(name, dtype, (*source.cells, *shape))
        for name, dtype, shape in zip("abc", dtypes, shapes, strict=False)
    ]
    cast = draw(casts(fields, may_apply=not summed and not source.cells))
    lines.append(f"segment item {{ {', '.join(map(str, cast.arriving))} }}")
    cell = "item" if not source.cells else f"{dtypes[0]}{_shape(shapes[0])}"
    if cast.clause and not source.cells:
        cell = "leaving"
        lines.append(f"segment leaving {{ {', '.join(map(str, cast.leaving))} }}")
    lines.append(source.layout.format(cell=cell))
    is_compact = False
    is_changed = bool(cast.clause or source.number or " order(" in source.layout)
    goes_into_runs = num_fields == 1 and fields[0].shape and not (is_changed or answered)
    if goes_into_runs and not weighted and draw(st.booleans()):
        lines += draw(target_of_runs(fields[0]))
        lines.append(f"route where({params}) -> (rank, u, v) = input places : int64[3]")
        target = f"runs[where({params}).u, where({params}).v] on where({params}).rank"
    elif draw(st.booleans()):
        number = source.number
        lines += [
            "index s : length",
            "layout slots[s] of item dense(length)",
            f"route where({params}) -> (rank, slot) = input places : int64[2]",
        ]
        target = f"slots[where({params}).slot{number}] on where({params}).rank"
        if into and not any(each.dtype in COMPLEX for each in cast.arriving):
            declared, goes_to = draw(memory_of(cast.arriving))
            lines += declared
            target += f" into {goes_to}"
            adds = all(each.dtype in SUMMABLE for each in cast.arriving)
            target += " reduce sum" if adds and draw(st.booleans()) else ""
    else:
        is_compact = draw(st.booleans())
        declared, target = draw(packed_target(params, topology, is_compact))
        lines += declared
    if weighted:
        dtype = draw(st.sampled_from(["f32", "bf16"]))
        lines.append(f"weight w({params}) : {dtype} = input weights")
    options = " ".join(filter(None, (cast.clause, draw(policies(is_compact)))))
    lines.append(f"dispatch {source.access} -> {target} {options}".rstrip())
    if answered:
        lines += draw(replies(source, params, bool(fan_out)))
    elif summed:
        reduction = "sum(w)" if weighted else draw(st.sampled_from(["sum", "max"]))
        lines.append(f"combine reverse reduce {reduction}")
    elif source.comes_back and draw(st.booleans()):
        lines.append("combine reverse")
    return "shuffle generated {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


@st.composite
def replies(draw: st.DrawFn, source: Source, params: str, fans_out: bool) -> list[str]:
    """A way back by rows of its own, and what it takes; shrinks to a row for each segment."""
    kept = len(source.indices) - draw(st.integers(0, len(source.indices) - 1))
    reduces = fans_out or kept < len(source.indices) or draw(st.booleans())
    dtypes = sorted(SUMMABLE if reduces else TYPES)
    fields = [
        FieldText(
            name,
            draw(st.sampled_from(dtypes)),
            tuple(draw(st.lists(st.integers(1, 5), max_size=2))),
        )
        for name in "xy"[: draw(st.integers(1, 2))]
    ]
    lines = [f"segment answer {{ {', '.join(map(str, fields))} }}"]
    reduction = draw(st.sampled_from(["sum", "max", "sum(w)"])) if reduces else ""
    if reduction == "sum(w)":
        lines.append(f"weight w({params}) : {draw(st.sampled_from(['f32', 'bf16']))} = input gates")
    indices = ", ".join(source.indices[:kept])
    tail = f" reduce {reduction}" if reduction else ""
    return [*lines, f"reply answers[{indices}] of answer{tail}"]


@st.composite
def target_of_runs(draw: st.DrawFn, field: FieldText) -> list[str]:
    """A view of a tensor whose ranges are the outermost dimensions of a segment."""
    num_ranges = draw(st.integers(1, len(field.shape)))
    lengths, cell = field.shape[:num_ranges], field.shape[num_ranges:]
    first = draw(st.integers(0, 2))
    runs = [f"v*{lengths[0]}+{first} .. v*{lengths[0]}+{first + lengths[0]}"]
    runs += [f"0 .. {length}" for length in lengths[1:]]
    dims = ", ".join(f"d{number}" for number in range(num_ranges))
    extents = ", ".join(map(str, (first + 3 * lengths[0], *lengths[1:])))
    return [
        "index u : length",
        "index v : 3",
        f"layout whole[u, {dims}] of {field.dtype}{_shape(cell)} dense({extents})",
        f"view runs[u, v] = whole[u, {', '.join(runs)}]",
    ]


@st.composite
def memory_of(draw: st.DrawFn, fields: Sequence[FieldText]) -> tuple[list[str], str]:
    """Memory of the caller's for items of these fields: a table of them, or a tensor whose runs
    they are; and where in it a slot's row goes."""
    first = fields[0]
    if len(fields) > 1 or not first.shape or draw(st.booleans()):
        dtype = draw(st.sampled_from(["int64", "int32"]))
        declared = [
            "index m : entries",
            "layout memory[m] of item",
            f"route at(s) -> m = input at : {dtype}",
        ]
        return declared, "memory[at(s)]"
    length, *cell = first.shape
    declared = [
        "index m : entries",
        "index v : 2",
        f"layout memory[d, m] of {first.dtype}{_shape(cell)} dense({2 * length}, entries)",
        f"view kept[m, v] = memory[v*{length} .. v*{length}+{length}, m]",
        "route at(s) -> (m, v) = input at : int64[2]",
    ]
    return declared, "kept[at(s).m, at(s).v]"


@st.composite
def packed_target(
    draw: st.DrawFn, params: str, topology: Topology | None, is_compact: bool
) -> tuple[list[str], str]:
    """Keys with their placement, alignment and capacity, and the route to them; and the target.

    There may be a second key: the rank that sends, what is computed of it, or given.
    """
    placement = draw(st.sampled_from(["cyclic", "table owner", "block"]))
    num_keys = draw(st.sampled_from(NUM_KEYS))
    if placement == "block" and topology is not None:
        num_keys = topology.num_ranks * (num_keys % 3 + 1)  # equally many on every rank
    align = draw(st.sampled_from([1, 2, 3, 16]))
    capacity = draw(st.sampled_from(["", " capacity exact", f" capacity max {4 * align + 5}"]))
    compact = " compact" if is_compact else ""
    dtype = draw(st.sampled_from(["int64", "int32"]))
    routes = [f"route r({params}) -> e = input keys : {dtype}"]
    if draw(st.booleans()):  # what an input says of points leads to what another says of groups
        routes = [
            "index g : 5",
            f"route group({params}) -> g = input groups : {dtype}",
            "route of_group(g) -> e = input keys : int64",
            f"route r({params}) -> e = of_group(group({params}))",
        ]
    second = draw(st.sampled_from(["", "rank % 3", "second"]))
    if placement == "table owner" or not second:
        keys, key = "e", f"r({params})"
    else:
        keys, key = "e, part", f"r({params}), {second}"
        routes.append("index part : 3")
    if second == "second" and keys != "e":
        routes.append(f"route second({params}) -> part = input classes : {dtype}")
        key = f"r({params}), second({params})"
    declared = [
        f"index e : {num_keys}",
        f"layout by_key[{keys}, s] of item packed(s){compact} align {align}{capacity}",
        f"place e on rank by {placement}",
        *routes,
    ]
    return declared, f"by_key[{key}, *]"


@st.composite
def policies(draw: st.DrawFn, is_compact: bool) -> str:
    """Options of a dispatch: every value that the compiler supports."""
    options = [draw(st.sampled_from(COMPACT_DEDUPS if is_compact else DEDUPS))]
    for knob in ("balance", "schedule"):
        values = sorted(CHOICES[knob])
        chosen = draw(st.sampled_from(["", *values]))
        options.append(f"{knob} {chosen}" if chosen else "")
    return " ".join(option for option in options if option)


def rows() -> st.SearchStrategy[Source]:
    """One segment for each row."""
    return st.just(Source((), ("t",), "table[t]", "layout table[t] of {cell}"))


@st.composite
def grid(draw: st.DrawFn) -> Source:
    """Rows of several segments each."""
    width = draw(st.integers(1, 3))
    return Source(
        (f"index j : {width}",),
        ("t", "j"),
        "table[t, j]",
        "layout table[t, j] of {cell}",
        num_routed=2,
    )


@st.composite
def tiles(draw: st.DrawFn) -> Source:
    """Blocks of ``p`` x ``q`` cells of a grid: runs at a constant stride, or in another order."""
    p, q, across = (draw(st.integers(1, 3)) for _ in range(3))
    order, cells = draw(st.sampled_from([("", (p, q)), (" order(x, y)", (q, p))]))
    return Source(
        (f"const p = {p}, q = {q}, across = {across}", "index j : across"),
        ("t", "j"),
        "blocks[t, j]",
        "layout table[y, x] of {cell} dense(rows * p, across * q)\n"
        f"  view blocks[t, j] = table[t*p .. t*p+p, j*q .. j*q+q]{order}",
        cells,
        num_routed=2,
    )


def documents() -> st.SearchStrategy[Source]:
    """Documents of different lengths, a segment for each of their lines."""
    declarations = ("index i : size(t)",)
    layout = "layout table[t, i] of {cell}"
    return st.just(Source(declarations, ("t", "i"), "table[t, i]", layout, number=" + i"))


@st.composite
def chosen(draw: st.DrawFn) -> Source:
    """Rows of a table, or pairs of them, that an input chooses."""
    length = draw(st.integers(1, 2))
    at = "first(t)" if length == 1 else f"first(t) .. first(t) + {length}"
    return Source(
        (
            f"index y : {draw(st.integers(length, 5))}",
            "route first(t) -> row = input chosen : int64",
            f"view picked[t] = table[{at}]",
        ),
        ("t",),
        "picked[t]",
        "layout table[y] of {cell}",
        (length,) if length > 1 else (),
        comes_back=False,
    )


@st.composite
def pictures(draw: st.DrawFn) -> Source:
    """Patches of pictures that differ in size, channels last or first: run-time strides."""
    p = draw(st.integers(1, 3))
    channels = draw(st.sampled_from([0, 2]))
    first = f"layout table[t, c, y, x] of {{cell}} dense({channels}, height(t), width(t))"
    last = "layout table[t, y, x] of {cell} dense(height(t), width(t))"
    block = "i*p .. i*p+p, j*p .. j*p+p"
    layout = first if channels else last
    at = f"t, 0 .. {channels}, {block}" if channels else f"t, {block}"
    return Source(
        (f"const p = {p}", "index i : height(t) / p", "index j : width(t) / p"),
        ("t", "i", "j"),
        "patches[t, i, j]",
        f"{layout}\n  view patches[t, i, j] = table[{at}]",
        (channels, p, p) if channels else (p, p),
        number=" + i * width(t) / p + j",
    )


SOURCES = (rows, grid, documents, tiles, chosen, pictures)


def _shape(sizes: Sequence[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]" if sizes else ""
