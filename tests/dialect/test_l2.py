"""Descriptor lists and the steps over them: what the verifier of each accepts and refuses."""

from __future__ import annotations

import pytest

from tests.dialect.steps import (
    BACK,
    CARRIED,
    COPIED,
    EXCHANGE,
    FORTH,
    LISTED,
    REDUCE,
    SCATTER,
    SEND,
    SIGNALLED,
    UNWEIGHED,
    refused,
    typed,
)
from tests.dialect.support import PRELUDE, edited, error_of, printed, round_trips

VALID = [
    FORTH,
    BACK,
    FORTH + BACK,
    CARRIED,
    CARRIED + BACK,
    edited(CARRIED, ('"rebalance"', '"auto"')),
    UNWEIGHED,
    edited(UNWEIGHED, ('"sum"', '"max"')),
    COPIED,
    edited(FORTH, ("list = @local, wait", 'list = @local, moves = "target", wait')),
    # A step may come after more than it needs, and after what it needs by way of another.
    edited(FORTH, ("(%sent, %forwarded)", "(%packed, %sent, %forwarded)")),
    edited(
        FORTH,
        ('"fsc.gather_send"(%landed)', '"fsc.gather_send"(%landed, %sent)'),
        ("(%sent, %forwarded)", "(%forwarded)"),
    ),
]

