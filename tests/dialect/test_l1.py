"""Hops: what their verifiers accept and refuse."""

from __future__ import annotations

import pytest

from tests.dialect.support import PRELUDE, error_of, printed, round_trips


def path(body: str, attributes: str = "") -> str:
    return (
        f'{PRELUDE}"fsc.path"() ({{ {body} }}) {{direction = "dispatch", shuffle = @s, '
        f'sym_name = "s_dispatch"{attributes}}} : () -> ()'
    )


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


VALID = [
    path("^bb0:", ', balance = "none", schedule = "pairwise", slice_bytes = 1 : i64'),
    path(hop("node", "source", "landing", ', forwarder = "same_local_rank"')),
    path(hop("rank", "source", "target")),
    path(hop("rank", "landing", "target")),
    path(hop("local", "target", "target")),
    path(collect("node", "landing", "source", ', forwarder = "same_local_rank"')),
    path(collect("rank", "target", "landing")),
    path(collect("local", "target", "target", ", weight = @spec.factors", per="point")),
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
