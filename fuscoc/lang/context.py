"""Which names may stand where.

A context for expressions allows kinds of names. Indices are nominal: where one is declared, another
is a mistake, also one of the same extent. Only a plain index can be of the wrong name. An
expression is a number, which may stand wherever it is shown to stay inside, and so is a plain index
where a layout named its dimension itself.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.scope import EXTENT, INDEX, ROUTE, SIZE, Scope, a
from fuscoc.source import Span


@dataclass(frozen=True)
class Context:
    """A place for expressions: the kinds of names that it allows beside constants."""

    what: str
    kinds: frozenset[str]
    declares: bool = False  # unknown names become run-time extents and per-index inputs
    exact: bool = False  # what is divided is never negative, and leaves no remainder at run time
    builtin: bool = False  # the number of ranks, and that of a rank
    is_rank: bool = False  # what stands there is a rank
    taken: frozenset[str] = frozenset()  # results of routes that stand for something else
    why: tuple[str, ...] = ()  # notes about what cannot stand here

    def likely(self, results: Sequence[str]) -> str:
        """Which of a route's results is most probably meant where none is named."""
        return min(results, key=lambda name: (name in self.taken, (name == "rank") != self.is_rank))


CONSTANT_VALUE = Context("a constant", frozenset(), builtin=True)
NUMBER = Context("a constant", frozenset())
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


Wrong: TypeAlias = list[tuple[ast.Name, str]]  # each index with the one that belongs in its place


def check_indices(
    given: Sequence[ast.Subscript],
    declared: Sequence[str],
    owner: ast.Ident,
    scope: Scope,
    *,
    computed: bool = True,
    domain: Container[str] | None = None,
) -> bool:
    """Whether what ``owner`` is declared for is given for it; one report about all that is not.

    ``computed`` says that an expression could stand here, too, and ``domain`` which indices can
    occur here, if that is known.
    """
    wrong = [
        (each, wanted)
        for each, wanted in zip(given, declared, strict=True)
        if isinstance(each, ast.Name)
        and each.name != wanted
        and is_index(each.name, scope)
        and is_index(wanted, scope)
    ]
    if not wrong:
        return True
    span = wrong[0][0].span.to(wrong[-1][0].span)
    found, wanted = wrong[0]
    is_number = len(wrong) == 1 and computed
    notes = []
    if is_number and domain is not None and wanted not in domain:
        number = f"{found.name} + 0"
        fix = Fix(found.span, number, f"write `{number}` if its number is meant")
    else:
        right = _replaced(wrong, scope)
        fix = Fix(span, right, f"did you mean `{right}`?")
        if is_number and scope.extents.get(found.name) == scope.extents.get(wanted):
            notes.append(
                f"`{found.name}` and `{wanted}` have the same extent; where the number of "
                f"`{found.name}` is meant, write `{found.name} + 0`"
            )
    listed = f"`{declared[0]}`" if len(declared) == 1 else f"({', '.join(declared)})"
    scope.sink.report(
        "FSC041",
        span,
        _message(wrong),
        f"`{owner.name}` is declared for {listed}",
        secondary=[Label(owner.span, "declared here")],
        notes=notes,
        fix=fix,
    )
    return False


def is_index(name: str, scope: Scope) -> bool:
    """Whether a name is that of a declared index."""
    symbol = scope.symbols.get(name)
    return symbol is not None and symbol.kind == INDEX


def _message(wrong: Wrong) -> str:
    found, wanted = [each.name for each, _ in wrong], [name for _, name in wrong]
    if sorted(found) != sorted(wanted):
        noun = "the index" if len(wrong) == 1 else "the indices"
        return f"expected {noun} {_listed(wanted)}, found {_listed(found)}"
    how = "are swapped" if len(wrong) == 2 else "are in another order than declared"
    return f"{_listed(found)} {how}"


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def _replaced(wrong: Wrong, scope: Scope) -> str:
    """The text from the first wrong index to the last, with the right ones in their places."""
    text, at = "", wrong[0][0].span.start
    for found, wanted in wrong:
        text += scope.sink.source.text[at : found.span.start] + wanted
        at = found.span.end
    return text
