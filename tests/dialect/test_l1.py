"""Hops, and the paths that hold them: what their verifiers accept and refuse."""

from __future__ import annotations

import re

import pytest

from fuscoc.pipeline import compile_to_ir
from tests.dialect.support import PRELUDE, edited, error_of, printed, round_trips
from tests.specs import moe

WAITING = ', balance = "none", schedule = "pairwise", slice_bytes = 1 : i64'
CHOSEN = WAITING.replace(', balance = "none"', "")


def path(body: str, attributes: str = "", direction: str = "dispatch") -> str:
    return f'"fsc.path"() ({{ {body} }}) {{direction = "{direction}"{attributes}}} : () -> ()'


def hop(scope: str, src: str, dst: str, more: str = "", per: str = "rank") -> str:
    return (
        f'"fsc.hop"() {{dst = "{dst}", per = "{per}", scope = "{scope}", src = "{src}"{more}}} : '
        "() -> ()"
    )


def collect(scope: str, src: str, dst: str, more: str = "", kind: str = "sum") -> str:
    return (
        f'"fsc.collect"() {{dst = "{dst}", kind = "{kind}", scope = "{scope}", '
        f'src = "{src}"{more}}} : () -> ()'
    )


def hops(net: str = "node", rank: str = "rank", local: str = "point", more: str = "") -> str:
    """All hops of a dispatch, each with what a copy is for; ``more`` is the network's."""
    return (
        hop("node", "source", "landing", more, per=net)
        + hop("rank", "source", "target", per=rank)
        + hop("rank", "landing", "target", per=rank)
        + hop("local", "target", "target", per=local)
    )


def carried(per: str) -> str:
    """The hops of rows that another rank sends."""
    return hop("rank", "source", "carrier", per=per) + hop("node", "carrier", "landing", per=per)


def there(body: str, waiting: str = WAITING) -> str:
    return path(body, waiting)


def back(body: str, waiting: str = "") -> str:
    return path(body, waiting, "combine")


WEIGHT = ", weight = @spec.factors"
COLLECTS = (
    collect("local", "target", "target", WEIGHT)
    + collect("rank", "target", "landing")
    + collect("rank", "target", "source")
    + collect("node", "landing", "source")
)
RULES = ("auto", "static", "greedy", "lpt", "split", "rebalance")

VALID = [
    path("^bb0:"),
    there(hops()),
    there(carried("node") + hops()),
    *(there(hops(more=f', forwarder = "{rule}"'), CHOSEN) for rule in RULES),
    there(hops("node", "point")),
    there(hops("rank", "rank")),
    there(hops("point", "point")),
    back(COLLECTS),
    back(COLLECTS + collect("node", "landing", "carrier") + collect("rank", "carrier", "source")),
    back(collect("rank", "target", "source", kind="max")),
    back(collect("rank", "target", "source", kind="copy")),
    there(hops()) + back(COLLECTS),
]

