"""Where an expression stands decides which names may occur in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuscoc.diagnostics import Label
from fuscoc.lang.scope import EXTENT, INDEX, ROUTE, SIZE, Scope, a
from fuscoc.source import Span


@dataclass(frozen=True)
class Context:
    """A place for expressions: the kinds of names that it allows beside constants."""

    what: str
    kinds: frozenset[str]
    declares: bool = False  # unknown names become run-time extents and per-index inputs
    exact: bool = False  # what is divided is never negative, and leaves no remainder at run time
    is_rank: bool = False  # what stands there is a rank
    taken: frozenset[str] = frozenset()  # results of routes that stand for something else
    why: tuple[str, ...] = ()  # notes about what cannot stand here

    def likely(self, results: Sequence[str]) -> str:
        """Which of a route's results is most probably meant where none is named."""
        return min(results, key=lambda name: (name in self.taken, (name == "rank") != self.is_rank))


CONSTANT_VALUE = Context("a constant", frozenset())
FIELD_DIM = Context(
    "a dimension of a field",
    frozenset(),
    exact=True,
    why=("all segments have one size; what varies is how many there are, a dimension of a layout",),
)
INDEX_EXTENT = Context(
    "the extent of an index", frozenset({EXTENT, SIZE}), declares=True, exact=True
)
DIM_EXTENT = Context("the extent of a dimension", frozenset({EXTENT, SIZE}), exact=True)
POINT = Context("a value at a point", frozenset({INDEX, EXTENT, SIZE, ROUTE}))


def report_misplaced(span: Span, name: str, kind: str, context: Context, scope: Scope) -> None:
    """Report a use of a name that has a value, but not one for this context."""
    if not context.kinds:
        scope.sink.report(
            "FSC020",
            span,
            f"`{scope.text(span)}` is only known at run time",
            "a constant is needed here",
            secondary=[Label(scope.symbols[name].span, a(kind))],
            notes=context.why,
            fix=scope.similar_constant(name, span, safe=False),
        )
    else:
        scope.sink.report(
            "FSC064", span, f"not yet supported: {context.what} that depends on {a(kind)}"
        )
