"""The names of one shuffle and what is known about them so far.

The check fills the tables in stages: constants, indices, segments, layouts, routes, dispatch.
A name that is declared but missing from its table was reported already, and whoever needs it gives
up silently: one mistake, one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fuscoc.diagnostics import DiagnosticSink, Fix, Label, spelling
from fuscoc.lang import ast
from fuscoc.lang.checked import (
    Bound,
    ExactNumbers,
    Field,
    Placement,
    Scalar,
    Subscript,
    run_lengths,
)
from fuscoc.lang.slips import is_plural, is_slip
from fuscoc.source import Span

T = TypeVar("T", bound=ast.Node)

# Kinds of names, in the user's words.
CONSTANT, INDEX, SEGMENT, LAYOUT, VIEW = "constant", "index", "segment", "layout", "view"
ROUTE, WEIGHT, EXTENT, SIZE = "route", "weight", "run-time extent", "per-index input"
REPLY = "reply"

# Pairs of names of one shuffle that are compared in all, to see whether one is meant for the other.
# No person's text has as many; a generated one may have thousands of names, and of errors.
MOST_COMPARED = 100_000

# Run-time extents of every shuffle, known without being declared.
BUILTINS = {"rank": "the executing rank", "ranks": "the number of ranks"}


@dataclass(frozen=True)
class Symbol:
    """A declared name."""

    kind: str
    span: Span


@dataclass(frozen=True)
class LayoutInfo:
    """A layout whose parts are all right. ``extents`` are over the layout's own dimensions."""

    ident: ast.Ident
    dims: tuple[str, ...]
    extents: tuple[Scalar, ...]  # without that of a packed dimension
    segment: str | None
    fields: tuple[Field, ...]
    packed: bool
    align: int = 1
    padding: str = ""
    capacity: int | None = None
    compact: Span | None = None  # where it says so
    distinct: Span | None = None


