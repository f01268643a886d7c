"""Hops: what their verifiers accept and refuse."""

from __future__ import annotations

import pytest

from tests.dialect.support import PRELUDE, error_of, printed, round_trips

WAITING = ', balance = "none", schedule = "pairwise", slice_bytes = 1 : i64'


def path(body: str, attributes: str = "", direction: str = "dispatch") -> str:
    return (
        f'{PRELUDE}"fsc.path"() ({{ {body} }}) {{direction = "{direction}", shuffle = @s, '
        f'sym_name = "s_dispatch"{attributes}}} : () -> ()'
    )


def there(body: str, waiting: str = WAITING) -> str:
    return path(body, waiting)


def back(body: str, waiting: str = WAITING) -> str:
    return path(body, waiting, "combine")


def hop(scope: str, src: str, dst: str, more: str = "") -> str:
    return (
        f'"fsc.hop"() {{dst = "{dst}", per = "rank", scope = "{scope}", src = "{src}"{more}}} : '
        "() -> ()"
    )


def collect(scope: str, src: str, dst: str, more: str = "", per: str = "rank") -> str:
    return (
        f'"fsc.collect"() {{dst = "{dst}", kind = "sum", per = "{per}", scope = "{scope}", '
        f'src = "{src}"{more}}} : () -> ()'
    )


CHOSEN = WAITING.replace(', balance = "none"', "")

VALID = [
    path("^bb0:"),
    there(hop("node", "source", "landing", ', forwarder = "same_local_rank"'), CHOSEN),
    there(hop("rank", "source", "target")),
    there(hop("rank", "landing", "target")),
    there(hop("local", "target", "target")),
    back(collect("node", "landing", "source", ', forwarder = "same_local_rank"'), CHOSEN),
    back(collect("rank", "target", "landing")),
    back(collect("local", "target", "target", ", weight = @spec.factors", per="point")),
]

INVALID = [
    (path(""), "'fsc.path' op needs exactly one block in region 0, not 0"),
    (path("^bb0:", ", speed = 1"), "'fsc.path' op has an unknown attribute 'speed'"),
    (
        path("^bb0:").replace('"dispatch"', '"sideways"'),
        "attribute 'direction' must be one of dispatch, combine, not 'sideways'",
    ),
    (
        path("^bb0:").replace("shuffle = @s", "shuffle = @spec.row"),
        "names @spec.row, a fsc.def_segment",
    ),
    (path("^bb0:", WAITING), "needs the attribute 'schedule' exactly while it has hops"),
    (path(hop("rank", "source", "target")), "needs the attribute 'schedule' exactly while it"),
    (
        there(hop("rank", "source", "target"), CHOSEN),
        "'fsc.path' op needs the attribute 'balance' exactly until forwarders are chosen",
    ),
    (
        there(hop("rank", "source", "target")).replace('"none"', '"luck"'),
        "attribute 'balance' must be one of none, auto, static, greedy, lpt, split, rebalance",
    ),
    (
        back(hop("rank", "source", "target")),
        "'fsc.path' op has legs of another direction than combine",
    ),
    (
        path("^bb0:") + path("^bb0:").removeprefix(PRELUDE).replace("s_dispatch", "again"),
        "'fsc.path' op must be the only path for dispatch of its shuffle",
    ),
    (PRELUDE + hop("rank", "source", "target"), "'fsc.hop' op must stand inside fsc.path"),
    (
        path(hop("node", "source", "target")),
        "'fsc.hop' op must run between a sender and landing exactly when its scope is node",
    ),
    (
        path(hop("rank", "source", "landing")),
        "'fsc.hop' op must run between a sender and landing exactly when its scope is node",
    ),
    (
        path(hop("local", "source", "target")),
        "'fsc.hop' op must stay in one buffer exactly when its scope is local",
    ),
    (
        path(hop("rank", "target", "target")),
        "'fsc.hop' op must stay in one buffer exactly when its scope is local",
    ),
    (
        path(hop("rank", "source", "target", ', forwarder = "same_local_rank"')),
        "'fsc.hop' op names a forwarder but does not pass one",
    ),
    (
        path(hop("node", "source", "landing", ', forwarder = "luck"')),
        "attribute 'forwarder' must be one of same_local_rank, greedy_groups, longest_first, "
        "split_flows, rebalanced, predicted, not 'luck'",
    ),
    (
        path(collect("rank", "target", "source", ", weight = @spec.factors")),
        "'fsc.collect' op weighs rows that are no longer one a point",
    ),
    (
        path(
            collect("local", "target", "target", ", weight = @spec.factors", per="point").replace(
                '"sum"', '"copy"'
            )
        ),
        "'fsc.collect' op must weigh nothing but the terms of a sum",
    ),
]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str) -> None:
    assert round_trips(printed(case))


@pytest.mark.parametrize(("case", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_invalid(case: str, reason: str) -> None:
    assert reason in error_of(case)
