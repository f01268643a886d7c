"""Descriptor lists, the steps over them and their order: what verifiers accept and refuse."""

from __future__ import annotations

import re

import pytest

from tests.dialect.support import DECLARATIONS, PRELUDE, SHUFFLE, error_of, printed, round_trips

# Steps without their types, which ``typed`` adds.
FORTH = """
"fsc.path"() ({
  "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_row"], per = "node",
    sym_name = "net_send"} : () -> ()
  "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_peer", "dst_slot"],
    per = "rank", sym_name = "direct"} : () -> ()
  "fsc.descriptors"() {builder = "forwarder", columns = ["src_row", "dst_peer", "dst_slot"],
    per = "rank", sym_name = "forward"} : () -> ()
  "fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point",
    sym_name = "local"} : () -> ()
  %packed = "fsc.gather_send"() {dst = "slices", list = @net_send, src = "source"} : TOKEN
  %landed = "fsc.exchange"(%packed) {forwarder = "static", schedule = "pairwise",
    slice_bytes = 1024 : i64} : TOKEN
  %sent = "fsc.gather_send"() {dst = "target", list = @direct, signal = 0 : i64,
    src = "source"} : TOKEN
  %forwarded = "fsc.gather_send"(%landed) {dst = "target", list = @forward, signal = 1 : i64,
    src = "landing"} : TOKEN
  %copied = "fsc.scatter_recv"(%sent, %forwarded) {list = @local, wait = [0, 1]} : TOKEN
}) {direction = "dispatch"} : () -> ()
"""
BACK = """
"fsc.path"() ({
  "fsc.descriptors"() {builder = "target",
    columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward",
    terms = ["term_slot", "term_point"]} : () -> ()
  "fsc.descriptors"() {builder = "target",
    columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct",
    terms = ["term_slot", "term_point"]} : () -> ()
  "fsc.descriptors"() {builder = "forwarder", columns = ["dst_row", "term_begin", "term_end"],
    sym_name = "reduce_node"} : () -> ()
  "fsc.descriptors"() {builder = "carrier", columns = ["src_row", "dst_peer", "dst_row"],
    sym_name = "hand_back"} : () -> ()
  "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "term_begin", "term_end"],
    sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
  %far = "fsc.reduce"() {dst = "forward_staging", kind = "sum", list = @reduce_forward,
    rows = [{acc = f32, dst = f32, name = "x", src = bf16}], signal = 3 : i64, src = "rows",
    weight = @spec.factors} : TOKEN
  %near = "fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct,
    rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], signal = 2 : i64, src = "rows",
    weight = @spec.factors} : TOKEN
  %node = "fsc.reduce"(%far) {dst = "return_slices", kind = "sum", list = @reduce_node,
    rows = [{acc = f32, dst = bf16, name = "x", src = f32}], src = "forward_staging",
    wait = [3]} : TOKEN
  %back = "fsc.exchange"(%node) {} : TOKEN
  %handed = "fsc.gather_send"(%back) {dst = "staging", list = @hand_back,
    rows = [{dtype = bf16, name = "x"}], signal = 5 : i64, src = "returned"} : TOKEN
  %result = "fsc.reduce"(%near, %back, %handed) {dst = "result", kind = "sum",
    list = @reduce_source, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}],
    src = "staging", wait = [2, 5]} : TOKEN
}) {direction = "combine"} : () -> ()
"""


def edited(text: str, *edits: tuple[str, str]) -> str:
    """``text`` with other parts, each of which it has."""
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


def typed(text: str) -> str:
    """``text`` with the types of its steps, which it leaves out."""

    def types(step: re.Match[str]) -> str:
        tokens = ", ".join(["!fsc.token"] * step[1].count("%"))
        return f"{step[0].removesuffix('TOKEN')}({tokens}) -> !fsc.token"

    return re.sub(r'= "fsc\.\w+"\((.*?)\).*? : TOKEN', types, text, flags=re.DOTALL)


UNWEIGHED = edited(BACK, (",\n    weight = @spec.factors", ""))
COPIED = edited(UNWEIGHED, ('"sum"', '"copy"'), ("acc = f32, ", ""), ("f32", "bf16"))
# A rank sends rows for another.
CARRIED = edited(
    FORTH,
    (
        '  %packed = "fsc.gather_send"()',
        """  "fsc.descriptors"() {builder = "source",
    columns = ["src_offset", "dst_peer", "dst_row"], per = "node", sym_name = "carry"} : () -> ()
  "fsc.descriptors"() {builder = "carrier", columns = ["src_row", "dst_row"], per = "node",
    sym_name = "carried"} : () -> ()
  %given = "fsc.gather_send"() {dst = "carried", list = @carry, signal = 4 : i64,
    src = "source"} : TOKEN
  %more = "fsc.gather_send"(%given) {dst = "slices", list = @carried, src = "carried",
    wait = [4]} : TOKEN
  %packed = "fsc.gather_send"()""",
    ),
    ('"fsc.exchange"(%packed)', '"fsc.exchange"(%packed, %more)'),
    ('"static"', '"rebalance"'),
)
# The network hop of a dispatch, and of a combine.
FAR = """%landed = "fsc.exchange"(%packed) {forwarder = "static", schedule = "pairwise",
    slice_bytes = 1024 : i64} : TOKEN"""