@dataclass(frozen=True)
class AccessInfo:
    """Where in a layout segments lie: ``dims`` and ``subscripts`` over domain indices.

    ``order`` are the positions of the runs among the subscripts as a segment has them, outermost
    first, if that is another order than the layout's.
    """

    layout: LayoutInfo
    dims: tuple[Scalar, ...]
    subscripts: tuple[Subscript, ...]
    order: tuple[int, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The runs of a segment, outermost first."""
        return run_lengths(self.subscripts, self.order)


@dataclass(frozen=True)
class RouteInput:
    """The tensor that a route is given as."""

    ident: ast.Ident
    dtype: str


@dataclass(frozen=True)
class RouteInfo:
    """A route: one scalar over ``params`` for each result, elements of ``input`` or computed."""

    ident: ast.Ident
    params: tuple[str, ...]
    results: tuple[str, ...]
    values: tuple[Scalar, ...]
    input: RouteInput | None = None


@dataclass(frozen=True)
class WeightInfo:
    """A weight given as an input tensor."""

    ident: ast.Ident
    params: tuple[str, ...]
    input: ast.Ident
    dtype: str


@dataclass(frozen=True)
class SizeInfo:
    """An input with one value for each point of an index, such as ``height(n)``."""

    index: str
    span: Span


@dataclass
class Scope:
    """Everything that is known about one shuffle while it is checked."""

    sink: DiagnosticSink
    symbols: dict[str, Symbol] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    inputs: dict[str, Span] = field(default_factory=dict)

    constants: dict[str, Scalar | None] = field(default_factory=dict)  # None: reported
    lists: dict[str, ExactNumbers] = field(default_factory=dict)  # of casts, by their constants
    given: dict[str, ast.InputRelation] = field(default_factory=dict)  # inputs among them
    extents: dict[str, Scalar] = field(default_factory=dict)  # of indices
    extent_spans: dict[str, Span] = field(default_factory=dict)
    sizes: dict[str, SizeInfo] = field(default_factory=dict)
    segments: dict[str, tuple[Field, ...]] = field(default_factory=dict)
    layouts: dict[str, LayoutInfo] = field(default_factory=dict)
    views: dict[str, tuple[tuple[str, ...], AccessInfo]] = field(default_factory=dict)
    routes: dict[str, RouteInfo] = field(default_factory=dict)
    uncomputed: set[str] = field(default_factory=set)  # routes whose expressions come later
    weights: dict[str, WeightInfo] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)  # that nobody could prove
    compared: int = 0  # pairs of names
    misplaced: bool = False  # a `place` of something that is no index was reported

    # The keywords and all words of declarations with a syntax error, and whether those may declare
    # more names than are known.
    broken: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    is_open: bool = False

    def declare(self, ident: ast.Ident, kind: str) -> bool:
        """Enter a name; False, with a report, if it is taken."""
        if not self._free(ident):
            return False
        previous = self.symbols.get(ident.name)
        if previous is None:
            self.symbols[ident.name] = Symbol(kind, ident.span)
            return True
        self.twice(ident, previous.span)
        self.repeated.add(ident.name)
        return False

    def declare_input(self, ident: ast.Ident, owner: ast.Ident | None = None) -> None:
        """Enter an input tensor; only the declaration it feeds may have the same name."""
        if not self._free(ident):
            return
        symbol = self.symbols.get(ident.name)
        if ident.name in self.inputs:
            self.twice(ident, self.inputs[ident.name])
        elif symbol is not None and (owner is None or ident.name != owner.name):
            self.twice(ident, symbol.span)
        self.inputs.setdefault(ident.name, ident.span)

    def _free(self, ident: ast.Ident) -> bool:
        """Whether a name is not built in; a report if it is."""
        if ident.name in BUILTINS:
            self.sink.report(
                "FSC010",
                ident.span,
                f"the name `{ident.name}` is taken",
                f"this is {BUILTINS[ident.name]}, in every shuffle",
            )
        return ident.name not in BUILTINS

    def twice(self, ident: ast.Ident, first: Span) -> None:
        self.sink.report(
            "FSC010",
            ident.span,
            f"the name `{ident.name}` is taken",
            secondary=[Label(first, "first declared here")],
        )

    def distinct(self, idents: Sequence[ast.Ident]) -> bool:
        """Whether the names of a list differ; repeated ones are reported."""
        seen: dict[str, Span] = {}
        for ident in idents:
            if ident.name in seen:
                self.sink.report(
                    "FSC010",
                    ident.span,
                    f"`{ident.name}` occurs twice",
                    secondary=[Label(seen[ident.name], "first here")],
                )
            seen.setdefault(ident.name, ident.span)
        return len(seen) == len(idents)

    def may_declare(self, name: str) -> bool:
        """Whether a declaration with a syntax error may be that of an unknown name."""
        return self.is_open or name in self.doubtful

    def may_have(self, keyword: str) -> bool:
        """Whether a declaration with a syntax error may be one with this keyword."""
        return self.is_open or keyword in self.broken

    def single(self, clauses: Iterable[object], cls: type[T], keyword: str) -> T | None:
        """The clause of a class, if given; the first, with a report, if given twice."""
        found = [clause for clause in clauses if isinstance(clause, cls)]
        for clause in found[1:]:
            self.sink.report(
                "FSC013",
                clause.span,
                f"`{keyword}` is given twice",
                secondary=[Label(found[0].span, "first given here")],
                fix=self.removal(clause, f"leave out this `{keyword}`", safe=clause == found[0]),
            )
        return found[0] if found else None

    def find(self, ident: ast.Ident | ast.Name, kinds: Iterable[str], wanted: str) -> str | None:
        """The kind of a name that is used; None, with a report, if it is none of ``kinds``."""
        kinds = tuple(kinds)
        symbol = self.symbols.get(ident.name)
        if symbol is None:
            self.unknown(ident, kinds, wanted)
            return None
        self.used.add(ident.name)
        if symbol.kind in kinds:
            return symbol.kind
        if ident.name in self.repeated:
            return None  # the other declaration may have been meant
        self.sink.report(
            "FSC012",
            ident.span,
            f"`{ident.name}` is {a(symbol.kind)}, not {wanted}",
            f"{wanted} is needed here",
            secondary=[Label(symbol.span, "declared here")],
        )
        return None

    def may_compare(self, count: int) -> bool:
        """Whether a name may be compared with so many more."""
        self.compared += count
        return self.compared <= MOST_COMPARED

    def unknown(self, ident: ast.Ident | ast.Name, kinds: Iterable[str], wanted: str) -> None:
        kinds = tuple(kinds)
        if self.may_declare(ident.name) or (
            "index" in self.broken and {EXTENT, SIZE} & set(kinds)  # which its extent introduces
        ):
            return
        known = self.symbols.items() if self.may_compare(len(self.symbols)) else ()
        candidates = [name for name, symbol in known if symbol.kind in kinds]
        fix = spelling(ident.name, ident.span, candidates)
        if fix is not None and fix.replacement in self.doubtful:
            return  # the syntax error may be in the name that was meant
        notes = []
        if fix is None and 0 < len(candidates) <= 4:
            notes.append(f"declared: {', '.join(f'`{name}`' for name in candidates)}")
        if {EXTENT, SIZE} & set(kinds):
            notes.append("run-time values are introduced by the extent of an `index`")
        self.sink.report(
            "FSC011",
            ident.span,
            f"`{ident.name}` is not declared",
            f"{wanted} is needed here",
            secondary=[Label(self.symbols[fix.replacement].span, "a similar name")] if fix else (),
            notes=notes,
            fix=fix,
        )

    def similar_constant(self, name: str, span: Span, *, safe: bool) -> Fix | None:
        """The fix for a name that stands where a constant should, if it is almost one's name.

        ``safe`` says that the name can have been meant for nothing else.
        """
        if not self.may_compare(len(self.symbols)):
            return None
        constants = [n for n, symbol in self.symbols.items() if symbol.kind == CONSTANT]
        fix = spelling(name, span, (n for n in constants if is_slip(name, n) or is_plural(name, n)))
        if fix is None:
            return None
        title = f"did you mean the constant `{fix.replacement}`?"
        return replace(fix, title=title, safe=safe and fix.safe)

    def removal(self, node: ast.Node, title: str, *, safe: bool = False) -> Fix:
        """The fix that takes a clause or a declaration out of the text, with its empty line."""
        return Fix(self.sink.source.widened(node.span), "", title, safe)

    def declared_before(self, node: ast.Node, declaration: str) -> Fix:
        """The fix that adds a declaration on a line of its own before another."""
        source, start = self.sink.source, node.span.start
        line, column = source.line_column(start)
        indent = source.line_text(line)[: column - 1]
        after = f"\n{indent}" if indent.isspace() else " "
        return Fix(Span(start, start), declaration + after, f"add `{declaration}`")

    def text(self, span: Span) -> str:
        """The source text of a span, on one line."""
        return " ".join(self.sink.source.text[span.start : span.end].split())


def a(noun: str) -> str:
    """The noun with its article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def plural(count: int, noun: str) -> str:
    """``1 index``, ``2 subscripts``."""
    plurals = {"index": "indices"}
    return f"{count} {noun if count == 1 else plurals.get(noun, noun + 's')}"
