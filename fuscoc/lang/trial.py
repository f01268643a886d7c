"""How far the parser gets in a text: what tells a repair from another mistake."""

from __future__ import annotations

from collections.abc import Callable

from lark.exceptions import UnexpectedInput, UnexpectedToken

from fuscoc.diagnostics import Fix
from fuscoc.fixing import apply
from fuscoc.lang.builder import TooLargeError
from fuscoc.lang.lexemes import lexemes

Parse = Callable[[str], object]


def stopped_at(text: str, parse: Parse) -> int | None:
    """Where the parser stops; None if it reads all of the text."""
    try:
        parse(text)
    except TooLargeError as error:
        return error.span.end
    except UnexpectedToken as error:
        return len(text) if error.token.type == "$END" else int(error.token.start_pos)
    except UnexpectedInput as error:
        return int(error.pos_in_stream)
    return None


def accepted_after(text: str, parse: Parse) -> set[str]:
    """The terminals that may follow a text, which is the beginning of a right one."""
    try:
        parse(text)
    except UnexpectedToken as error:
        return set(error.accepts or error.expected)
    return {"SHUFFLE", "$END"}


def settles(fix: Fix, text: str, parse: Parse, ahead: int = 1) -> bool:
    """Whether the parser gets past what a fix writes and the lexemes that are next.

    One of those that no place would take is another mistake, and does not speak against the fix,
    unless it stands right at a word: that may be a part of another one.
    """
    fixed = apply(text, [fix])
    stopped = stopped_at(fixed, parse)
    if stopped is None:
        return True
    end = fix.span.start + len(fix.replacement)
    following = [each for each in lexemes(fixed) if each.end > end][:ahead]
    if len(following) < ahead - 1:
        return False
    for lexeme in following:
        is_word = fix.replacement[-1:].isalnum()
        if lexeme.is_foreign and lexeme.start >= end + is_word:
            break
        end = lexeme.end
    return stopped >= end
