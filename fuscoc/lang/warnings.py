"""Warnings about the names of a correct shuffle: one that is almost another, one that nothing uses.

Any name introduces a run-time value in the extent of an index, so nothing else notices a misspelt
one there. None of the changes that they propose is safe: the name may be right, and what is unused
may have been meant to be used.
"""

from __future__ import annotations

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.checked import CheckedShuffle, PackedTarget
from fuscoc.lang.scope import BUILTINS, CONSTANT, EXTENT, SIZE, Scope
from fuscoc.lang.slips import is_plural, is_slip
from fuscoc.source import Span


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
        if symbol.kind not in {EXTENT, SIZE}:
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
    for name, symbol in scope.symbols.items():
        if name not in scope.used:
            message = f"the {symbol.kind} `{name}` is never used"
            scope.sink.report("FSC090", symbol.span, message, fix=removals.get(name))
    used = checked.target.placement if isinstance(checked.target, PackedTarget) else None
    for name, placement in scope.placements.items():
        if placement != used:
            message = f"the placement of `{name}` is never used"
            fix = Fix(scope.sink.source.widened(placement.span), "", "remove it")
            scope.sink.report("FSC090", placement.span, message, fix=fix)


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
