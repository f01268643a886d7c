"""The optional knobs of a dispatch, their values and their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fuscoc.diagnostics import Fix, spelling
from fuscoc.lang import ast
from fuscoc.lang.checked import Policy
from fuscoc.lang.fold import fold_constant, too_large
from fuscoc.lang.scope import Scope
from fuscoc.source import Span

# Every value that the language knows; the first is the default. ``auto`` leaves it to fuscoc.
CHOICES: dict[str, tuple[str, ...]] = {
    "balance": ("none", "auto", "static", "greedy", "lpt", "split", "rebalance"),
    "schedule": ("pairwise", "auto", "fast"),
    "backend": ("auto", "triton", "cuda"),
}
# Two names of one rule: the second is what dialect, plans and runtime call it.
SAME_RULE = {"none": "static"}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
DEFAULT_SLICE_BYTES = 8 * 2**20
MAX_SLICE_BYTES = 2**36
LEVELS: tuple[Literal["node", "rank"], ...] = ("node", "rank")


def check_policy(dispatch: ast.Dispatch, segment_bytes: int | None, scope: Scope) -> Policy:
    """The options of a dispatch with the defaults filled in."""
    return Policy(
        dedup=_dedup(dispatch, scope),
        balance=_choice("balance", dispatch, scope),
        schedule=_choice("schedule", dispatch, scope),
        slice_bytes=_slice_bytes(dispatch, segment_bytes, scope),
        backend=_choice("backend", dispatch, scope),
    )


def option_spans(dispatch: ast.Dispatch) -> tuple[tuple[str, Span], ...]:
    """Where a dispatch says what the policy is: ``dedup`` and the choices, by name."""
    dedups = [("dedup", each.span) for each in dispatch.options if isinstance(each, ast.Dedup)]
    choices = [each for each in dispatch.options if isinstance(each, ast.Choice)]
    return (*dedups, *((each.knob, each.span) for each in choices))


def _dedup(dispatch: ast.Dispatch, scope: Scope) -> tuple[Literal["node", "rank"], ...]:
    dedup = scope.single(dispatch.options, ast.Dedup, "dedup")
    if dedup is None:
        return LEVELS
    scope.distinct(dedup.levels)
    names = [level.name for level in dedup.levels]
    if names == ["none"]:
        return ()
    for level in dedup.levels:
        if level.name == "none":
            scope.sink.report("FSC055", level.span, "`none` stands alone")
        elif level.name not in LEVELS:
            unknown_option(level, "dedup", ("node", "rank", "none"), scope)
    return tuple(level for level in LEVELS if level in names)


def _choice(knob: str, dispatch: ast.Dispatch, scope: Scope) -> str:
    choices = [o for o in dispatch.options if isinstance(o, ast.Choice) and o.knob == knob]
    choice = scope.single(choices, ast.Choice, knob)
    default = CHOICES[knob][0]
    if choice is None:
        return default
    if choice.value.name not in CHOICES[knob]:
        unknown_option(choice.value, knob, CHOICES[knob], scope)
    return choice.value.name


def _slice_bytes(dispatch: ast.Dispatch, segment_bytes: int | None, scope: Scope) -> int:
    clause = scope.single(dispatch.options, ast.Slice, "slice")
    if clause is None:
        return max(DEFAULT_SLICE_BYTES, segment_bytes or 0)
    size = fold_constant(clause.size, scope, positive="the size of a slice")
    unit = UNITS.get(clause.unit.name)
    if unit is None:
        unknown_option(clause.unit, "slice", tuple(UNITS), scope)
    if size is None or unit is None:
        return DEFAULT_SLICE_BYTES
    if size * unit > MAX_SLICE_BYTES:
        too_large("a slice in bytes", size * unit, MAX_SLICE_BYTES, clause.span, scope)
    elif segment_bytes is not None and size * unit < segment_bytes:
        scope.sink.report(
            "FSC056",
            clause.span,
            f"a slice holds whole segments, and one segment is {segment_bytes} bytes",
            fix=Fix(clause.span, f"slice {segment_bytes} B", f"write `slice {segment_bytes} B`"),
        )
    return size * unit


def unknown_option(ident: ast.Ident, knob: str, values: Sequence[str], scope: Scope) -> None:
    """Report a word that an option does not know."""
    scope.sink.report(
        "FSC055",
        ident.span,
        f"`{knob}` knows no `{ident.name}`",
        notes=[f"it knows {', '.join(values)}"],
        fix=spelling(ident.name, ident.span, values),
    )
