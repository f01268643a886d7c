"""What syntax errors leave to the check: names that are declared, and nothing is known about them.

Such a name is in no table of the scope, so whoever needs it gives up silently, as with every
declaration that was reported.
"""

from __future__ import annotations

from fuscoc.lang import ast
from fuscoc.lang.scope import CONSTANT, INDEX, LAYOUT, ROUTE, SEGMENT, VIEW, WEIGHT, Scope, Symbol

_KINDS = {
    "const": CONSTANT,
    "index": INDEX,
    "segment": SEGMENT,
    "layout": LAYOUT,
    "view": VIEW,
    "route": ROUTE,
    "weight": WEIGHT,
}


def declare_broken(broken: ast.Broken, scope: Scope) -> None:
    """Enter what a part of a shuffle with a syntax error declares, as far as its words show."""
    scope.doubtful |= broken.words
    scope.used |= broken.words
    scope.is_open = scope.is_open or not broken.is_known
    for keyword, ident in broken.declared:
        scope.broken.add(keyword)
        if ident is not None and keyword in _KINDS:
            scope.symbols.setdefault(ident.name, Symbol(_KINDS[keyword], ident.span))
            if keyword == "const":
                scope.constants.setdefault(ident.name, None)
