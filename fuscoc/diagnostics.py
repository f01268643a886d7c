"""Errors as data: the catalogue of codes, diagnostics, and the exceptions that carry them.

A mistake in a ``.fsc`` becomes a ``Diagnostic``; many are collected before one ``CompileError``
shows them all. An ``InternalError`` is always a mistake of fuscoc itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fuscoc.rendering import render as render
from fuscoc.source import SourceFile, Span

# Codes are stable: one is never given a second meaning. FSC00x text, 01x names, 02x numbers and
# types, 03x layouts, 04x routes, 05x dispatch and combine, 06x-07x not yet supported, 09x warnings.
# What a code means, with examples, is in ``fuscoc/errors``.
CATALOGUE: dict[str, str] = {
    "FSC001": "unexpected text",
    "FSC002": "character outside the language",
    "FSC003": "number or expression too large",
    "FSC004": "no shuffle in the file",
    "FSC010": "name declared twice",
    "FSC011": "unknown name",
    "FSC012": "name of the wrong kind",
    "FSC013": "clause given twice",
    "FSC014": "cannot replace a constant: not declared, or not a whole number",
    "FSC020": "not a constant",
    "FSC021": "not a positive number",
    "FSC022": "division by zero",
    "FSC023": "number out of range",
    "FSC024": "unknown element type",
    "FSC025": "division leaves a remainder",
    "FSC026": "not a whole number",
    "FSC030": "wrong number of subscripts",
    "FSC031": "extent of a dimension missing or contradictory",
    "FSC032": "clause does not fit the layout",
    "FSC033": "range without a constant length",
    "FSC034": "subscript may leave its layout",
    "FSC035": "segment does not match its source",
    "FSC036": "subscript of the wrong form",
    "FSC037": "slots without a segment",
    "FSC040": "no placement",
    "FSC041": "wrong indices",
    "FSC042": "wrong results of a route",
    "FSC043": "wrong element type of an input",
    "FSC044": "destination rank missing or superfluous",
    "FSC045": "key of another index",
    "FSC046": "keys do not divide over the ranks",
    "FSC050": "no dispatch",
    "FSC051": "combine or reply is not the way back of dispatch",
    "FSC052": "several copies come back to one place",
    "FSC053": "reduction does not fit the elements",
    "FSC054": "weight does not cover the shuffle",
    "FSC055": "unknown option",
    "FSC056": "slice smaller than a segment",
    "FSC057": "cannot plan for the topology when compiling",
    "FSC058": "cast does not fit the fields",
    "FSC059": "two segments in one slot",
    "FSC061": "not yet supported: cast between these types, or with these scales or channels",
    "FSC063": "not yet supported: dense target, view as target or `into` of this form",
    "FSC064": "not yet supported: raggedness beyond the outermost index",
    "FSC065": "not yet supported: computed source subscript",
    "FSC066": "not yet supported: reduction of these fields",
    "FSC068": "not yet supported: run-time arithmetic",
    "FSC069": "not yet supported: packed layout of this form",
    "FSC070": "not yet supported: way back into overlapping segments",
    "FSC071": "not yet supported: CUDA kernels for a shuffle of this kind",
    "FSC072": "not yet supported: functions in expressions",
    "FSC090": "unused declaration",
    "FSC091": "new run-time value that is almost another name",
}


Severity: TypeAlias = Literal["error", "warning"]


def severity_of(code: str) -> Severity:
    """Whether what a code stands for keeps a spec from being compiled."""
    return "warning" if code.startswith("FSC09") else "error"


# How alike two names are, as difflib's ratio: 1 for equal ones. One slip in a word of five letters
# leaves at least 0.8.
SIMILAR, ONE_SLIP = 0.6, 0.8


@dataclass(frozen=True)
class Label:
    """A place in the source and a few words about it (may be empty)."""

    span: Span
    text: str = ""


@dataclass(frozen=True)
class Fix:
    """Text to put in place of ``span``: an insertion has an empty span, a removal no text.

    ``title`` says so in words. A ``safe`` fix is the only thing that can have been meant, and
    ``fuscoc check --fix`` applies it; any other is a suggestion.
    """

    span: Span
    replacement: str
    title: str
    safe: bool = False


@dataclass(frozen=True)
class Diagnostic:
    """One error or warning: a stable code, one terse message, labelled places, notes and help.

    Where the help can be carried out by changing the text in one place, ``fix`` is that change and
    ``help`` its title.
    """

    code: str
    message: str
    primary: Label
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None

    def __post_init__(self) -> None:
        if self.code not in CATALOGUE:
            raise InternalError(f"{self.code} is not in the catalogue")

    @property
    def severity(self) -> Severity:
        return severity_of(self.code)


class CompileError(Exception):
    """A spec has errors; ``str()`` shows all of them with their source lines."""

    def __init__(self, source: SourceFile, diagnostics: Iterable[Diagnostic]) -> None:
        self.source = source
        self.diagnostics = tuple(diagnostics)
        super().__init__(source, self.diagnostics)

    def __str__(self) -> str:
        return "\n".join(render(diagnostic, self.source) for diagnostic in self.diagnostics)


class InternalError(Exception):
    """A bug of fuscoc, located in the user's source where that is known."""

    def __init__(
        self, message: str, source: SourceFile | None = None, span: Span | None = None
    ) -> None:
        self.message = message
        self.source = source
        self.span = span
        super().__init__(message, source, span)

    def __str__(self) -> str:
        place = ""
        if self.source is not None and self.span is not None:
            line, column = self.source.line_column(self.span.start)
            place = f"{self.source.path}:{line}:{column}: "
        return f"{place}internal error: {self.message} (a bug of fuscoc: please report it)"


