"""How the CUDA kernels divide a GPU: what must hold for any row, and what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.schedule import (
    EARLY_BYTES,
    FLAGGED_BYTES,
    IN_FLIGHT_BYTES,
    Schedule,
    expected_destinations,
    model_schedule,
    num_early,
)
from fuscoc_runtime.engine.node.triton_pieces import planning_of


@given(
    num_ctas=st.integers(1, 160),
    warps=st.integers(4, 24),
    teams=st.integers(1, 15),
    num_ranks=st.integers(1, 8),
    fanout=st.integers(1, 32),
    row_bytes=st.integers(16, 65536),
)
def test_every_schedule_can_be_launched(
    num_ctas: int, warps: int, teams: int, num_ranks: int, fanout: int, row_bytes: int
) -> None:
    model = model_schedule(num_ctas, warps, teams, num_ranks, fanout, row_bytes)
    assert 1 <= model.send_ctas <= num_ctas
    assert 1 <= model.send_warps <= warps
    assert 1 <= model.reduce_teams <= teams
    assert num_ctas == 1 or model.send_ctas * model.send_warps < num_ctas * warps, "all send"
    if num_ctas > 64:
        flight = model.send_ctas * model.send_warps * row_bytes * (num_ranks - 1)
        full = model.send_warps == warps and model.send_ctas >= num_ctas // 3
        assert num_ranks == 1 or flight >= IN_FLIGHT_BYTES or full


@given(num_ranks=st.integers(2, 8), fanout=st.integers(1, 32), row_bytes=st.integers(1, 1 << 20))
def test_what_is_sent_early_lasts_as_long_as_a_plan(
    num_ranks: int, fanout: int, row_bytes: int
) -> None:
    segment = row_bytes * expected_destinations(num_ranks, fanout)
    early = num_early(num_ranks, fanout, row_bytes)
    assert (early - 1) * segment * (1 - 1e-9) < EARLY_BYTES <= early * segment * (1 + 1e-9)


@pytest.mark.parametrize(
    ("num_ctas", "num_ranks", "measured"),
    [
        (132, 4, Schedule(132, 44, 6, 1, 1, 1)),
        (64, 4, Schedule(64, 64, 3, 2, 2, 2)),
        (32, 4, Schedule(32, 32, 3, 3, 2, 4)),
        (132, 2, Schedule(132, 44, 8, 2, 2, 1)),
        (64, 2, Schedule(64, 64, 4, 2, 2, 2)),
        (32, 2, Schedule(32, 32, 4, 2, 2, 4)),
    ],
)
def test_what_was_fastest_for_rows_of_14336_bytes(
    num_ctas: int, num_ranks: int, measured: Schedule
) -> None:
    assert model_schedule(num_ctas, 16, 4, num_ranks, 8, 14336) == measured


@given(num_ctas=st.integers(65, 160), num_ranks=st.integers(3, 8), row_bytes=st.integers(16, 65536))
def test_only_short_rows_share_a_flag(num_ctas: int, num_ranks: int, row_bytes: int) -> None:
    model = model_schedule(num_ctas, 16, 4, num_ranks, 8, row_bytes)
    shared = row_bytes < FLAGGED_BYTES
    assert (model.dispatch_group > 1, model.combine_group > 1) == (shared, shared)


@pytest.mark.parametrize(
    ("needed", "programs", "most", "part"),
    [
        (264, 264, 264, "leads"),  # each has an item, and all may wait for peers
        (264, 264, 263, "both"),  # one too many
        (264, 264, 0, "both"),  # others count on the SMs
        (448, 224, 0, "both"),  # two turns each
        (449, 224, 0, None),
        (449, 224, 224, None),
        (0, 0, 0, "leads"),
    ],
)
def test_what_copies_comes_as_early_as_it_may(
    needed: int, programs: int, most: float, part: str | None
) -> None:
    assert planning_of(needed, programs, most) == part
