"""Syntax errors in the user's words, and where to go on reading after one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from fuscoc.diagnostics import DiagnosticSink, Fix, Label, nearest, spelling
from fuscoc.lang import characters
from fuscoc.lang.syntax_forms import ONE_MARK, hint
from fuscoc.lang.syntax_options import report_no_option
from fuscoc.source import Span

DECLARATIONS = (
    *("const", "index", "segment", "layout", "view"),
    *("place", "route", "weight", "dispatch", "combine"),
)
RESERVED = frozenset([*DECLARATIONS, "shuffle"])

# What the user would write for a terminal of the grammar; keywords are their own lower case.
_SYMBOLS = {
    "LSQB": "[",
    "RSQB": "]",
    "LPAR": "(",
    "RPAR": ")",
    "LBRACE": "{",
    "RBRACE": "}",
    "COMMA": ",",
    "COLON": ":",
    "EQUAL": "=",
    "ARROW": "->",
    "DOTS": "..",
    "DOT": ".",
    "PLUS": "+",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "PERCENT": "%",
}
_EXPRESSION = {"NAME", "INT", "LPAR"}
# Whatever goes on an expression that could as well end here: not worth listing.
_CONTINUATIONS = {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "LPAR", "DOT", "LSQB", "DOTS"}
_CLOSERS = {"[": "RSQB", "(": "RPAR", "{": "RBRACE"}
_CONFUSED = {":", "=", "->"}
_LEXEME = re.compile(r"//[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9_]*|->|\.\.|\S")
_WORD = re.compile(r"[A-Za-z_]")


@dataclass(frozen=True)
class _Lexeme:
    text: str
    start: int
    end: int

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


def report_syntax_error(
    error: UnexpectedInput, text: str, sink: DiagnosticSink, parse: Callable[[str], object]
) -> int:
    """Put an error of the parser ``parse`` into ``sink``; returns where the offending text is."""
    if isinstance(error, UnexpectedCharacters):
        offset = int(error.pos_in_stream)
        char = text[offset]
        sink.report(
            "FSC002",
            Span(offset, offset + 1),
            f"unexpected character {characters.named(char)}",
            help=characters.help_with(char),
            fix=characters.fix_of(char, offset),
        )
        return offset
    assert isinstance(error, UnexpectedToken)
    for misspelt, what, words in (
        (_misspelt_declaration(error, text), "a declaration", DECLARATIONS),
        (_misspelt_reverse(error, text), "`reverse` or a path", ("reverse",)),
    ):
        if misspelt is not None:
            sink.report(
                "FSC001",
                misspelt.span,
                f"expected {what}, found `{misspelt.text}`",
                fix=spelling(misspelt.text, misspelt.span, words),
            )
            return misspelt.end
    offset = len(text) if error.token.type == "$END" else int(error.token.start_pos)
    # Where `->` cannot stand, the parser's lexer finds a `-` only.
    found = _LEXEME.match(text, offset)
    accepted = set(error.accepts or error.expected)
    word = found.group() if found else ""
    if word in RESERVED or not report_no_option(word, offset, accepted, text, sink):
        _report_token(word, offset, accepted, text, hint(error, parse), sink)
    return offset


def _report_token(
    found: str, offset: int, accepted: set[str], text: str, form: str | None, sink: DiagnosticSink
) -> None:
    """``form`` says how the declaration at the offset is written, if that is known."""
    expected = _listed(_expected(accepted))
    # Parts of the text may have been blanked out; the brackets count without them, but the place
    # of something missing is where the file goes on.
    before = [lexeme for lexeme in _lexemes(sink.source.text) if lexeme.end <= offset]
    on_new_line = bool(before) and "\n" in text[before[-1].end : offset]
    is_missing = not found or (on_new_line and (found in RESERVED or found == "}"))
    if is_missing:  # what is missing belongs after the line before
        span = before[-1].span if before else Span(0, 0)
        label = f"expected {expected} after this"
    else:
        span = Span(offset, offset + len(found))
        label = f"expected {expected}"
    opener = _unclosed([lexeme for lexeme in _lexemes(text) if lexeme.end <= offset])
    # Where a declaration may stand, the shuffle may go on: only its end proves a brace missing.
    wants_closer = opener is not None and _CLOSERS[opener.text] in accepted
    unclosed = opener if wants_closer and ("CONST" not in accepted or not found) else None
    is_misused = found in RESERVED and "NAME" in accepted and not is_missing
    note = f"`{found}` starts a declaration and cannot be used as a name"
    sink.report(
        "FSC001",
        span,
        f"expected {expected}, found {f'`{found}`' if found else 'the end of the file'}",
        label,
        secondary=[Label(unclosed.span, "opened here")] if unclosed else (),
        notes=[note] if is_misused else (),
        help=_help(found, offset, text, form),
        fix=_token_fix(found, offset, accepted, form),
    )


def _help(found: str, offset: int, text: str, form: str | None) -> str | None:
    if "/*" in text[max(offset - 1, 0) : offset + 2]:
        return characters.COMMENTS
    if _WORD.match(found) and text[offset - 1 : offset].isdigit():
        return "numbers are decimal, and a name does not begin with one"
    return form


def _misspelt_declaration(error: UnexpectedToken, text: str) -> _Lexeme | None:
    """The word before the offending one, if a line starts with it and it is almost a keyword.

    It may have been taken for the end of the line before.
    """
    before = [lexeme for lexeme in _lexemes(text) if lexeme.end <= error.token.start_pos]
    if "CONST" not in error.expected or error.token.type == "$END" or len(before) < 2:
        return None
    word = before[-1]
    starts_line = "\n" in text[before[-2].end : word.start]
    same_line = "\n" not in text[word.end : error.token.start_pos]
    is_close = word.text not in RESERVED and nearest(word.text, DECLARATIONS) is not None
    return word if starts_line and same_line and is_close else None


def _misspelt_reverse(error: UnexpectedToken, text: str) -> _Lexeme | None:
    """The word after `combine`, if no path can go on here and it is almost `reverse`."""
    before = [lexeme for lexeme in _lexemes(text) if lexeme.end <= error.token.start_pos]
    if error.expected != {"LSQB"} or len(before) < 2 or before[-2].text != "combine":
        return None
    return before[-1] if nearest(before[-1].text, ["reverse"]) else None


def blank_out(text: str, offset: int) -> str:
    """The text with the declaration around an offending offset turned into spaces.

    That is from the last declaration that starts before the offset to the next one, or to the
    brace that ends the shuffle. An error outside of a shuffle's body takes all up to the next
    shuffle.
    """
    lexemes = _lexemes(text)
    starts = [i for i in range(len(lexemes)) if _starts_declaration(lexemes, i)]
    shuffles = [lexemes[i].start for i in starts if lexemes[i].text == "shuffle"]
    last = max((i for i in starts if lexemes[i].start < offset), default=None)
    before = [lexeme.text for lexeme in lexemes if lexeme.start < offset]
    alone = offset  # where text starts that belongs to no declaration, or to one without a name
    if before and before[-1] in RESERVED:
        alone = lexemes[len(before) - 1].start
    begin = alone if last is None else lexemes[last].start
    if before.count("{") <= before.count("}"):
        if last is not None and (lexemes[last].text != "shuffle" or "{" in before[last:]):
            begin = alone  # the shuffle before is complete
        end = min((start for start in shuffles if start >= offset and start > begin), default=None)
    elif offset in shuffles:  # the shuffle before lacks its brace
        begin = max(start for start in shuffles if start < offset)
        end = offset
    else:
        if last is None or lexemes[last].text == "shuffle":
            begin = alone
        end = _end_of_declaration(lexemes, begin, offset)
    end = len(text) if end is None else end
    blank = re.sub(r"[^\n]", " ", text[begin:end])
    return text[:begin] + blank + text[end:]


def _end_of_declaration(lexemes: list[_Lexeme], begin: int, offset: int) -> int | None:
    """Where the next declaration starts or the shuffle ends; None at the end of the file."""
    depth = 0
    for i, lexeme in enumerate(lexemes):
        if lexeme.start < begin:
            continue
        if lexeme.start >= offset and lexeme.start > begin and _starts_declaration(lexemes, i):
            return lexeme.start
        if lexeme.text == "{":
            depth += 1
        elif lexeme.text == "}":
            depth -= 1
            if depth < 0 and lexeme.start > begin:
                return lexeme.start
    return None


def _starts_declaration(lexemes: list[_Lexeme], i: int) -> bool:
    """A reserved word before a name; in another place it is a misuse of the word."""
    return (
        lexemes[i].text in RESERVED
        and i + 1 < len(lexemes)
        and _WORD.match(lexemes[i + 1].text) is not None
    )


def _lexemes(text: str) -> list[_Lexeme]:
    found = (_Lexeme(match.group(), *match.span()) for match in _LEXEME.finditer(text))
    return [lexeme for lexeme in found if not lexeme.text.startswith("//")]


def _unclosed(lexemes: list[_Lexeme]) -> _Lexeme | None:
    """The innermost bracket that is still open after these lexemes."""
    open_brackets: list[_Lexeme] = []
    for lexeme in lexemes:
        if lexeme.text in "[({":
            open_brackets.append(lexeme)
        elif lexeme.text in "])}" and open_brackets:
            open_brackets.pop()
    return open_brackets[-1] if open_brackets else None


def _expected(accepted: set[str]) -> list[str]:
    """The accepted terminals in words, expressions and declarations each as one."""
    rest = set(accepted)
    words = []
    if rest >= _EXPRESSION:
        words.append("an expression")
        rest -= _EXPRESSION | {"STAR"}
    if rest - _CONTINUATIONS:
        rest -= _CONTINUATIONS
    declarations = {keyword.upper() for keyword in DECLARATIONS}
    if rest >= declarations:
        words.append("a declaration")
        rest -= declarations
    return words + sorted((_word(terminal) for terminal in rest), key=_last_brackets)


def _last_brackets(word: str) -> tuple[bool, str]:
    return "`" in word and not word[1].isalpha(), word


def _word(terminal: str) -> str:
    special = {"NAME": "a name", "INT": "a number", "$END": "the end of the file"}
    return special.get(terminal) or f"`{_SYMBOLS.get(terminal, terminal.lower())}`"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _token_fix(found: str, offset: int, accepted: set[str], form: str | None) -> Fix | None:
    """A keyword that was misspelt, or the one mark that can stand here in place of another."""
    span = Span(offset, offset + len(found))
    if _WORD.match(found):
        keywords = {t.lower() for t in accepted if t not in _SYMBOLS and t not in {"NAME", "INT"}}
        return spelling(found, span, keywords - {found})
    if form in ONE_MARK and found in _CONFUSED and len(accepted) == 1:
        (terminal,) = accepted
        if (mark := _SYMBOLS.get(terminal)) in _CONFUSED:
            return Fix(span, mark, form, safe=True)
    return None
