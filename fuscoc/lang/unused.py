"""Warnings about declarations that nothing uses, with the change that removes them."""

from __future__ import annotations

from fuscoc.diagnostics import Fix
from fuscoc.lang import ast
from fuscoc.lang.checked import CheckedShuffle, PackedTarget
from fuscoc.lang.scope import Scope
from fuscoc.source import Span

CODE = "FSC090"


def warn_about_unused(shuffle: ast.Shuffle, checked: CheckedShuffle, scope: Scope) -> None:
    """Report every name and every placement of a correct shuffle that it does without.

    What is unused may have been meant to be used, so no removal is safe.
    """
    removals = _removals(shuffle, scope)
    for name, symbol in scope.symbols.items():
        if name not in scope.used:
            message = f"the {symbol.kind} `{name}` is never used"
            scope.sink.report(CODE, symbol.span, message, fix=removals.get(name))
    used = checked.target.placement if isinstance(checked.target, PackedTarget) else None
    for name, placement in scope.placements.items():
        if placement != used:
            message = f"the placement of `{name}` is never used"
            fix = Fix(scope.sink.source.widened(placement.span), "", "remove it")
            scope.sink.report(CODE, placement.span, message, fix=fix)


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
