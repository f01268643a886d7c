"""Which tensors and run-time extents a shuffle takes with every call, and by which names."""

from __future__ import annotations

from collections.abc import Iterable

from fuscoc.lang import ast
from fuscoc.lang.checked import Combine, Const, DenseTarget, Input, PackedTarget, Scalar
from fuscoc.lang.dispatch import Path
from fuscoc.lang.scalars import extents, loads
from fuscoc.lang.scope import BUILTINS, Scope
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


def check_names(path: Path, inputs: Iterable[Input], extents: Iterable[str], scope: Scope) -> None:
    """What a call takes by name has names of its own: fields, inputs and run-time extents."""
    named = [(field.name, field.span) for field in path.source.fields]
    named += [(name, scope.symbols[name].span) for name in extents]
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
        *length,
    )
