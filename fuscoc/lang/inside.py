"""What must stay inside a dimension or an index: proved, left for a run to check, or reported."""

from __future__ import annotations

from collections.abc import Sequence

from fuscoc.diagnostics import Label
from fuscoc.lang.checked import BinaryOp, Bound, Const, ExtentRef, Scalar
from fuscoc.lang.proof import (
    Facts,
    Proved,
    Refuted,
    Unknown,
    Verdict,
    at,
    described,
    stays_inside,
)
from fuscoc.lang.scalars import indices, loads, parts
from fuscoc.lang.scope import Scope
from fuscoc.source import Span

UNPROVED = "the last values of the indices must lead to the last cell at most"


def must_stay_inside(
    start: Scalar,
    length: int,
    dim: Scalar,
    checked: Sequence[Scalar],
    what: str,
    declared: Label,
    span: Span,
    scope: Scope,
    help: str | None = None,
) -> bool:
    """Whether ``length`` cells from ``start`` on are inside ``dim``; a report if not.

    What cannot be proved, and is not refuted either, a run checks: unless it depends on inputs.
    ``checked`` are extents that a run checks beside those of the indices.
    """
    used = _extents(start, dim, scope)
    verdict = _verdict(start, length, dim, checked, scope)
    if isinstance(verdict, Proved):
        return True
    if isinstance(verdict, Unknown) and not any(loads(each) for each in (start, dim, *used)):
        scope.bounds.append(Bound(start, less(dim, length - 1)))
        return True
    message, note = f"cannot show that this stays inside {what}", UNPROVED
    if isinstance(verdict, Refuted):
        message = f"this leaves {what}"
        first, end = at(start, verdict.values), at(dim, verdict.values)
        assert first is not None
        assert end is not None
        covers = f"it is {first}" if length == 1 else f"it covers {first} to {first + length - 1}"
        exist = "and there is nothing" if end == 0 else f"and there are 0 to {end - 1}"
        sizes = (part for size in used for part in parts(size))
        shown = {*parts(start), *parts(dim), *sizes, ExtentRef("ranks")}
        where = described({name: each for name, each in verdict.values.items() if name in shown})
        note = f"{where}{', ' if where else ''}{covers}, {exist}"
    scope.sink.report("FSC034", span, message, secondary=[declared], notes=[note], help=help)
    return False


def is_seen_inside(start: Scalar, dim: Scalar, checked: Sequence[Scalar], scope: Scope) -> bool:
    """Whether it is proved that ``0 <= start < dim``; nothing is reported."""
    return isinstance(_verdict(start, 1, dim, checked, scope), Proved)


def _verdict(
    start: Scalar, length: int, dim: Scalar, checked: Sequence[Scalar], scope: Scope
) -> Verdict:
    facts = Facts(scope.extents, [*checked, *_extents(start, dim, scope)], frozenset(scope.sizes))
    return stays_inside(start, length, dim, facts)


def _extents(start: Scalar, dim: Scalar, scope: Scope) -> list[Scalar]:
    """Those of the indices that two scalars depend on."""
    return [scope.extents[name] for name in dict.fromkeys([*indices(start), *indices(dim)])]


def less(dim: Scalar, number: int) -> Scalar:
    """An extent less a number, at least 0 if that is known."""
    if isinstance(dim, Const):
        return Const(max(dim.value - number, 0))
    return BinaryOp("-", dim, Const(number)) if number else dim
