"""The way back: a plain copy, or a reduction over the places that a segment went to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import find_unknown_names
from fuscoc.lang.checked import Combine, Const, Field, IndexRef, Inside, Scalar, Weight
from fuscoc.lang.dispatch import Path
from fuscoc.lang.dtypes import INTEGERS
from fuscoc.lang.packed_target import with_slot
from fuscoc.lang.policy import unknown_option
from fuscoc.lang.proof import Facts, Proved, Refuted, Verdict, are_apart, two_points
from fuscoc.lang.reductions import REDUCTIONS, Reduction
from fuscoc.lang.scalars import indices
from fuscoc.lang.scope import LAYOUT, VIEW, WEIGHT, Scope, WeightInfo
from fuscoc.source import Span


def check_combine(
    combine: ast.Combine | ast.Reply, dispatch: ast.Dispatch, path: Path | None, scope: Scope
) -> Combine | None:
    """The way back of a path, None if that was reported already.

    A reply's path begins at its own rows: see ``fuscoc.lang.reply``.
    """
    if path is not None and isinstance(combine, ast.Combine):
        _same_path(combine, dispatch, scope)
    reduce = combine.reduce
    if (reduce is not None and not _is_known(reduce, scope)) or path is None:
        return None
    apart = segments_apart(path, scope)
    checks_cells = not isinstance(apart, Proved) and begin_apart(path, scope)
    if not isinstance(apart, Proved) and not checks_cells:
        _overlap(combine, path, apart, scope)
        return None
    if reduce is None:
        return _copy(combine, path, scope, checks_cells)
    kind = reduce.op.name
    reducible = [can_reduce(reduce, REDUCTIONS[kind], each, scope) for each in path.source.fields]
    if not all(reducible):
        return None
    if reduce.weight is None:
        return Combine(kind, None, combine.span, checks_cells)
    weight = scope.weights[reduce.weight.name]
    if not _is_of_points(weight, reduce, dispatch, path, scope):
        return None
    checked = Weight(weight.ident.name, weight.input.name, weight.dtype, weight.ident.span)
    return Combine(kind, checked, combine.span, checks_cells)


def _is_known(reduce: ast.Reduce, scope: Scope) -> bool:
    """Whether there are such a reduction and its weight; reported if not."""
    if reduce.op.name not in REDUCTIONS:
        unknown_option(reduce.op, "reduce", [*REDUCTIONS], scope)
        return False
    if reduce.weight is None:
        return True
    if not REDUCTIONS[reduce.op.name].sums:
        _weighs_no_sum(reduce, scope)
        return False
    if scope.find(reduce.weight, {WEIGHT}, "a weight") is None:
        return False
    weight = scope.weights.get(reduce.weight.name)
    if weight is not None and reduce.indices is not None:
        _weight_has_indices(reduce.indices, weight, scope)
    return weight is not None


def _overlap(combine: ast.Combine | ast.Reply, path: Path, apart: Verdict, scope: Scope) -> None:
    """Report segments that are not ``apart``."""
    does, notes = "may overlap", list[str]()
    if isinstance(apart, Refuted):
        does, notes = "overlap", [f"{two_points(apart, _source_indices(path))} share a cell"]
    scope.sink.report(
        "FSC070",
        combine.span,
        f"not yet supported: a way back into segments that {does}",
        secondary=[Label(path.source.span, "the segments")],
        notes=notes,
    )


def _is_of_points(
    weight: WeightInfo, reduce: ast.Reduce, dispatch: ast.Dispatch, path: Path, scope: Scope
) -> bool:
    """Whether a weight is given for the points of a path; reported if not."""
    domain = tuple(index.name for index in path.domain)
    if not scope.extents.keys() >= set(domain):  # the runs of a view
        scope.sink.report(
            "FSC063",
            reduce.span,
            "not yet supported: a weighed sum of what lies in a view",
            secondary=[Label(dispatch.target.span, "the view")],
        )
        return False
    if weight.params != domain:
        scope.sink.report(
            "FSC054",
            reduce.span,
            f"`{weight.ident.name}` is given for ({', '.join(weight.params)}), "
            f"and the shuffle runs over ({', '.join(domain)})",
            secondary=[Label(weight.ident.span, "declared here")],
        )
    return weight.params == domain


def segments_apart(path: Path, scope: Scope) -> Verdict:
    """Whether no two segments of a source share a cell, so that a way back into them is one."""
    return are_apart(path.source.subscripts, _source_indices(path), _facts(path, scope))


def begin_apart(path: Path, scope: Scope) -> bool:
    """Whether segments that share a cell begin with the same one, whatever inputs say of where they
    lie: then a run sees it by their first cells.

    What an input says is an index of its own, in the place of those that it is looked up by.
    """
    places = {f"#{number}": part for number, part in enumerate(_places(path))}
    found_by: dict[Scalar, Scalar] = {part: IndexRef(name) for name, part in places.items()}
    subscripts = [
        replace(each, start=found_by.get(each.start, each.start)) for each in path.source.subscripts
    ]
    found = {name for part in places.values() for name in indices(part)}
    seen = {name for each in subscripts for name in indices(each.start)}
    if not places or not found | seen >= set(_source_indices(path)):
        return False
    facts = _facts(path, scope)
    limits = {name: part.limit for name, part in places.items()}
    own = [*(name for name in _source_indices(path) if name in seen), *places]
    facts = replace(facts, extents={**facts.extents, **limits})
    return isinstance(are_apart(subscripts, own, facts), Proved)


def _places(path: Path) -> Iterator[Inside]:
    """What inputs say of where a segment begins, each once."""
    starts = (each.start for each in path.source.subscripts)
    yield from dict.fromkeys(start for start in starts if isinstance(start, Inside))


def _source_indices(path: Path) -> list[str]:
    return [index.name for index in path.domain[: path.num_source_dims]]


def _facts(path: Path, scope: Scope) -> Facts:
    known = [*path.source.dims, *(index.extent for index in path.domain)]
    sizes = {**scope.extents, **{index.name: index.extent for index in path.domain}}
    return Facts(sizes, known, frozenset(scope.sizes))


def _weighs_no_sum(reduce: ast.Reduce, scope: Scope) -> None:
    name, weight = reduce.op.name, Span(reduce.op.span.end, reduce.span.end)
    scope.sink.report(
        "FSC055",
        weight,
        f"`{name}` knows no weight: it takes every row as it is",
        notes=["only the terms of a sum are weighed: `reduce sum(w)`"],
        fix=Fix(weight, "", f"write `{name}`"),
    )


def _weight_has_indices(given: ast.Indices, weight: WeightInfo, scope: Scope) -> None:
    """Report indices behind the name of a weight. Leaving out its own changes nothing."""
    names = tuple(each.name for each in given.listed if isinstance(each, ast.Name))
    scope.sink.report(
        "FSC041",
        given.span,
        f"a sum names its weight without indices: `{weight.ident.name}` is taken at every point",
        f"`{weight.ident.name}` is declared for ({', '.join(weight.params)})",
        secondary=[Label(weight.ident.span, "declared here")],
        fix=Fix(given.span, "", f"write `sum({weight.ident.name})`", safe=names == weight.params),
    )


def _same_path(combine: ast.Combine, dispatch: ast.Dispatch, scope: Scope) -> None:
    """A written-out combine has to name the dispatch's target and source, in this order."""
    if combine.path is None:
        return
    start, end = (_completed(access, scope) for access in combine.path)
    if (start, end) == (_completed(dispatch.target, scope), dispatch.source):
        return
    before = len(scope.sink.errors)
    for access in combine.path:
        scope.find(access.layout, {LAYOUT, VIEW}, "a layout or a view")
        find_unknown_names(access, None, scope)
    if len(scope.sink.errors) > before:
        return
    span = start.span.to(end.span)
    scope.sink.report(
        "FSC051",
        span,
        "this is not the dispatch turned around",
        secondary=[Label(dispatch.source.span.to(dispatch.target.span), "the dispatch")],
        fix=Fix(span, "reverse", "write `combine reverse` and what follows"),
    )


