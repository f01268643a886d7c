"""The terminals of the grammar as a user would write them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fuscoc.lang.lexemes import DECLARATIONS

# Keywords are their own lower case.
SYMBOLS = {
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
_SPECIAL = {"NAME": "a name", "INT": "a number", "$END": "the end of the file"}
EXPRESSION = frozenset({"NAME", "INT", "LPAR"})
# Whatever goes on an expression that could as well end here: not worth listing.
_CONTINUATIONS = frozenset(
    {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "LPAR", "DOT", "LSQB", "DOTS"}
)


def word(terminal: str) -> str:
    """One terminal: ``a name``, or what is written, in quotes."""
    return _SPECIAL.get(terminal) or f"`{SYMBOLS.get(terminal, terminal.lower())}`"


def keywords(accepted: Collection[str]) -> set[str]:
    """The keywords among terminals."""
    return {terminal.lower() for terminal in accepted if terminal not in {*SYMBOLS, *_SPECIAL}}


def expected(accepted: Collection[str]) -> str:
    """What may stand at a place, with an expression and a declaration each as one."""
    rest = set(accepted)
    words = []
    if rest >= EXPRESSION:
        words.append("an expression")
        rest -= EXPRESSION | {"STAR"}
    if rest - _CONTINUATIONS:
        rest -= _CONTINUATIONS
    declarations = {keyword.upper() for keyword in DECLARATIONS}
    if rest >= declarations:
        words.append("a declaration")
        rest -= declarations
    return _listed(words + sorted(map(word, rest), key=_last_brackets))


def _last_brackets(word: str) -> tuple[bool, str]:
    return "`" in word and not word[1].isalpha(), word


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
