"""``cast(x by scales)``: fields that change their element type between source and target.

Scales that the target alone has are made on the way, those that the source alone has are applied.
What else may be computed of a field, ``cast((x / 255 - mean) / std)``, is in ``normalising.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fuscoc.diagnostics import Label, spelling
from fuscoc.lang import ast
from fuscoc.lang.checked import Cast, Field
from fuscoc.lang.dtypes import INTEGERS, ITEM_BYTES, NARROW
from fuscoc.lang.normalising import Line, leaves, line, normalise
from fuscoc.lang.scope import Scope
from fuscoc.source import Span

# A kernel holds whole blocks in registers: powers of two, or one block that is the whole segment.
MAX_BLOCK = 4096
MAX_WHOLE = 8192
# f32 holds integers of so many bytes.
EXACT_BYTES = 2


@dataclass(frozen=True)
class Item:
    """One field of a cast clause: its scales, or what is computed of it."""

    field: ast.Ident
    scale: ast.Ident | None
    line: Line | None
    span: Span


@dataclass(frozen=True)
class MadeCasts:
    """The items of a cast clause by field, with the names of the scales that they make or apply."""

    items: Mapping[str, Item]
    scales: Mapping[str, Field]
    made: frozenset[str]
    used: frozenset[str]

    def sized(self, shapes: Mapping[str, tuple[int, ...]], scope: Scope) -> tuple[Cast, ...] | None:
        """The casts with the sizes of their blocks; ``shapes`` are those of the segments."""
        casts = []
        for name, item in self.items.items():
            if item.line is not None:
                computed = normalise(item.line, shapes[name], item.span, scope)
                if computed is None:
                    return None
                casts.append(Cast(name, None, None, item.span, computed))
                continue
            if item.scale is None:
                casts.append(Cast(name, None, None, item.span))
                continue
            block = _block(item, self.scales[item.scale.name], shapes, scope)
            if block is None:
                return None
            casts.append(Cast(name, item.scale.name, block, item.span))
        return tuple(casts)


def check_casts(
    clause: ast.Cast | None, held: Sequence[Field], wanted: Sequence[Field], scope: Scope
) -> MadeCasts | None:
    """What a cast clause names, for the fields that the source holds and the target wants."""
    source, target = ({field.name: field for field in fields} for fields in (held, wanted))
    both = source.keys() & target.keys()
    read = [_item(each, both, scope) for each in (clause.items if clause is not None else ())]
    items = [item for item in read if item is not None]
    if len(items) < len(read):
        return None
    scales = [item.scale for item in items if item.scale is not None]
    good = scope.distinct([*(item.field for item in items), *scales])
    for item in items:
        if item.field.name not in both:
            _unknown(item.field, "is no field of both source and target", source, target, scope)
            good = False
    for scale in scales:
        if scale.name in source and scale.name in target:
            scope.sink.report(
                "FSC058",
                scale.span,
                f"`{scale.name}` is a field of the source and of the target",
                "scales are made from a field, or applied to it",
                secondary=[Label(source[scale.name].span), Label(target[scale.name].span)],
                help="leave them out of the source to make them, out of the target to apply them",
            )
            good = False
        elif scale.name not in source and scale.name not in target:
            _unknown(scale, "is a field of neither source nor target", source, target, scope)
            good = False
    if not good:
        return None
    names = {scale.name for scale in scales}
    return MadeCasts(
        items={item.field.name: item for item in items},
        scales={name: {**source, **target}[name] for name in names},
        made=frozenset(names & target.keys()),
        used=frozenset(names & source.keys()),
    )


def _item(item: ast.CastItem, fields: Collection[str], scope: Scope) -> Item | None:
    """What an item says of one field, which its expression names."""
    found = [each for each in leaves(item.value) if isinstance(each, ast.Name)]
    if isinstance(item.value, ast.Name):
        return Item(_ident(item.value), item.scale, None, item.span)
    known = [name for name in found if name.name in fields]
    unknown = [name for name in found if name.name not in {*fields, *scope.symbols}]
    if not known and unknown:  # which is reported as a field
        return Item(_ident(unknown[0]), None, None, item.span)
    computed = line(item.value, fields, scope)
    if computed is None:
        return None
    problem = ""
    if not isinstance(computed, Line):
        problem = "there is no field in what this cast computes"
    elif len({name.name for name in known}) > 1:
        problem = f"this computes with `{known[0].name}` and `{known[-1].name}`, two fields"
    if problem:
        scope.sink.report("FSC058", item.span, problem, "a cast computes of one field")
        return None
    if item.scale is not None:
        message = "not yet supported: scales of what a cast computes"
        scope.sink.report("FSC061", item.span, message)
        return None
    assert isinstance(computed, Line)
    return Item(_ident(known[0]), None, computed, item.span)


def _ident(name: ast.Name) -> ast.Ident:
    return ast.Ident(name.name, span=name.span)


def check_conversion(field: Field, cell: Field, casts: MadeCasts, scope: Scope) -> bool:
    """Whether a field can become what the target wants, and is asked to."""
    item = casts.items.get(field.name)
    if item is not None and field.is_complex:
        message = "not yet supported: a cast of complex numbers"
        scope.sink.report("FSC061", item.span, message, secondary=[Label(field.span)])
        return False
    types = f"{cell.dtype} in the source and {field.dtype} in the target"
    if item is None:
        if field.dtype == cell.dtype:
            return True
        scope.sink.report(
            "FSC035",
            field.span,
            f"`{field.name}` is {types}",
            secondary=[Label(cell.span, f"{cell.dtype} here")],
            help=None
            if {field.dtype, cell.dtype} & INTEGERS
            else f"add `cast({field.name})` to the dispatch",
        )
        return False
    labels = [Label(cell.span, f"{cell.dtype} here"), Label(field.span, f"{field.dtype} here")]
    integers = {field.dtype, cell.dtype} & INTEGERS
    missing = problem = ""
    if item.line is not None and field.dtype in INTEGERS:
        problem = f"`{field.name}` arrives as {field.dtype}: what is computed of it is a float"
    elif item.line is not None and integers and ITEM_BYTES[cell.dtype] > EXACT_BYTES:
        missing = f"computing with {cell.dtype}, which f32 does not hold exactly"
    elif item.line is None and integers:
        problem = f"`{field.name}` is {types}: only floating-point fields are cast"
    elif item.line is None and field.dtype == cell.dtype:
        problem = f"`{field.name}` is {field.dtype} at both ends: there is nothing to cast"
    elif item.scale is not None and item.scale.name in casts.made and field.dtype not in NARROW:
        problem = f"`{field.name}` arrives as {field.dtype}: only 8-bit floats get scales"
    elif item.scale is not None and item.scale.name in casts.used and cell.dtype not in NARROW:
        problem = f"`{field.name}` leaves as {cell.dtype}: only 8-bit floats have scales"
    elif "f64" in (field.dtype, cell.dtype):
        missing = "a cast of f64"
    if missing:
        scope.sink.report("FSC061", item.span, f"not yet supported: {missing}", secondary=labels)
    elif problem:
        scope.sink.report("FSC058", item.span, problem, secondary=labels)
    return not (missing or problem)


def _block(
    item: Item, scales: Field, shapes: Mapping[str, tuple[int, ...]], scope: Scope
) -> int | None:
    """How many consecutive elements share a scale."""
    shape, parts = shapes[item.field.name], shapes[scales.name]
    declared = [Label(scales.span, "declared here")]
    if scales.dtype != "f32":
        problem = f"`{scales.name}` is {scales.dtype}, and scales are f32"
        scope.sink.report("FSC058", item.span, problem, secondary=declared)
        return None
    divides = (
        len(shape) == len(parts) > 0 and shape[:-1] == parts[:-1] and shape[-1] % parts[-1] == 0
    )
    if parts and not divides:
        scope.sink.report(
            "FSC058",
            item.span,
            f"{list(parts)} scales do not divide the {list(shape)} elements of "
            f"`{item.field.name}` into equal blocks",
            secondary=declared,
            notes=["scales have the shape of their field, with its last dimension divided"],
        )
        return None
    block = prod(shape) // prod(parts)
    is_power = block & (block - 1) == 0 and block <= MAX_BLOCK
    if not is_power and (prod(parts) > 1 or block > MAX_WHOLE):
        scope.sink.report(
            "FSC061",
            item.span,
            f"not yet supported: blocks of {block} elements",
            secondary=declared,
            notes=[
                f"a block is a power of two up to {MAX_BLOCK}, or a whole segment "
                f"of up to {MAX_WHOLE} elements"
            ],
        )
        return None
    return block


def _unknown(
    ident: ast.Ident,
    problem: str,
    source: Mapping[str, Field],
    target: Mapping[str, Field],
    scope: Scope,
) -> None:
    names = list(dict.fromkeys([*source, *target]))
    scope.sink.report(
        "FSC011",
        ident.span,
        f"`{ident.name}` {problem}",
        notes=[f"their fields are {', '.join(f'`{name}`' for name in names)}"],
        fix=spelling(ident.name, ident.span, names),
    )