class DiagnosticSink:
    """Collects the diagnostics of one source file; the first about a place and code is kept."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self._found: dict[tuple[str, Span], Diagnostic] = {}

    def report(
        self,
        code: str,
        span: Span,
        message: str,
        label: str = "",
        *,
        secondary: Iterable[Label] = (),
        notes: Iterable[str] = (),
        help: str | None = None,
        fix: Fix | None = None,
    ) -> None:
        """Add one diagnostic; see ``Diagnostic`` for the parts. A ``fix`` brings its own help."""
        if fix is not None:
            help = fix.title
        found = Diagnostic(
            code, message, Label(span, label), tuple(secondary), tuple(notes), help, fix
        )
        self._found.setdefault((code, span), found)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything reported so far, in the order of the source text."""
        return tuple(sorted(self._found.values(), key=lambda d: (d.primary.span.start, d.code)))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity == "error")

    def raise_errors(self) -> None:
        """Raise ``CompileError`` with every error, if there is one."""
        if self.errors:
            raise CompileError(self.source, self.errors)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``name`` is most probably a misspelling of, if any is close."""
    matches = _close(name, candidates)
    return matches[0] if matches else None


def spelling(
    name: str, span: Span, candidates: Iterable[str], cutoff: float = SIMILAR
) -> Fix | None:
    """The fix for a misspelt name; safe where it is just one slip from one candidate alone.

    ``cutoff`` is how alike the candidates must be at least.
    """
    candidates = set(candidates)
    matches = _close(name, candidates, ONE_SLIP)
    safe = len(matches) == 1 and len(name) > 2
    matches = matches or _close(name, candidates, cutoff)
    if not matches:
        return None
    listed = " or ".join(f"`{match}`" for match in matches)
    return Fix(span, matches[0], f"did you mean {listed}?", safe)


def _close(name: str, candidates: Iterable[str], cutoff: float = SIMILAR) -> list[str]:
    """The one or two candidates that are most like a name, the nearest first."""
    from difflib import get_close_matches  # only needed once something went wrong

    return get_close_matches(name, sorted(set(candidates)), n=2, cutoff=cutoff)