INVALID = [
    (path(""), "'fsc.path' op needs exactly one block in region 0, not 0"),
    (path("^bb0:", ", speed = 1"), "'fsc.path' op has an unknown attribute 'speed'"),
    (path("^bb0:", ', sym_name = "p"'), "'fsc.path' op has an unknown attribute 'sym_name'"),
    (
        path("^bb0:").replace('"dispatch"', '"sideways"'),
        "attribute 'direction' must be one of dispatch, combine, not 'sideways'",
    ),
    (path("^bb0:") * 2, "'fsc.path' op must be the only path for dispatch"),
    (back("^bb0:") * 2, "'fsc.path' op must be the only path for combine"),
    *(
        (case, f"'fsc.path' op needs the attribute '{policy}' exactly {when}")
        for case, policy, when in (
            (path("^bb0:", WAITING), "schedule", "while it has hops"),
            (path(hops()), "schedule", "while it has hops"),
            (back(COLLECTS, WAITING), "schedule", "while it has hops"),
            (path("^bb0:", ", slice_bytes = 1 : i64"), "slice_bytes", "while it has hops"),
            (back(COLLECTS, ", slice_bytes = 1 : i64"), "slice_bytes", "while it has hops"),
            (there(hops(), CHOSEN), "balance", "until forwarders are chosen"),
            (there(hops(more=', forwarder = "auto"')), "balance", "until forwarders are chosen"),
            (back(COLLECTS, ', balance = "none"'), "balance", "until forwarders are chosen"),
        )
    ),
    (
        there(hops()).replace('"none"', '"luck"'),
        "attribute 'balance' must be one of none, auto, static, greedy, lpt, split, rebalance",
    ),
    *(
        (there(body), f"'fsc.path' op has copies that do not fit together: {pers}")
        for body, pers in (
            (hops("rank", "point"), "network per rank, rank per point, local per point"),
            (hops("point", "rank"), "network per point, rank per rank, local per point"),
            (hops("node", "node"), "network per node, rank per node, local per point"),
            (hops(local="rank"), "network per node, rank per rank, local per rank"),
            (
                hops() + hop("rank", "landing", "target", per="point"),
                "network per node, rank per point/rank, local per point",
            ),
            (carried("rank") + hops(), "network per node/rank, rank per rank, local per point"),
            (hop("rank", "source", "target"), "network per , rank per rank, local per "),
        )
    ),
    (
        back(
            collect("rank", "target", "source") + collect("node", "landing", "source", kind="max")
        ),
        "'fsc.path' op must not reduce in several ways",
    ),
    (hop("rank", "source", "target"), "'fsc.hop' op must stand inside fsc.path"),
    (
        back(hop("rank", "source", "target")),
        "'fsc.hop' op must stand inside the fsc.path of a dispatch",
    ),
    (
        path(collect("rank", "target", "source")),
        "'fsc.collect' op must stand inside the fsc.path of a combine",
    ),
    (
        path(hop("node", "source", "target")),
        "'fsc.hop' op must have the scope rank from source to target",
    ),
    (
        path(hop("rank", "source", "landing")),
        "'fsc.hop' op must have the scope node from source to landing",
    ),
    (
        path(hop("rank", "target", "target")),
        "'fsc.hop' op must have the scope local from target to target",
    ),
    (
        back(collect("node", "target", "source")),
        "'fsc.collect' op must have the scope rank from target to source",
    ),
    (path(hop("node", "landing", "source")), "'fsc.hop' op must not go from landing to source"),
    (path(hop("local", "source", "source")), "'fsc.hop' op must not go from source to source"),
    (
        back(collect("node", "source", "landing")),
        "'fsc.collect' op must not go from source to landing",
    ),
    *(
        (
            path(hop(scope, src, dst, ', forwarder = "static"')),
            "'fsc.hop' op has a rule for forwarders but brings them no rows of its source",
        )
        for scope, src, dst in (("rank", "source", "target"), ("node", "carrier", "landing"))
    ),
    (
        path(hop("node", "source", "landing", ', forwarder = "none"')),
        f"attribute 'forwarder' must be one of {', '.join(RULES)}, not 'none'",
    ),
    (
        back(collect("node", "landing", "source", ', forwarder = "static"')),
        "'fsc.collect' op has an unknown attribute 'forwarder'",
    ),
    (
        back(collect("rank", "target", "source", ', per = "rank"')),
        "'fsc.collect' op has an unknown attribute 'per'",
    ),
    (
        back(collect("rank", "target", "source", WEIGHT)),
        "'fsc.collect' op weighs rows that are no longer one a point",
    ),
    (
        back(collect("local", "target", "target", WEIGHT, kind="copy")),
        "'fsc.collect' op must weigh nothing but the terms of a sum",
    ),
    (
        back(collect("local", "target", "target", ", weight = @spec.keys")),
        "'fsc.collect' op must not take its weight from an input for route",
    ),
]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str) -> None:
    assert round_trips(printed(PRELUDE + case))


@pytest.mark.parametrize(("case", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_invalid(case: str, reason: str) -> None:
    assert reason in error_of(PRELUDE + case)


def test_a_combine_goes_back_leg_by_leg() -> None:
    text = compile_to_ir(moe(), after="derive-transpose").text
    assert round_trips(text)
    legs = re.findall(r' *"fsc\.collect"\(\).*\n', text)
    assert len(legs) == 4
    first, *_, last = legs
    for edits in (*[[(leg, "")] for leg in legs], [(first, ""), (last, last + first)]):
        assert "'fsc.path' op must go back the way of its dispatch" in error_of(
            edited(text, *edits)
        )