LOCAL = """\
"fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point",
    sym_name = "local"} : () -> ()
"""
BACK_FAR = '%back = "fsc.exchange"(%node) {} : TOKEN'

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

PATH = "'fsc.path' op "
SEND, SCATTER, REDUCE = "'fsc.gather_send' op ", "'fsc.scatter_recv' op ", "'fsc.reduce' op "
EXCHANGE, LISTED = "'fsc.exchange' op ", "'fsc.descriptors' op "
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
        SEND + "must not signal: slices stay on this rank",
    ),
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
    # Tiers.
    (
        'per = "rank", sym_name = "direct"',
        'per = "point", sym_name = "direct"',
        PATH + "has copies that do not fit together: network per node, rank per point/rank, local",
    ),
    (
        'per = "point"',
        'per = "rank"',
        PATH + "has copies that do not fit together: network per node, rank per rank, local per ra",
    ),
    # Order.
    ('"fsc.exchange"(%packed)', '"fsc.exchange"()', "reads slices too early"),
    ('"fsc.gather_send"(%landed)', '"fsc.gather_send"()', "reads landing too early"),
    ("(%sent, %forwarded)", "(%forwarded)", "reads target too early"),
    ("(%sent, %forwarded)", "(%sent)", "reads target too early"),
    ("(%sent, %forwarded)", "(%packed, %landed)", "reads target too early"),
    (
        '@net_send, src = "source"',
        '@net_send, src = "source", wait = [0]',
        "for signal 0 too early",
    ),
    ("[0, 1]", "[0, 1, 9]", PATH + "waits for signal 9, which nothing sends"),
    ("signal = 1", "signal = 0", PATH + "sends signal 0 twice"),
    ('%packed = "fsc.gather_send"()', '%packed = "fsc.gather_send"(%copied)', "dominate this use"),
    # Signals of all who store at peers.
    ("[0, 1]", "[0]", PATH + "has an fsc.scatter_recv that reads target unsignalled"),
    ("[0, 1]", "[1]", PATH + "has an fsc.scatter_recv that reads target unsignalled"),
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
    # The network hop.
    (FAR, FAR + "\n  " + FAR.replace("landed", "again"), PATH + "needs exactly one fsc.exchange"),
    *(
        ('"static"', f'"{rule}"', f"{PATH}does not fit the forwarder rule {rule}")
        for rule in ("rebalance", "auto")
    ),
]
BAD_CARRIED = [
    (
        'dst = "carried", list = @carry, signal = 4 : i64',
        'dst = "slices", list = @net_send',
        "that reads carried, which nothing writes",
    ),
    ("(%packed, %more)", "(%packed)", "reads slices too early"),
    ("(%packed, %more)", "(%more)", "reads slices too early"),
    ('"fsc.gather_send"(%given)', '"fsc.gather_send"()', "reads carried too early"),
    ("wait = [4]", "wait = [4, 0]", "waits for signal 0 too early"),
    (
        'builder = "carrier"',
        'builder = "source"',
        SEND + "reads carried, which the source does not have",
    ),
    (",\n    wait = [4]", "", PATH + "has an fsc.gather_send that reads carried unsignalled"),
    (" signal = 4 : i64,", "", PATH + "has an fsc.gather_send that reads carried unsignalled"),
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
    ('"rebalance"', '"static"', PATH + "does not fit the forwarder rule static"),
]
BAD_BACK = [
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
    (
        'kind = "sum", list = @reduce_node',
        'kind = "max", list = @reduce_node',
        PATH + "must not reduce in several ways",
    ),
    ("(%far)", "()", "reads forward_staging too early"),
    ('"fsc.exchange"(%node)', '"fsc.exchange"(%far)', "reads return_slices too early"),
    ('"fsc.gather_send"(%back)', '"fsc.gather_send"(%node)', "reads returned too early"),
    *(
        ("(%near, %back, %handed)", f"({tokens})", "reads staging too early")
        for tokens in ("%back, %handed", "%near, %back", "")
    ),
    ("wait = [3]", "wait = [3, 2]", "waits for signal 2 too early"),
    ("wait = [2, 5]", "wait = [2, 5, 9]", PATH + "waits for signal 9, which nothing sends"),
    ("signal = 5", "signal = 2", PATH + "sends signal 2 twice"),
    # Signals of all who store at peers.
    *(
        ("wait = [2, 5]", f"wait = [{waits}]", f"{PATH}has an fsc.reduce that {reason}")
        for waits, reason in (
            ("2", "reads staging unsignalled"),
            ("5", "reads staging unsignalled"),
            ("3", "reads staging unsignalled"),
        )
    ),
    (
        "wait = [3]",
        "wait = [5]",
        PATH + "has an fsc.reduce that reads forward_staging unsignalled",
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
    # The network hop.
    (
        BACK_FAR,
        BACK_FAR + "\n  " + BACK_FAR.replace("%back", "%again"),
        PATH + "needs exactly one fsc.exchange",
    ),
    # Weights.
    *(
        (
            f'signal = {slot} : i64, src = "rows",\n    weight = @spec.factors',
            f'signal = {slot} : i64, src = "rows"',
            PATH + "must weigh all rows alike",
        )
        for slot in (2, 3)
    ),
]
STEP = '"fsc.exchange"() : () -> !fsc.token'
LIST = '"fsc.descriptors"() {builder = "source", columns = ["a"], sym_name = "l"} : () -> ()'
INVALID = [
    *((edited(FORTH, (old, new)), reason) for old, new, reason in BAD_FORTH),
    *((edited(CARRIED, (old, new)), reason) for old, new, reason in BAD_CARRIED),
    *((edited(BACK, (old, new)), reason) for old, new, reason in BAD_BACK),
    (
        edited(COPIED, ("dst = bf16, name", "dst = f32, name")),
        REDUCE + "must not convert field 'x' that it copies",
    ),
    (FORTH + FORTH, PATH + "must be the only path for dispatch"),
    (BACK + BACK, PATH + "must be the only path for combine"),
    (FORTH + edited(BACK, ("signal = 2", "signal = 1")), PATH + "sends signal 1 twice"),
    (FORTH + edited(BACK, ("[2, 5]", "[2, 5, 0]")), "waits for signal 0 too early"),
    (
        edited(FORTH, (" signal = 1 : i64,", ""), ("[0, 1]", "[0]")),
        PATH + "has an fsc.scatter_recv that reads target unsignalled",
    ),
    (
        edited(BACK, (" signal = 3 : i64,", ""), (",\n    wait = [3]", "")),
        PATH + "has an fsc.reduce that reads forward_staging unsignalled",
    ),
    (
        edited(CARRIED, (" signal = 4 : i64,", ""), (",\n    wait = [4]", "")),
        PATH + "has an fsc.gather_send that reads carried unsignalled",
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
    (
        edited(FORTH, (FAR, ""), ("(%landed)", "(%packed)")),
        PATH + "needs exactly one fsc.exchange",
    ),
    (
        edited(BACK, (BACK_FAR, ""), ("(%back)", "(%node)"), ("%near, %back", "%near, %node")),
        PATH + "needs exactly one fsc.exchange",
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


@pytest.mark.parametrize("path", [FORTH, BACK])
def test_a_program_needs_its_shuffle(path: str) -> None:
    error = error_of(DECLARATIONS + typed(path))
    assert "needs exactly one fsc.shuffle in its module, not 0" in error
    error = error_of(DECLARATIONS + typed(path) + SHUFFLE * 2)
    assert "needs exactly one fsc.shuffle in its module, not 2" in error


# What is wrong with an operation that is verified after one which reads it.
LATER = {
    "source of no kind": (
        DECLARATIONS + BACK + edited(SHUFFLE, ("source = @spec.by_row", "source = 1 : i64")),
        REDUCE + "must be a symbol reference, not 1 : i64",
    ),
    "source of nothing": (
        DECLARATIONS + BACK + edited(SHUFFLE, ("source = @spec.by_row", "source = @spec.lost")),
        REDUCE + "names @spec.lost, which is not defined",
    ),
    "source of another kind": (
        DECLARATIONS + BACK + edited(SHUFFLE, ("source = @spec.by_row", "source = @spec.row")),
        REDUCE + "names @spec.row, a fsc.def_segment where fsc.def_layout",
    ),
    "direction of no kind": (
        PRELUDE + FORTH + edited(BACK, ('direction = "combine"', "direction = 1 : i64")),
        PATH + "needs another 'direction' of fsc.path",
    ),
    "no direction": (
        PRELUDE + FORTH + edited(BACK, ('direction = "combine"', "")),
        PATH + "needs the attribute 'direction' of fsc.path",
    ),
    "signal of no kind": (
        PRELUDE + FORTH + edited(BACK, ("signal = 3 : i64", 'signal = "3"')),
        PATH + "needs another 'signal' of fsc.reduce",
    ),
    "list of no kind": (
        PRELUDE
        + edited(FORTH, (LOCAL, ""), ("}) {direction", LOCAL + "}) {direction")).replace(
            '["src_slot", "dst_slot"]', "1 : i64"
        ),
        SCATTER + "needs another 'columns' of fsc.descriptors",
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_what_is_verified_later(name: str) -> None:
    text, reason = LATER[name]
    assert reason in error_of(typed(text))
