"""What a path refuses over several of its steps: their order, signals, hops and weights."""

from __future__ import annotations

import pytest

from tests.dialect.steps import (
    BACK,
    BACK_FAR,
    CARRIED,
    FAR,
    FORTH,
    LOCAL,
    MORE,
    PATH,
    REDUCE,
    RESULT,
    SCATTER,
    refused,
    typed,
)
from tests.dialect.support import DECLARATIONS, PRELUDE, SHUFFLE, edited, error_of

# Edits of the dispatch, or of the combine, and what verifiers say then.
BAD_FORTH = [
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
    (",\n    wait = [4]", "", PATH + "has an fsc.gather_send that reads carried unsignalled"),
    ('"rebalance"', '"static"', PATH + "does not fit the forwarder rule static"),
]
BAD_BACK = [
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
    (RESULT, "", PATH + "sends signal 2, for which nothing waits"),
    # Signals of all who store at peers.
    *(
        ("[2, 5]", f"[{waits}]", PATH + "has an fsc.reduce that reads staging unsignalled")
        for waits in (2, 5, 3)
    ),
    (
        "wait = [3]",
        "wait = [5]",
        PATH + "has an fsc.reduce that reads forward_staging unsignalled",
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
INVALID = [
    *refused(FORTH, BAD_FORTH),
    *refused(CARRIED, BAD_CARRIED),
    *refused(BACK, BAD_BACK),
    # Rows that are cast twice, or not at all.
    *(
        (
            edited(
                FORTH,
                ("list = @net_send", f'list = @net_send, moves = "{packed}"'),
                ("list = @forward,", f'list = @forward, moves = "{forwarded}",'),
            ),
            PATH + f"has rows of source and of target in {buffer}",
        )
        for packed, forwarded, buffer in (
            ("cast", "cast", "landing"),
            ("source", "target", "landing"),
            ("target", "target", "source"),
            ("source", "source", "target"),
        )
    ),
    (FORTH + FORTH, PATH + "must be the only path for dispatch"),
    (BACK + BACK, PATH + "must be the only path for combine"),
    (FORTH + edited(BACK, ("signal = 2", "signal = 1")), PATH + "sends signal 1 twice"),
    (FORTH + edited(BACK, ("[2, 5]", "[2, 5, 0]")), "waits for signal 0 too early"),
    # Rows come to a carrier that does not send them.
    (
        edited(CARRIED, (MORE, ""), ("(%packed, %more)", "(%packed)")),
        PATH + "sends signal 4, for which nothing waits",
    ),
    (
        edited(FORTH, (FAR, ""), ("(%landed)", "(%packed)")),
        PATH + "needs exactly one fsc.exchange",
    ),
    (
        edited(BACK, (BACK_FAR, ""), ("(%back)", "(%node)"), ("%near, %back", "%near, %node")),
        PATH + "needs exactly one fsc.exchange",
    ),
]


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
