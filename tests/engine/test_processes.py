"""Real processes: gloo between nodes, shared memory inside them, the same kernels."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import fuscoc
from fuscoc_runtime.errors import (
    ArtifactError,
    HopTimeoutError,
    IndexOutOfRangeError,
    ProtocolError,
    TopologyError,
)
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.topology import Topology
from tests.engine import rank_work, specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import PATIENCE_SECONDS, Died, Pool
from tests.static import specs as static

TOPOLOGIES = ("1x2", "2x1", "1x3", "3x1", "1x4", "2x2", "4x1")
SMALL = specs.routed("f32")
STAGED = specs.routed("f32", options="schedule fast")
"""Of three nodes, in two stages."""

CASES = [
    *((specs.routed("bf16"), topology) for topology in TOPOLOGIES),
    *((specs.patches(), topology) for topology in TOPOLOGIES),
    (specs.routed("f16"), "2x2"),
    (specs.routed("f32", options="dedup(none)"), "2x2"),
    (specs.routed("f32", options="dedup(node)"), "2x2"),
    (specs.routed("f32", placement="table owner"), "1x3"),
    (specs.routed("bf16", capacity="compact"), "2x2"),
    (specs.FIELDS, "2x2"),
    (specs.MOVED, "2x2"),
    (specs.MOVED, "1x4"),
    (specs.GRID, "2x2"),
    (specs.GRID, "3x1"),
]

LATE_SECONDS = 5.0
"""How long a rank that does not come is waited for. One that only lags, on a slow machine, comes
earlier."""


pool = pool_of(4)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@pytest.mark.parametrize(
    ("text", "topology"), CASES, ids=[f"{i}-{topology}" for i, (_, topology) in enumerate(CASES)]
)
def test_verified_run(pool: Pool, text: str, topology: str) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    reports = pool.run(rank_work.verified_run, num_ranks, path(text), topology, 5, 0)
    assert [report.problem for report in reports] == [None] * num_ranks
    assert [report.rank for report in reports] == list(range(num_ranks))


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
@pytest.mark.parametrize("make", [static.ulysses, static.redistribute])
def test_static_shuffles(pool: Pool, make: Callable[[], Artifact], topology: str) -> None:
    reports = pool.run(rank_work.verified_run, 4, str(make().path), topology, 5, 0)
    assert [report.problem for report in reports] == [None] * 4


@pytest.mark.parametrize("topology", ["1x3", "2x2"])
def test_batches_of_many_sizes(pool: Pool, topology: str) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    sizes = [2, 9, 0, 30, 4, 31, 1, 7]
    pool.run(rank_work.many_dispatches, num_ranks, path(SMALL), topology, sizes)


def test_the_network_is_measured_once(pool: Pool) -> None:
    (first, second), other = pool.run(rank_work.measured_links, 2, "2x1")
    assert first is second
    assert [first, second] == other


DISPATCH, BY_A_HANDLE = "a dispatch of `routed`", "a dispatch by a handle of `routed`"
COMBINE, CLOSING = "a combine of `routed`", "closing"


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
@pytest.mark.parametrize(
    "made",
    [
        (DISPATCH, BY_A_HANDLE),
        (BY_A_HANDLE, DISPATCH),
        (BY_A_HANDLE, COMBINE),
        (COMBINE, DISPATCH),
        (DISPATCH, CLOSING),
        (CLOSING, COMBINE),
        (DISPATCH, "a dispatch of `other`"),
    ],
)
def test_ranks_that_make_different_calls(pool: Pool, topology: str, made: tuple[str, str]) -> None:
    """Both say so, and go on."""
    artifacts = path(SMALL), path(SMALL.replace("shuffle routed", "shuffle other"))
    for said in pool.run(rank_work.different_calls, 2, artifacts, topology, made):
        told = f"ProtocolError: [FSR090] the ranks disagree: rank 1 has come to {made[1]} ("
        assert said.startswith(told)
        assert f") where rank 0 has come to {made[0]} (" in said


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_ranks_that_call_different_shuffles_of_one_spec(pool: Pool, topology: str) -> None:
    made = DISPATCH, "a dispatch of `other`"
    said = pool.run(rank_work.different_calls, 2, (path(SMALL), path(SMALL)), topology, made)
    come = rf"{DISPATCH} \(\d+ bytes, opening (\w+)\)"
    for each in said:
        found = re.search(rf"FSR090.*rank 1 has come to {come} where rank 0 .* to {come}", each)
        assert found is not None, each
        assert found[1] != found[2]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_gathers_that_a_rank_has_given_up(pool: Pool, num_ranks: int) -> None:
    """Rank 0 two of them, and of three ranks the next one the latter. What they have told then is
    not taken for what they tell now."""
    found = pool.run(rank_work.gathers_given_up, num_ranks)
    assert found == [list(range(num_ranks))] * num_ranks


def test_ranks_that_differ_behind_a_gather_that_one_has_given_up(pool: Pool) -> None:
    """All hear it at once, and nobody waits for the others."""
    found = pool.run(rank_work.gathers_that_differ, 3)
    assert len(set(found)) == 1
    assert "rank 1 has come to call 1" in found[0]
    assert "where rank 0 has come to call 0" in found[0]


@pytest.mark.parametrize("topology", ["1x3", "2x2"])
def test_all_ranks_raise_the_same_error(pool: Pool, topology: str) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    messages = pool.run(rank_work.bad_key, num_ranks, path(SMALL), topology)
    wanted = IndexOutOfRangeError("idx", 1, (1, 2), 99, -1, 11)
    assert messages == [str(wanted)] * num_ranks


def test_options_have_to_agree(pool: Pool) -> None:
    each = [(path(SMALL), {"num_sms": number}) for number in (1, 2)]
    outcomes = pool.outcomes(rank_work.open_each, 2, *each)
    assert all(isinstance(outcome, ProtocolError) for outcome in outcomes)
    assert {outcome.problem for outcome in outcomes} == {
        "rank 1 has num_sms=2 where rank 0 has num_sms=1"
    }


def test_a_rank_that_does_not_come_to_the_opening(tmp_path: Path) -> None:
    """Its machine has no artifact, say. What it finds itself is what it raises."""
    pool = Pool(3)
    try:
        pool.run(rank_work.describe, 3, path(SMALL))  # imports everything
        paths = [path(SMALL), str(tmp_path / "nothing"), path(SMALL)]
        each = [(artifact, {"timeout": 1.0}) for artifact in paths]
        outcomes = pool.outcomes(rank_work.open_each, 3, *each)
        assert isinstance(outcomes[1], ArtifactError)
        for rank in (0, 2):
            assert isinstance(outcomes[rank], HopTimeoutError), outcomes[rank]
            assert (outcomes[rank].rank, outcomes[rank].peer) == (rank, 1)
    finally:
        pool.close()


def test_topologies_have_to_agree(pool: Pool) -> None:
    each = [(path(SMALL), {"topology": topology}) for topology in ("2x1", "1x2")]
    outcomes = pool.outcomes(rank_work.open_each, 2, *each)
    assert all(isinstance(outcome, TopologyError) for outcome in outcomes), outcomes
    assert "rank 1 has the topology 1x2 where rank 0 has 2x1" in str(outcomes[0])


def test_artifacts_have_to_agree(pool: Pool, tmp_path: Path) -> None:
    """In their specs, constants, and in what has been planned at compile time: errors say which."""
    renamed = SMALL.replace("shuffle routed", "shuffle other")
    commented = fuscoc.compile(f"{SMALL}// the same, for a compiler\n", tmp_path / "commented")
    for what, *paths in (
        ("shuffle='other'", path(SMALL), path(renamed)),
        ("spec='", path(SMALL), str(commented)),
        ("hidden=25", path(SMALL), str(fuscoc.compile(SMALL, tmp_path / "wider", hidden=25))),
        ("baked=['1x2']", str(static.redistribute().path), str(static.redistribute("1x2").path)),
    ):
        outcomes = pool.outcomes(rank_work.open_each, 2, *((each, {}) for each in paths))
        assert all(isinstance(outcome, ProtocolError) for outcome in outcomes), outcomes
        assert f"rank 1 has {what}" in outcomes[0].problem


def test_nodes_are_found_by_host(pool: Pool) -> None:
    [first, _] = pool.run(rank_work.describe, 2, path(SMALL))
    assert first == (
        "<Shuffle routed: rank 0 of 1x2 on cpu>",
        "by hosts: of rank 0, it computes on cpu",
    )


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_requests(pool: Pool, num_ranks: int) -> None:
    pool.run(rank_work.communicate, num_ranks, num_ranks)


@pytest.mark.parametrize(
    ("topology", "kernel", "launch", "hop"),
    [
        ("1x3", "_relation", 2, ("planning",)),
        ("1x3", "_send", 2, ("direct",)),
        # How far the others have got by then is a matter of luck.
        ("3x1", "_pack", 2, ("planning", "network (stage ")),
    ],
)
def test_a_killed_rank_is_named(
    topology: str, kernel: str, launch: int, hop: tuple[str, ...]
) -> None:
    """It dies in planning, before its signals, or with rows still to send."""
    victim = 1
    pool = Pool(3)
    try:
        outcomes = pool.outcomes(
            rank_work.dispatch_with_a_death,
            3,
            path(STAGED),
            topology,
            victim,
            kernel,
            launch,
            LATE_SECONDS,
        )
        assert outcomes[victim] == Died(-signal.SIGKILL)
        for rank in {0, 1, 2} - {victim}:
            error = outcomes[rank]
            assert isinstance(error, HopTimeoutError), error
            assert (error.rank, error.peer) == (rank, victim)
            assert error.hop.startswith(hop)
    finally:
        pool.close()


@pytest.mark.parametrize(("seconds", "timeout"), [(5.0, 2.0), (1.0, 60.0)])
def test_a_kernel_waits_for_the_timeout(seconds: float, timeout: float) -> None:
    """Then it names the rank and the hop; whoever comes in time is waited for, however many polls
    that takes."""
    late, pool = 1, Pool(3)
    try:
        arguments = path(SMALL), late, seconds, timeout
        outcomes = pool.outcomes(rank_work.dispatch_with_a_delay, 3, *arguments)
        for rank in (0, 2):
            error = outcomes[rank]
            if seconds < timeout:
                assert error is None
            else:
                assert isinstance(error, HopTimeoutError), error
                assert (error.rank, error.hop, error.peer) == (rank, "direct", late)
                assert error.seconds >= timeout
    finally:
        pool.close()


@pytest.mark.parametrize("before", [pytest.param("_tell", marks=pytest.mark.nightly), "_map"])
def test_a_rank_that_is_killed_while_windows_are_made_is_named(before: str) -> None:
    pool = Pool(3)
    try:
        outcomes = pool.outcomes(rank_work.windows_with_a_death, 3, before, LATE_SECONDS)
        assert outcomes[0] == Died(-signal.SIGKILL)
        for rank in (1, 2):
            error = outcomes[rank]
            assert isinstance(error, HopTimeoutError), error
            assert (error.rank, error.hop, error.peer) == (rank, "window allocation", 0)
    finally:
        pool.close()


def test_no_memory_for_windows_in_one_node() -> None:
    """It says so, and comes to no call of any shuffle more; the other names it."""
    pool = Pool(2)
    try:
        found = pool.run(rank_work.no_memory_in_one_node, 2, path(SMALL), "2x1")
    finally:
        pool.close()
    own = "[FSR006] rank 1 could not prepare the call: OutOfMemoryError: no memory"
    assert all(own in said for said in found[1])
    assert all("[FSR020] rank 0 waited" in said for said in found[0])
    assert all("s for rank 1 in the" in said for said in found[0])


@pytest.mark.parametrize(
    ("topology", "part"),
    [
        ("1x2", "engine.dispatch.PreparedPath"),
        ("2x1", "engine.combine.PreparedPath"),
        ("1x2", "comm.process.start_gather"),
    ],
)
def test_no_memory_amid_a_call(topology: str, part: str) -> None:
    """It comes to no call any more, of no shuffle between nodes; the other names it."""
    pool = Pool(2)
    try:
        found = pool.run(rank_work.no_memory_amid_a_call, 2, path(SMALL), topology, part)
    finally:
        pool.close()
    is_lost = [True, True, topology == "2x1"]
    own = "[FSR006] rank 1 could not prepare the call: OutOfMemoryError: no memory"
    assert found[1][0] == "no memory"
    assert [own in said for said in found[1][1:]] == is_lost[1:]
    assert ["[FSR020] rank 0 waited" in said for said in found[0]] == is_lost
    assert is_lost[2] or [said[2] for said in found] == ["no error"] * 2
    assert ["s for rank 1 in the" in said for said in found[0]] == is_lost


def test_nobody_waits_for_a_rank_that_has_given_up() -> None:
    """Though its process runs on, and the time is not up."""
    pool = Pool(2)
    try:
        for said in pool.run(rank_work.left_alone, 2, path(SMALL), 2 * PATIENCE_SECONDS)[0]:
            assert said.startswith("HopTimeoutError: [FSR020] rank 0 waited"), said
            assert "for rank 1 in the" in said
            assert "it has ended, or given up" in said
    finally:
        pool.close()


def test_closing_names_a_rank_that_has_ended() -> None:
    pool = Pool(2)
    try:
        error = pool.outcomes(rank_work.close_alone, 2, path(SMALL))[0]
        assert isinstance(error, HopTimeoutError), error
        assert (error.rank, error.hop, error.peer) == (0, "closing", 1)
    finally:
        pool.close()


def test_the_stage_that_does_not_come_is_named() -> None:
    pool = Pool(2)
    try:
        pool.run(rank_work.describe, 2, path(SMALL))  # imports everything
        error = pool.outcomes(rank_work.stage_without, 2, LATE_SECONDS)[0]
        assert isinstance(error, HopTimeoutError), error
        assert (error.rank, error.hop, error.peer) == (0, "network (stage 1)", 1)
    finally:
        pool.close()


def test_an_absent_rank_is_named() -> None:
    pool = Pool(2)
    try:
        pool.run(rank_work.describe, 2, path(SMALL))  # imports everything
        error = pool.outcomes(rank_work.dispatch_without, 2, path(SMALL), 1, LATE_SECONDS)[0]
        assert isinstance(error, HopTimeoutError), error
        assert (error.rank, error.hop, error.peer) == (0, "planning", 1)
    finally:
        pool.close()
