"""Where the parser stops: how far it gets in a text, and what is told about the state it stops in.

How far it gets tells a repair from another mistake. How declarations are written is a table of
examples: each stops the parser in one state, and an error in the same state gets the example's
hint. (That is Lark's ``match_examples``, but the states are computed once, and an
example that is for one kind of token only is never taken for another.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from lark.exceptions import UnexpectedInput, UnexpectedToken

from fuscoc.diagnostics import Fix
from fuscoc.fixing import apply
from fuscoc.lang.ast import TooLargeError
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


CONST = "a constant is written `const n = 4`"
INDEX = "an index is written `index t : tokens`"
FIELD = "a field is written `x : bf16[64]`"
VIEW = "a view is written `view tile[n, i] = image[n, i*p .. i*p+p]`"
REPLY = "a reply is written `reply sums[t] of pooled reduce sum(w)`"
DISPATCH = "a dispatch is written `dispatch source[t] -> target[…]`"

# A hint for whatever stands wrong at the place where the example ends.
FORMS: dict[str, str] = {
    "shuffle {": "a shuffle has a name: `shuffle moe { … }`",
    "shuffle s index": "a shuffle is written `shuffle moe { … }`",
    "shuffle s { const n }": CONST,
    "shuffle s { index t = 4 }": INDEX,
    "shuffle s { segment p : u8 }": "a segment is written `segment token { x : bf16[64] }`",
    "shuffle s { segment p { x u8 } }": FIELD,
    "shuffle s { layout l(t) }": "a layout is written `layout by_token[t] of token`",
    "shuffle s { layout l[t] = p }": "a layout is written `layout by_token[t] of token`",
    "shuffle s { layout l[t] of p packed s": "the slots of a packed layout are named: `packed(s)`",
    "shuffle s { layout l[t] of p dense 4": "extents are written `dense(64, 64)`",
    "shuffle s { layout l[t] of p capacity 4": "write `capacity max 4096`, or `capacity exact`",
    "shuffle s { view v(n) }": VIEW,
    "shuffle s { view v[n] : l": VIEW,
    "shuffle s { place e by block }": "a placement is written `place e on rank by block`",
    "shuffle s { place e on node }": "a placement is written `place e on rank by block`",
    "shuffle s { place e on rank block }": "a placement is written `place e on rank by block`",
    "shuffle s { place e on rank by table }": "name the input: `place e on rank by table owner`",
    "shuffle s { route r[t] }": "a route is written `route r(t, k) -> e = input topk_idx : int64`",
    "shuffle s { route r(t) : e }": "a route is written `route r(t, k) -> e = input idx : int64`",
    "shuffle s { route r(t) -> e : i64 }": "a route comes from a tensor: `= input idx : int64`",
    "shuffle s { route r(t) -> e = input x }": "an input has an element type: `input idx : int64`",
    "shuffle s { weight w[t] }": "a weight is written `weight w(t) : f32 = input gates`",
    "shuffle s { weight w(t) = input g }": "a weight is written `weight w(t) : f32 = input gates`",
    "shuffle s { weight w(t) : f32 input": "a weight is written `weight w(t) : f32 = input gates`",
    "shuffle s { weight w(t) : f32 = g": "a weight comes from a tensor: `= input gates`",
    "shuffle s { dispatch l -> m }": "what is read and written has subscripts: `by_token[t]`",
    "shuffle s { dispatch l[t] = m[t] }": DISPATCH,
    "shuffle s { dispatch l[t] -> m[t] dedup node": "write `dedup(node, rank)`",
    "shuffle s { dispatch l[t] -> m[t] slice 4 }": "a slice has a unit: `slice 4 MiB`",
    "shuffle s { dispatch l[t] -> m[t] balance }": "an option has a value: `balance greedy`",
    "shuffle s { dispatch l[t] -> m[t] cast x": "write `cast(x by scales)`",
    "shuffle s { combine }": "the way back is written `combine reverse reduce sum(w)`",
    "shuffle s { reply l }": REPLY,
    "shuffle s { reply l[t] }": REPLY,
}
# Where one mark for another is all that is wrong.
ONE_MARK = frozenset({CONST, INDEX, FIELD, VIEW, DISPATCH})
# A hint for one kind of token there.
TOKENS: dict[str, str] = {
    "shuffle s { const a = 1 b": "constants are separated by commas",
    "shuffle s { const a = 1 .": "a number has digits before its point and behind it",
    "shuffle s { segment p { x : u8 y": "fields are separated by commas",
    "shuffle s { combine reverse sum": "write `combine reverse reduce sum(w)`",
    "shuffle s { layout l[t] of p { x": "declare it as a segment: `segment token { x : bf16[64] }`",
}

State = tuple[int, frozenset[str]]  # a state of the parser, and what it accepts there


def hint(error: UnexpectedToken, parse: Parse) -> str | None:
    """What to tell about an error of the parser ``parse``, if its state is in the tables."""
    forms, tokens = _table(parse)
    state = _state(error)
    return tokens.get((state, error.token.type)) or forms.get(state)


@cache
def _table(
    parse: Parse,
) -> tuple[dict[State, str], dict[tuple[State, str], str]]:
    """The hints by state, and by state and type of token."""
    forms = {_state(stop(example, parse)): text for example, text in FORMS.items()}
    tokens = {}
    for example, text in TOKENS.items():
        error = stop(example, parse)
        tokens[_state(error), error.token.type] = text
    return forms, tokens


def stop(example: str, parse: Parse) -> UnexpectedToken:
    """The error in which an example ends."""
    try:
        parse(example)
    except UnexpectedToken as error:
        return error
    raise AssertionError(f"{example!r} is no syntax error")


def _state(error: UnexpectedToken) -> State:
    return int(error.state.position), frozenset(error.accepts or error.expected)