def _completed(access: ast.Access, scope: Scope) -> ast.Access:
    """An access with the slot that it lacks, if it does, which is a mistake of its own."""
    layout = scope.layouts.get(access.layout.name)
    return with_slot(access, layout, scope) if layout is not None and layout.packed else access


def _copy(
    combine: ast.Combine | ast.Reply, path: Path, scope: Scope, checks_cells: bool
) -> Combine | None:
    fan_out = path.domain[path.num_source_dims :]
    if fan_out and "reduce" in scope.doubtful:  # which stands somewhere else
        return None
    if fan_out:
        names = " and ".join(f"`{index.name}`" for index in fan_out)
        why, label = f"each segment went out once for each {names}", "fans out"
        if isinstance(combine, ast.Reply):
            why, label = f"a row comes back for each {names}", "a row for each"
        scope.sink.report(
            "FSC052",
            combine.span,
            f"{why}, so several come back to one place",
            secondary=[Label(index.span, label) for index in fan_out],
            notes=_two_rows(combine, path),
            help="say what to do with them: `reduce sum`, or `reduce sum(w)` with a weight, "
            "or `reduce max`",
        )
        return None
    return Combine("copy", None, combine.span, checks_cells)


def _two_rows(combine: ast.Combine | ast.Reply, path: Path) -> list[str]:
    """Two points whose rows come back to one place."""
    names = [index.name for index in path.domain]
    many = [i for i, each in enumerate(path.domain) if i >= path.num_source_dims]
    moved = next((i for i in many if path.domain[i].extent != Const(1)), None)
    if moved is None:
        return []
    points = ([int(i == moved and point) for i in range(len(names))] for point in (0, 1))
    spelled = [", ".join(map(str, point)) for point in points]
    zeros = ", ".join("0" for _ in path.domain[: path.num_source_dims])
    there = f"the segment ({zeros})"
    if isinstance(combine, ast.Reply):
        there = f"`{combine.ident.name}[{zeros}]`"
    return [
        f"the rows of the points ({', '.join(names)}) = ({spelled[0]}) and ({spelled[1]}) both "
        f"come back to {there}"
    ]


def can_reduce(reduce: ast.Reduce, reduction: Reduction, field: Field, scope: Scope) -> bool:
    """Whether a field can be reduced so; reported if not."""
    declared = [Label(field.span, "declared here")]
    if field.is_complex and not reduction.sums:
        scope.sink.report(
            "FSC053",
            reduce.span,
            f"`{field.name}` is {field.spelled}, and complex numbers have no order",
            secondary=declared,
        )
        return False
    if field.dtype in reduction.dtypes:
        return True
    if reduction.sums and field.dtype in INTEGERS:
        scope.sink.report(
            "FSC053",
            reduce.span,
            f"`{field.name}` is {field.dtype}, and only floating-point fields are summed",
            secondary=declared,
        )
    else:
        scope.sink.report(
            "FSC066",
            reduce.span,
            f"not yet supported: {reduction.noun} of {field.dtype}",
            secondary=declared,
            notes=["what comes back are rows of the source's segment, whatever was sent"],
            help=f"let the source be bf16, and narrow it on the way out: `cast({field.name})`, or "
            f"`cast({field.name} by …)` with scales",
        )
    return False
