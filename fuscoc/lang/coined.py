"""Warnings about names that the extent of an index introduces, and that are almost others.

Any name will do in such an extent, so that nothing else notices a misspelt one.
"""

from __future__ import annotations

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang.scope import BUILTINS, CONSTANT, EXTENT, SIZE, Scope
from fuscoc.lang.slips import is_plural, is_slip

CODE = "FSC091"


def warn_about_coined(scope: Scope) -> None:
    """Report every new run-time value that is almost a constant, or one that came before it.

    Such a constant is not reported as unused, too. The name may be right, so no change is safe.
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
            CODE,
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
