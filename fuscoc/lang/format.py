"""The one way to write a text: ``fuscoc fmt``.

Declarations stand on lines of their own, two spaces inside their shuffle; what does not fit in
``WIDTH`` columns goes on, indented, at the next option, comma or operator. Neighbouring lines of
one kind are aligned in columns. The fields of a segment stand on one line or, where a comma follows
the last, on one line each. Empty lines stay, one at a time. Comments stay at their word; those at
the ends of neighbouring lines start in one column, the writer's if there is room for it.

Only space and that last comma are ever changed, so the syntax tree stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fuscoc.lang.words import Comment, File, Shuffle, Word, read_words
from fuscoc.source import SourceFile

WIDTH = 100
INDENT = 2

# Columns that the names of neighbouring declarations start in.
_NAME_COLUMN = {
    **dict.fromkeys(["layout", "view", "place", "route", "weight"], 8),
    **dict.fromkeys(["dispatch", "combine", "reply"], 9),
}
_OPERATORS = {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT"}
# Parentheses that do not belong to the name before them.
_FREE_STANDING = {"group", "results", "computed"}
# The words that start a column, with their rules; so does the first option.
_COLUMNS = {
    *(("COLON", "index"), ("LBRACE", "segment"), ("COLON", "field"), ("OF", "layout")),
    *(("EQUAL", "view"), ("EQUAL", "route"), ("EQUAL", "weight")),
    *(("ARROW", "dispatch"), ("ARROW", "combine")),
}
_OPTION = "option"
# Declarations of one kind share their columns.
_KINDS = {"route": "relation", "weight": "relation", "dispatch": "path", "combine": "path"}
_TAB = 4


@dataclass
class Line:
    """A line to be: its parts, each starting a column with a label, and a comment behind them."""

    parts: list[tuple[str, str]]
    indent: int
    kind: str = ""
    blank: bool = False
    comment: Comment | None = None

    @property
    def text(self) -> str:
        return " " * self.indent + "".join(text for _, text in self.parts)


def format_text(source: SourceFile) -> str:
    """The text in its one form, with ``\\n`` at the end of each line.

    Raises:
        CompileError: with every syntax error of the text.
    """
    lines = list(_file(read_words(source)))
    lines[0].blank = False
    _align_parts(lines)
    return "".join(_written(block, source) for block in _blocks(lines))


def _file(file: File) -> Iterator[Line]:
    for number, shuffle in enumerate(file.shuffles):
        first, *lines = _shuffle(shuffle)
        first.blank |= number > 0
        yield first
        yield from lines
    yield from _comments(file.rest, 0)


def _shuffle(shuffle: Shuffle) -> Iterator[Line]:
    yield from _declaration(shuffle.header, 0)
    for number, words in enumerate(shuffle.declarations):
        first, *lines = _declaration(words, INDENT)
        first.blank &= number > 0
        yield first
        yield from lines
    inside = list(_comments(shuffle.closing.above, INDENT))
    if inside and not shuffle.declarations:
        inside[0].blank = False
    yield from inside
    yield Line([("", "}")], 0, comment=shuffle.closing.beside)


def _comments(comments: Sequence[Comment], indent: int) -> Iterator[Line]:
    for comment in comments:
        yield Line([("", comment.text)], indent, blank=comment.blank)


def _declaration(words: list[Word], indent: int) -> Iterator[Line]:
    """The lines of one declaration, or of the head of a shuffle."""
    _comments_behind_commas(words)
    rule = words[0].rule
    fields = _fields(words) if rule == "segment" else [words]
    for number, part in enumerate(fields):
        is_field = 0 < number < len(fields) - 1
        start = indent + (INDENT if is_field else 0)
        chunks = enumerate(_chunks(part))
        lines = [line for i, chunk in chunks for line in _wrapped(chunk, start + INDENT * (i > 0))]
        for position, (inner, line) in enumerate(lines):
            above = INDENT if number and not is_field else 0  # before the closing brace
            is_first = number == position == 0
            for comment in line[0].above:
                text = [("", comment.text)]
                yield Line(text, inner + above, blank=comment.blank and is_first)
            kind = "field" if is_field else _KINDS.get(rule, rule)
            yield Line(
                _parts(line),
                inner,
                kind=kind if position == 0 else "",
                blank=line[0].blank and is_first,
                comment=line[-1].beside,
            )


def _comments_behind_commas(words: list[Word]) -> None:
    """A comment between a word and its comma goes behind the comma."""
    for word, comma in pairwise(words):
        if comma.kind == "COMMA" and word.beside and not (comma.above or comma.beside):
            word.beside, comma.beside = None, word.beside


def _fields(words: list[Word]) -> list[list[Word]]:
    """A segment in parts: its head, its fields and its brace, or all in one if it fits a line."""
    commas = [i for i, word in enumerate(words) if word.kind == "COMMA" and word.rule == "segment"]
    has_last = commas[-1:] == [len(words) - 2]
    if not has_last and len(list(_chunks(words))) == 1 and _fits(words, INDENT):
        return [words]
    if not has_last:
        last = words[-2]
        comma = Word(",", "COMMA", last.span, ("segment",), beside=last.beside)
        words = [*words[:-2], replace(last, beside=None), comma, words[-1]]
        commas.append(len(words) - 2)
    starts = [0, 3, *(comma + 1 for comma in commas), len(words)]
    return [words[start:stop] for start, stop in pairwise(starts)]


def _chunks(words: Sequence[Word]) -> Iterator[list[Word]]:
    """The words cut where a comment ends the line."""
    chunk = [words[0]]
    for previous, word in pairwise(words):
        if previous.beside or word.above:
            yield chunk
            chunk = []
        chunk.append(word)
    yield chunk


def _starts_option(previous: Word, word: Word) -> bool:
    """A clause of a layout, an option of a dispatch, a reduction; or a further constant."""
    if previous.kind == "COMMA" and previous.rules == ("const",):
        return True
    owners = ("layout", "dispatch", "combine", "reply")
    return (
        len(word.rules) == 2
        and word.rules[1] in owners
        and (word.rule == "choice" or word.kind == word.rule.upper())
    )


def _starts_side(previous: Word, word: Word) -> bool:
    """What stands right of the sign in the middle of a declaration."""
    return (previous.kind == "EQUAL" and len(previous.rules) == 1) or _is_sign(word, "ARROW")


# Where a line that is too long may go on, the best places first.
_BREAKS: tuple[Callable[[Word, Word], bool], ...] = (
    _starts_option,
    _starts_side,
    lambda previous, _: previous.kind == "COMMA",
    lambda _, word: _is_operator(word),
)


def _wrapped(words: list[Word], indent: int, level: int = 0) -> list[tuple[int, list[Word]]]:
    """The words in lines that fit, as far as there are places to break them, each indented."""
    if _fits(words, indent) or level == len(_BREAKS):
        return [(indent, words)]
    pieces = [[words[0]]]
    for previous, word in pairwise(words):
        if _BREAKS[level](previous, word):
            pieces.append([])
        pieces[-1].append(word)
    lines = [(indent, pieces[0])]
    for piece in pieces[1:]:
        start, line = lines[-1]
        # Options go below the path; anything else fills the lines.
        is_below = level == 0 and words[0].rules[-1] != "const" and len(lines) == 1
        if not is_below and _fits([*line, *piece], start):
            line += piece
        else:
            lines.append((indent + INDENT, piece))
    return [part for start, line in lines for part in _wrapped(line, start, level + 1)]


def _fits(words: list[Word], indent: int) -> bool:
    return indent + sum(len(text) for _, text in _parts(words)) <= WIDTH


def _parts(words: list[Word]) -> list[tuple[str, str]]:
    """The words with the space between them, in parts that may be aligned with other lines'."""
    parts = [("", words[0].text)]
    if words[0].text in _NAME_COLUMN and len(words) > 1:
        parts[0] = ("", words[0].text.ljust(_NAME_COLUMN[words[0].text] - 1))
    starts_declaration = words[0].rules == (words[0].kind.lower(),)
    starts_field = words[0].rules == ("ident", "field", "segment")
    seen: set[str] = set()
    for previous, word in pairwise(words):
        label = _label(word, previous) if starts_declaration or starts_field else ""
        if word.rule == "field" and not starts_field:
            label = ""
        gap = _gap(previous, word)
        if label and label not in seen:
            seen.add(label)
            parts.append((label, ("  " if label == _OPTION else gap) + word.text))
        else:
            parts[-1] = (parts[-1][0], parts[-1][1] + gap + word.text)
    return parts


