"""What a checked shuffle uses of its names: what its calls take by them, and what looks wrong.

Calls take tensors and run-time extents. Warnings are about the names of a correct shuffle: one that
is almost another, one that nothing uses. Any name introduces a run-time value in the extent of an
index, so nothing else notices a misspelt one there. None of the changes that they propose is safe:
the name may be right, and what is unused may have been meant to be used.
"""

from __future__ import annotations

from collections.abc import Iterable

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.checked import (
    CheckedShuffle,
    Combine,
    Const,
    DenseTarget,
    Input,
    Into,
    PackedTarget,
    Scalar,
)
from fuscoc.lang.dispatch import Path
from fuscoc.lang.scalars import extents, loads
from fuscoc.lang.scope import BUILTINS, CONSTANT, EXTENT, SIZE, Scope
from fuscoc.lang.slips import is_plural, is_slip
from fuscoc.source import Span

# Parameters of the runtime's calls, which take everything else by the names that the spec gives it.
PARAMETERS = {"dispatch": {"self", "handle", "async_op", "after"}}
PARAMETERS["combine"] = PARAMETERS["dispatch"] | {"rows"}


def used_inputs(path: Path, combine: Combine | None, scope: Scope) -> tuple[Input, ...]:
    """The input tensors that the shuffle reads, in the order of their declaration."""
    loaded = {load.input for scalar in _scalars(path) for load in loads(scalar)}
    found = []
    for name, size in scope.sizes.items():
        if name in loaded:
            found.append(Input(name, "i64", (scope.extents[size.index],), "extent", size.span))
    for route in scope.routes.values():
        given = route.input
        if given is not None and given.ident.name in loaded:
            shape = [scope.extents[param] for param in route.params]
            if len(route.results) > 1:
                shape.append(Const(len(route.results)))
            ident = given.ident
            found.append(Input(ident.name, given.dtype, tuple(shape), "route", ident.span))
    target = path.target
    if isinstance(target, PackedTarget) and target.placement.table is not None:
        table, span = target.placement.table, target.placement.span
        found.append(Input(table, "i64", (Const(target.num_keys),), "placement", span))
    for each in dict.fromkeys(part for cast in path.casts for part in cast.given):
        relation = scope.given[each.input]
        dims = (Const(each.count),) if relation.type.shape else ()
        found.append(Input(each.input, "f32", dims, "cast", relation.input.span))
    if combine is not None and combine.weight is not None:
        weight = scope.weights[combine.weight.name]
        weight_shape = tuple(scope.extents[param] for param in weight.params)
        found.append(
            Input(weight.input.name, weight.dtype, weight_shape, "weight", weight.input.span)
        )
    return tuple(sorted(found, key=lambda each: each.span.start))


