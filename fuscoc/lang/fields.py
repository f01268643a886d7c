"""Whether what a source holds is what the target takes, field by field."""

from __future__ import annotations

from dataclasses import replace

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.checked import Field
from fuscoc.lang.scope import AccessInfo, LayoutInfo, Scope, plural


def match_fields(
    access: AccessInfo, target: LayoutInfo, dispatch: ast.Dispatch, scope: Scope
) -> tuple[str, tuple[Field, ...], tuple[Field, ...]] | None:
    """The segment's name, its fields, and the fields of the source's cells, one to one.

    A field of the segment is the runs of the access followed by the cell's field.
    """
    if target.segment is None:
        scope.sink.report(
            "FSC035",
            target.ident.span,
            f"`{target.ident.name}` is a target, so its element must be a declared segment",
            help="declare `segment name { … }` and write `of name`",
        )
        return None
    if scope.single(dispatch.options, ast.Cast, "cast") is not None:
        return None  # reported with the options
    wanted = target.fields
    cells = _named_cells(access.layout, wanted, dispatch, scope)
    if cells is None:
        return None
    runs = tuple(s.length for s in access.subscripts if s.length is not None)
    good = True
    for field, cell in zip(wanted, cells, strict=True):
        shape = (*runs, *cell.shape)
        if field.shape != shape:
            _mismatch(
                f"`{field.name}` is {_typed(field.dtype, field.shape)}, "
                f"and the source gives {_typed(cell.dtype, shape)}",
                field,
                dispatch,
                scope,
            )
            good = False
        elif field.dtype != cell.dtype:
            scope.sink.report(
                "FSC061",
                field.span,
                f"not yet supported: `{field.name}` is {cell.dtype} in the source and "
                f"{field.dtype} in the target",
                secondary=[Label(cell.span, f"{cell.dtype} here")],
            )
            good = False
    return (target.segment, wanted, cells) if good else None


def _named_cells(
    layout: LayoutInfo, wanted: tuple[Field, ...], dispatch: ast.Dispatch, scope: Scope
) -> tuple[Field, ...] | None:
    """The source's fields in the order of the segment's; an anonymous one gets its name."""
    if layout.segment is None and len(wanted) == 1:
        return (replace(layout.fields[0], name=wanted[0].name),)
    if layout.segment is None:
        _mismatch(
            f"`{layout.ident.name}` holds one nameless field, "
            f"and the segment has {plural(len(wanted), 'field')}",
            wanted[0],
            dispatch,
            scope,
        )
        return None
    by_name = {field.name: field for field in layout.fields}
    if by_name.keys() != {field.name for field in wanted}:
        _mismatch(
            f"`{layout.ident.name}` holds {_names(layout.fields)}, "
            f"and the segment has {_names(wanted)}",
            wanted[0],
            dispatch,
            scope,
        )
        return None
    return tuple(by_name[field.name] for field in wanted)


def _mismatch(message: str, field: Field, dispatch: ast.Dispatch, scope: Scope) -> None:
    scope.sink.report(
        "FSC035",
        field.span,
        message,
        secondary=[Label(dispatch.source.span, "the source")],
    )


def _names(fields: tuple[Field, ...]) -> str:
    return " and ".join(f"`{field.name}`" for field in fields)


def _typed(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]" if shape else dtype