def _label(word: Word, previous: Word) -> str:
    """The column that a word starts, if any."""
    if (word.kind, word.rule) in _COLUMNS:
        return word.kind
    if _starts_option(previous, word) and word.rule not in {"on", "ident"}:
        return "" if previous.kind == "REVERSE" or "reply" in word.rules else _OPTION
    return ""


def _is_sign(word: Word, kind: str) -> bool:
    """Whether a word is a sign of the declaration itself, not of something inside it."""
    return word.kind == kind and len(word.rules) == 1


def _is_operator(word: Word) -> bool:
    return word.kind in _OPERATORS and word.rule in {"sum", "product"}


def _gap(previous: Word, word: Word) -> str:
    """What stands between two words of a line."""
    if word.kind in {"COMMA", "RPAR", "RSQB", "DOT"}:
        return ""
    if word.kind == "LSQB" and word.rule != "values":
        return ""
    if previous.kind in {"LPAR", "LSQB", "DOT"}:
        return ""
    if word.kind == "LPAR" and word.rule not in _FREE_STANDING:
        return ""
    for each in (previous, word):
        if _is_operator(each) and "range" in each.rules:
            return ""
    return " "


def _align_parts(lines: list[Line]) -> None:
    """Give the parts of neighbouring lines of one kind the same columns."""
    start = 0
    while start < len(lines):
        stop = start + 1
        if lines[start].kind:
            stop = _end_of_run(lines, start)
            _align_run([line for line in lines[start:stop] if line.kind])
        start = stop