# Edits of the dispatch, or of the combine, and what verifiers say then.
BAD_FORTH = [
    # Lists.
    ('"forward"}', '"direct"}', LISTED + "redefines @direct"),
    ('["src_slot", "dst_slot"]', "[]", LISTED + "attribute 'columns' must not be empty"),
    ('"src_slot", "d', '"dst_slot", "d', "attribute 'columns' must not repeat an element"),
    (
        '"src_slot", "d',
        '"term_begin", "d',
        LISTED + "needs both of the columns term_begin and term_end, or neither",
    ),
    (
        'sym_name = "local"',
        'sym_name = "local", terms = ["b"]',
        LISTED + "has terms but no columns term_begin and term_end",
    ),
    (
        'per = "point",',
        "",
        LISTED + "needs the attribute 'per' exactly in the path of a dispatch",
    ),
    (
        'builder = "target"',
        'builder = "sender"',
        LISTED + "attribute 'builder' must be one of source, carrier, forwarder, target, not",
    ),
    # Who has what is read.
    (
        '{builder = "source", columns = ["src_offset", "dst_row"]',
        '{builder = "target", columns = ["src_offset", "dst_row"]',
        SEND + "reads source, which the target does not have",
    ),
    (
        'builder = "forwarder"',
        'builder = "source"',
        SEND + "reads landing, which the source does not have",
    ),
    (
        'builder = "target"',
        'builder = "source"',
        SCATTER + "reads target, which the source does not have",
    ),
    # Attributes of steps.
    ("@net_send, src", "@spec.lost, src", "names @spec.lost, which is not defined"),
    ("@net_send, src", "@spec.row, src", "a fsc.def_segment where fsc.descriptors"),
    (
        '"slices", list = @net_send, src',
        '"slices", list = @net_send, signal = 7 : i64, src',
        SEND + SIGNALLED,
    ),
    (" signal = 0 : i64,", "", SEND + SIGNALLED),
    (" signal = 1 : i64,", "", SEND + SIGNALLED),
    ("signal = 0", "signal = -1", "attribute 'signal' must be at least 0, not -1"),
    (
        '"target", list = @forward',
        '"staging", list = @forward',
        SEND + "must not go from landing to staging",
    ),
    (
        '"slices", list = @net_send',
        '"slices", list = @net_send, scope = "node"',
        SEND + "has an unknown attribute 'scope'",
    ),
    (
        '"src_offset", "dst_row"',
        '"dst_row"',
        SEND + "needs a list that places the src of its rows",
    ),
    (
        '"src_offset", "dst_row"',
        '"src_offset"',
        SEND + "needs a list that places the dst of its rows",
    ),
    (
        '["src_slot", "dst_slot"]',
        '["src_slot"]',
        SCATTER + "needs a list that places the dst of its rows",
    ),
    (
        '["src_slot", "dst_slot"]',
        '["dst_slot"]',
        SCATTER + "needs a list that places the src of its rows",
    ),
    ("[0, 1]", "[]", SCATTER + "attribute 'wait' must not be empty"),
    ("[0, 1]", "[0, 0]", SCATTER + "attribute 'wait' must not repeat an element"),
    (
        "{list = @local",
        '{list = @local, src = "target"',
        SCATTER + "has an unknown attribute 'src'",
    ),
    *(
        (text, "", f"{EXCHANGE}needs the attribute '{name}' exactly in a dispatch")
        for name, text in (
            ("forwarder", 'forwarder = "static", '),
            ("schedule", 'schedule = "pairwise",\n   '),
            ("slice_bytes", ",\n    slice_bytes = 1024 : i64"),
        )
    ),
    ("1024", "0", "'slice_bytes' must be at least 1, not 0"),
    ('"static"', '"none"', EXCHANGE + "attribute 'forwarder' must be one of auto, static, "),
    ("{forwarder", "{list = @net_send, forwarder", EXCHANGE + "has an unknown attribute 'list'"),
    # Lists of other ends.
    (
        "list = @net_send",
        "list = @direct",
        SEND + "goes from source to slices by the list net_send, not direct",
    ),
    (
        "list = @direct",
        "list = @net_send",
        SEND + "goes from source to target by the list direct, not net_send",
    ),
    (
        "list = @forward",
        "list = @direct",
        SEND + "goes from landing to target by the list forward, not direct",
    ),
    (
        "list = @local",
        "list = @forward",
        SCATTER + "goes from target to target by the list local, not forward",
    ),
    *(
        (old, new, step + "needs the column dst_peer exactly where rows go to peers")
        for old, new, step in (
            ('"src_offset", "dst_row"', '"src_offset", "dst_peer", "dst_row"', SEND),
            ('"src_offset", "dst_peer", "dst_slot"', '"src_offset", "dst_slot"', SEND),
            ('"src_row", "dst_peer"', '"src_row"', SEND),
            ('"src_slot", "dst_slot"', '"src_slot", "dst_peer", "dst_slot"', SCATTER),
        )
    ),
]
BAD_CARRIED = [
    (" signal = 4 : i64,", "", SEND + SIGNALLED),
    ("list = @carried, src", "list = @carried, signal = 7 : i64, src", SEND + SIGNALLED),
    (
        'builder = "carrier"',
        'builder = "source"',
        SEND + "reads carried, which the source does not have",
    ),
    (
        '"src_offset", "dst_peer", "dst_row"',
        '"src_offset", "dst_row"',
        SEND + "needs the column dst_peer exactly where rows go to peers",
    ),
    (
        '"src_row", "dst_row"',
        '"src_row", "dst_peer", "dst_row"',
        SEND + "needs the column dst_peer exactly where rows go to peers",
    ),
    (
        "list = @carry,",
        "list = @net_send,",
        SEND + "goes from source to carried by the list carry, not net_send",
    ),
    (
        "list = @carried",
        "list = @net_send",
        SEND + "goes from carried to slices by the list carried, not net_send",
    ),
]
BAD_BACK = [
    *(
        (old, new, REDUCE + f"needs a list whose terms say where they lie in {src}")
        for old, new, src in (
            ('["term_slot", "term_point"]', '["term_point"]', "rows"),
            ('["term_slot", "term_point"]', '["term_row", "term_point"]', "rows"),
            (', terms = ["term_row"]', "", "staging"),
            ('"reduce_node"', '"reduce_node", terms = ["term_row"]', "forward_staging"),
        )
    ),
    *((f" signal = {slot} : i64,", "", REDUCE + SIGNALLED) for slot in (2, 3)),
    (" signal = 5 : i64,", "", SEND + SIGNALLED),
    *(
        (f'dst = "{dst}"', f'dst = "{dst}", signal = 7 : i64', REDUCE + SIGNALLED)
        for dst in ("return_slices", "result")
    ),
    (
        '{builder = "forwarder", ',
        '{builder = "forwarder", per = "node", ',
        LISTED + "needs the attribute 'per' exactly in the path of a dispatch",
    ),
    (
        'builder = "forwarder"',
        'builder = "source"',
        REDUCE + "reads forward_staging, which the source does not have",
    ),
    (
        'builder = "carrier"',
        'builder = "source"',
        SEND + "reads returned, which the source does not have",
    ),
    (
        'dst = "forward_staging"',
        'dst = "result"',
        REDUCE + "must not go from rows to result",
    ),
    (
        'dst = "result"',
        'dst = "result", scope = "rank"',
        REDUCE + "has an unknown attribute 'scope'",
    ),
    ('name = "x"', 'name = "y"', REDUCE + "needs rows of the fields x"),
    (
        '{dtype = bf16, name = "x"}',
        '{dtype = bf16, name = "y"}',
        SEND + "needs rows of the fields x",
    ),
    (
        '"dst_row", "term_begin"',
        '"term_begin"',
        REDUCE + "needs a list that places the dst of its rows",
    ),
    (
        "@reduce_node",
        "@hand_back",
        REDUCE + "needs a list with terms, and @hand_back has none",
    ),
    *(
        (old, new, REDUCE + "needs an accumulator for field 'x' exactly when it reduces")
        for old, new in (
            ('"sum", list = @reduce_n', '"copy", list = @reduce_n'),
            ("acc = f32, ", ""),
        )
    ),
    ("acc = f32", "acc = bf16", "key 'acc' must be one of f32, f64"),
    ('"sum"', '"max"', REDUCE + "must weigh nothing but the terms of a sum"),
    (', "term_point"', "", REDUCE + "needs the points of the terms that it weighs"),
    ("@spec.factors", "@spec.rows", "attribute 'weight' names @spec.rows, a fsc.def_extent"),
    ("@spec.factors", "@spec.keys", REDUCE + "must not take its weight from an input for route"),
    *(
        (
            '"fsc.exchange"(%node) {',
            f'"fsc.exchange"(%node) {{{policy}',
            f"{EXCHANGE}needs the attribute '{policy.split()[0]}' exactly in a dispatch",
        )
        for policy in ('forwarder = "static"', 'schedule = "pairwise"', "slice_bytes = 1 : i64")
    ),
    # Lists of other ends.
    (
        "list = @reduce_direct",
        "list = @reduce_forward",
        REDUCE + "goes from rows to staging by the list reduce_direct, not reduce_forward",
    ),
    (
        "list = @reduce_source",
        "list = @reduce_node",
        REDUCE + "goes from staging to result by the list reduce_source, not reduce_node",
    ),
    (
        '"src_row", "dst_peer"',
        '"src_row"',
        SEND + "needs the column dst_peer exactly where rows go to peers",
    ),
    (
        '"dst_peer", "dst_row", "term_begin"',
        '"dst_row", "term_begin"',
        REDUCE + "needs the column dst_peer exactly where rows go to peers",
    ),
    (
        '"dst_offset",',
        '"dst_peer", "dst_offset",',
        REDUCE + "needs the column dst_peer exactly where rows go to peers",
    ),
]
STEP = '"fsc.exchange"() : () -> !fsc.token'
LIST = '"fsc.descriptors"() {builder = "source", columns = ["a"], sym_name = "l"} : () -> ()'
INVALID = [
    (edited(FORTH, (" signal = 1 : i64,", ""), ("[0, 1]", "[0]")), SEND + SIGNALLED),
    (edited(BACK, (" signal = 3 : i64,", ""), (",\n    wait = [3]", "")), REDUCE + SIGNALLED),
    (edited(CARRIED, (" signal = 4 : i64,", ""), (",\n    wait = [4]", "")), SEND + SIGNALLED),
    *refused(FORTH, BAD_FORTH),
    *refused(CARRIED, BAD_CARRIED),
    *refused(BACK, BAD_BACK),
    (
        edited(COPIED, ("dst = bf16, name", "dst = f32, name")),
        REDUCE + "must not convert field 'x' that it copies",
    ),
    (
        edited(
            BACK,
            ("list = @reduce_direct", "list = @swapped"),
            ("list = @reduce_forward", "list = @reduce_direct"),
            ("list = @swapped", "list = @reduce_forward"),
        ),
        REDUCE + "goes from rows to forward_staging by the list reduce_forward, not reduce_direct",
    ),
    (STEP, EXCHANGE + "must stand inside fsc.path"),
    (LIST, LISTED + "must stand inside fsc.path"),
]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str) -> None:
    assert round_trips(printed(PRELUDE + typed(case)))


@pytest.mark.parametrize(("case", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_invalid(case: str, reason: str) -> None:
    assert reason in error_of(PRELUDE + typed(case))
