"""``benchmarks/scale.py`` fakes all ranks but one: what it then plans is what all ranks would."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import scale
from benchmarks.planner import SPEC
from fuscoc.testing import load_spec


@pytest.mark.parametrize("num_ranks", [8, 32])
def test_a_faked_job_is_planned_as_a_whole_one(num_ranks: int) -> None:
    """``measure`` compares it with a plan of all ranks."""
    spec = load_spec(SPEC, experts=scale.NUM_KEYS).shuffle
    found = scale.measure(spec, num_ranks, num_tokens=9, repeats=1)
    words = 3 + 2 * num_ranks + num_ranks // scale.RANKS_PER_NODE + scale.NUM_KEYS
    assert found.sent_bytes == 8 * words
    assert found.read_bytes == num_ranks * found.sent_bytes
    assert set(found.seconds) == set(scale.STEPS)


def test_growth_is_the_power_of_the_ranks() -> None:
    results = [scale.Result(ranks, {"lists": 3e-6 * ranks**1.5}, 1, 1, 1) for ranks in scale.SIZES]
    assert np.isclose(scale.exponent(results, lambda each: each.seconds["lists"]), 1.5)