def _end_of_run(lines: list[Line], start: int) -> int:
    """Where the lines end that go with one: to the next of another kind or after an empty line."""
    for stop in range(start + 1, len(lines)):
        line = lines[stop]
        if line.blank or (line.kind and line.kind != lines[start].kind):
            return stop
    return len(lines)


def _align_run(run: list[Line]) -> None:
    """Pad the parts of the lines; not where that makes one of them too long."""
    padded = [list(line.parts) for line in run]
    for label in dict.fromkeys(label for parts in padded for label, _ in parts[1:]):
        before = {}
        for number, parts in enumerate(padded):
            at = next((i for i, part in enumerate(parts) if part[0] == label), None)
            if at is not None:
                before[number] = (at, sum(len(text) for _, text in parts[:at]))
        column = max(length for _, length in before.values())
        if label == "EQUAL" and run[0].kind == "relation" and len(before) > 1:
            column += 1
        for number, (at, length) in before.items():
            previous, text = padded[number][at - 1]
            padded[number][at - 1] = (previous, text + " " * (column - length))
    if all(run[0].indent + sum(len(text) for _, text in parts) <= WIDTH for parts in padded):
        for line, parts in zip(run, padded, strict=True):
            line.parts = parts


def _blocks(lines: list[Line]) -> Iterator[list[Line]]:
    """Lines without an empty one between them."""
    block: list[Line] = []
    for line in lines:
        if line.blank and block:
            yield block
            block = []
        block.append(line)
    yield block


def _written(block: list[Line], source: SourceFile) -> str:
    """The lines of a block, after an empty one if it wants that, with their comments."""
    widths = [len(line.text) for line in block if line.comment and line.indent]
    columns = {_column(line.comment, source) for line in block if line.comment and line.indent}
    column = max(widths, default=0) + 2
    if len(columns) == 1 and column <= min(columns) < WIDTH:
        (column,) = columns
    written = []
    for line in block:
        text = line.text
        if line.comment:  # those beside the braces of a shuffle stand by themselves
            text = text.ljust(column if line.indent else len(text) + 2) + line.comment.text
        written.append(f"{text}\n")
    return "\n" * block[0].blank + "".join(written)


def _column(comment: Comment, source: SourceFile) -> int:
    """The column that a comment stands in now, from 0."""
    start = source.text.rfind("\n", 0, comment.start) + 1
    return len(source.text[start : comment.start].expandtabs(_TAB))