def used_extents(
    path: Path, inputs: Iterable[Input], scope: Scope
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The run-time extents that the shuffle depends on: declared ones in their order, built-in."""
    shapes = (dim for each in inputs for dim in each.shape)
    used = {name for scalar in (*_scalars(path), *shapes) for name in extents(scalar)}
    declared = sorted(used - BUILTINS.keys(), key=lambda name: scope.symbols[name].span.start)
    return tuple(declared), tuple(name for name in BUILTINS if name in used)


def check_names(
    path: Path,
    inputs: Iterable[Input],
    extents: Iterable[str],
    scope: Scope,
    into: Into | None = None,
) -> None:
    """What a call takes by name has names of its own: fields, inputs and run-time extents, and
    memory of the caller's."""
    named = [(field.name, field.span) for field in path.source.fields]
    named += [(name, scope.symbols[name].span) for name in extents]
    named += [(into.layout, into.span)] if into is not None else []
    weights = {each.name for each in inputs if each.role == "weight"}
    first: dict[str, Span] = {}
    for name, span in (*named, *((each.name, each.span) for each in inputs)):
        call = "combine" if name in weights else "dispatch"
        if name in PARAMETERS[call]:
            label = f"a parameter of every {call} is called so"
            scope.sink.report("FSC010", span, f"the name `{name}` is taken", label)
        elif name in first:
            scope.twice(ast.Ident(name, span=span), first[name])
        first.setdefault(name, span)


def _scalars(path: Path) -> tuple[Scalar, ...]:
    """Every scalar of a path."""
    length = (path.target.length,) if isinstance(path.target, DenseTarget) else ()
    return (
        *(index.extent for index in path.domain),
        *path.source.dims,
        *(subscript.start for subscript in path.source.subscripts),
        *path.target_scalars,
        *path.dropping,
        *length,
    )


def warn(shuffle: ast.Shuffle, checked: CheckedShuffle, scope: Scope) -> None:
    """Report what looks wrong in a shuffle that is right; a name that was meant counts as used."""
    _warn_about_coined(scope)
    _warn_about_unused(shuffle, checked, scope)


def _warn_about_coined(scope: Scope) -> None:
    """Report every new run-time value that is almost a constant, or one that came before it.

    Such a constant is not reported as unused, too.
    """
    known = {name: symbol.kind for name, symbol in scope.symbols.items() if symbol.kind == CONSTANT}
    known |= dict.fromkeys(BUILTINS, "built-in run-time extent")
    for name, symbol in scope.symbols.items():
        if symbol.kind not in {EXTENT, SIZE} or not scope.may_compare(len(known)):
            continue
        like = next((other for other in known if _is_meant(other, name, scope)), None)
        known[name] = symbol.kind
        if like is None:
            continue
        scope.used.add(like)
        declared = scope.symbols.get(like)
        scope.sink.report(
            "FSC091",
            symbol.span,
            f"`{name}` is a new {symbol.kind}, and almost the {known[like]} `{like}`",
            "given with every call, since nothing declares it",
            secondary=[Label(declared.span, "a similar name")] if declared is not None else (),
            fix=Fix(symbol.span, like, f"did you mean `{like}`?"),
        )


def _is_meant(known: str, name: str, scope: Scope) -> bool:
    """Whether a new name is probably a known one: also its plural, if nothing else uses it."""
    unused = known in scope.symbols and known not in scope.used
    return is_slip(name, known) or (unused and is_plural(name, known))


def _warn_about_unused(shuffle: ast.Shuffle, checked: CheckedShuffle, scope: Scope) -> None:
    """Report every name and every placement of a correct shuffle that it does without."""
    removals = _removals(shuffle, scope)
    needed = {*checked.extents, *(given.name for given in checked.inputs)}
    for name, symbol in scope.symbols.items():
        if name not in scope.used and not _introduces(name, needed, scope):
            message = f"the {symbol.kind} `{name}` is never used"
            scope.sink.report("FSC090", symbol.span, message, fix=removals.get(name))
    used = checked.target.placement if isinstance(checked.target, PackedTarget) else None
    for name, placement in scope.placements.items():
        if placement != used:
            message = f"the placement of `{name}` is never used"
            fix = Fix(scope.sink.source.widened(placement.span), "", "remove it")
            scope.sink.report("FSC090", placement.span, message, fix=fix)


def _introduces(index: str, needed: Iterable[str], scope: Scope) -> bool:
    """Whether the extent of an index introduces one of the names ``needed``."""
    span = scope.extent_spans.get(index)
    symbols = (scope.symbols[name] for name in needed if name in scope.symbols)
    return span is not None and any(span.start <= each.span.start < span.end for each in symbols)


def _removals(shuffle: ast.Shuffle, scope: Scope) -> dict[str, Fix]:
    """For each declared name the fix that takes its declaration out of the text."""
    found = {}
    for declaration in shuffle.declarations:
        if isinstance(declaration, ast.Const) and len(declaration.bindings) > 1:
            for binding, span in _with_commas(declaration):
                found[binding.ident.name] = Fix(span, "", "remove it")
        elif isinstance(declaration, ast.Const):
            name = declaration.bindings[0].ident.name
            found[name] = scope.removal(declaration, "remove it")
        elif not isinstance(declaration, ast.Place | ast.Dispatch | ast.Combine):
            found[declaration.ident.name] = scope.removal(declaration, "remove it")
    return found


def _with_commas(const: ast.Const) -> list[tuple[ast.Binding, Span]]:
    """Each of several bindings with the span to remove: one comma goes with it."""
    first, *others = const.bindings
    spans = [Span(first.span.start, others[0].span.start)]
    for previous, binding in zip(const.bindings, others, strict=False):
        spans.append(Span(previous.span.end, binding.span.end))
    return list(zip(const.bindings, spans, strict=True))
