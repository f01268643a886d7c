"""Whether what a source holds is what the target takes, field by field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.casts import MadeCasts, check_casts, check_conversion
from fuscoc.lang.checked import Cast, Field, Subscript
from fuscoc.lang.scope import AccessInfo, LayoutInfo, Scope, plural


@dataclass(frozen=True)
class Matched:
    """The segment that arrives and the cells that it is made of.

    ``cells`` are in the order of ``fields``, and scales that casts apply behind them.
    """

    segment: str
    fields: tuple[Field, ...]
    cells: tuple[Field, ...]
    casts: tuple[Cast, ...]


def match_fields(
    access: AccessInfo, target: LayoutInfo, dispatch: ast.Dispatch, scope: Scope
) -> Matched | None:
    """The fields of source and target, one to one but for the scales of casts.

    A field of the segment is the runs of the access followed by the cell's field.
    """
    clause = scope.single(dispatch.options, ast.Cast, "cast")
    if target.segment is None and scope.may_have("segment"):
        return None
    if target.segment is None:
        scope.sink.report(
            "FSC035",
            target.ident.span,
            f"`{target.ident.name}` is a target, so its element must be a declared segment",
            help="declare `segment name { … }` and write `of name`",
        )
        return None
    held = _named_cells(access.layout, target.fields, clause)
    casts = check_casts(clause, held, target.fields, scope)
    if casts is None or not _same_names(access.layout, held, casts, target, dispatch, scope):
        return None
    by_name = {cell.name: cell for cell in held}
    wanted = [field for field in target.fields if field.name not in casts.made]
    runs = access.lengths
    found = [_match(field, by_name[field.name], access, casts, dispatch, scope) for field in wanted]
    shapes = {cell.name: (*runs, *cell.shape) for cell in held}
    shapes |= {field.name: field.shape for field in target.fields}
    sized = casts.sized(shapes, scope) if all(found) else None
    if sized is None:
        return None
    used = [cell for cell in held if cell.name in casts.used]
    cells = (*(by_name[field.name] for field in wanted), *used)
    return Matched(target.segment, target.fields, cells, sized)


def _match(
    field: Field,
    cell: Field,
    access: AccessInfo,
    casts: MadeCasts,
    dispatch: ast.Dispatch,
    scope: Scope,
) -> bool:
    shape = (*access.lengths, *cell.shape)
    if field.shape == shape and field.is_complex == cell.is_complex:
        return check_conversion(field, cell, casts, scope)
    given = replace(cell, shape=shape)
    message = f"`{field.name}` is {field.spelled}, and the source gives {given.spelled}"
    in_order = [access.subscripts[at] for at in access.order] or access.subscripts
    if not _report_short(message, in_order, cell.shape, field, scope):
        _mismatch(message, field, dispatch, scope)
    return False


def _report_short(
    message: str, subscripts: Sequence[Subscript], rest: tuple[int, ...], field: Field, scope: Scope
) -> bool:
    """Whether ranges that are one cell short are all that keeps a field from its shape.

    They are reported then, with ``message``. ``rest`` is the shape of a cell.
    """
    runs = [each for each in subscripts if each.length is not None]
    lengths = [each.length for each in runs]
    wanted = field.shape[: len(runs)]
    short = [run for run, count in zip(runs, wanted, strict=False) if run.length == count - 1]
    full = [count - (run in short) for run, count in zip(runs, wanted, strict=False)]
    if not short or lengths != full or field.shape[len(runs) :] != rest:
        return False
    for run in short:
        written = _one_more(scope.sink.source.text[run.span.start : run.span.end])
        scope.sink.report(
            "FSC035",
            run.span,
            message,
            f"{plural(run.length or 0, 'cell')}: a range ends before its stop",
            secondary=[Label(field.span, "declared here")],
            fix=Fix(run.span, written, f"write `{written}`"),
        )
    return True


def _one_more(written: str) -> str:
    """The text of a range with its stop one further."""
    less_one = re.search(r"\s*-\s*1$", written)
    if less_one is not None:
        return written[: less_one.start()]
    number = re.search(r"(?<=\.\.)(\s*)(\d+)$", written)
    if number is not None:
        return f"{written[: number.start(2)]}{int(number[2]) + 1}"
    return f"{written} + 1"


def _named_cells(
    layout: LayoutInfo, wanted: tuple[Field, ...], clause: ast.Cast | None
) -> tuple[Field, ...]:
    """The source's fields; an anonymous one gets the name of the only field that it can be."""
    if layout.segment is not None:
        return layout.fields
    scales = {item.scale.name for item in (clause.items if clause else ()) if item.scale}
    named = [field for field in wanted if field.name not in scales]
    return (replace(layout.fields[0], name=named[0].name),) if len(named) == 1 else layout.fields


def _same_names(
    layout: LayoutInfo,
    held: tuple[Field, ...],
    casts: MadeCasts,
    target: LayoutInfo,
    dispatch: ast.Dispatch,
    scope: Scope,
) -> bool:
    """Whether source and target have the same fields, but for the scales of casts."""
    wanted = target.fields
    if {f.name for f in held} - casts.used == {f.name for f in wanted} - casts.made:
        return True
    if layout.segment is None:
        message = (
            f"`{layout.ident.name}` holds one nameless field, "
            f"and the segment has {plural(len(wanted), 'field')}"
        )
    else:
        message = (
            f"`{layout.ident.name}` holds {_names(held)}, and the segment has {_names(wanted)}"
        )
    _mismatch(message, wanted[0], dispatch, scope)
    return False


def _mismatch(message: str, field: Field, dispatch: ast.Dispatch, scope: Scope) -> None:
    scope.sink.report(
        "FSC035",
        field.span,
        message,
        secondary=[Label(dispatch.source.span, "the source")],
    )


def _names(fields: tuple[Field, ...]) -> str:
    return " and ".join(f"`{field.name}`" for field in fields)
