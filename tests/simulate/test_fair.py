"""Max-min fairness against its definition, against exact progressive filling, and where it can be
said in closed form."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.simulate.fair import fair_rates

Flows = tuple[list[list[tuple[int, float]]], list[float]]


@st.composite
def systems(draw: st.DrawFn) -> Flows:
    """Tasks with loads on links, and the capacities."""
    num_links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(0.1, 100), min_size=num_links, max_size=num_links))
    load = st.floats(0.05, 1)
    task = st.dictionaries(st.integers(0, num_links - 1), load, min_size=1)
    tasks = draw(st.lists(task, min_size=1, max_size=12))
    return [[(link, part) for link, part in each.items()] for each in tasks], capacity


def rates_of(tasks: list[list[tuple[int, float]]], capacity: list[float]) -> Any:
    lengths = np.array([len(each) for each in tasks])
    links = np.array([link for each in tasks for link, _ in each])
    load = np.array([part for each in tasks for _, part in each])
    return fair_rates(np.cumsum(lengths) - lengths, links, load, np.array(capacity, np.float64))


@settings(max_examples=50, deadline=None)
@given(systems())
def test_every_task_has_a_full_link_where_nobody_is_faster(system: Flows) -> None:
    """That is max-min fairness (Bertsekas and Gallager, section 6.5.2)."""
    tasks, capacity = system
    rates = rates_of(tasks, capacity)
    used = np.zeros(len(capacity))
    fastest = np.zeros(len(capacity))
    for rate, task in zip(rates, tasks, strict=True):
        for link, part in task:
            used[link] += rate * part
            fastest[link] = max(fastest[link], rate)
    assert (used <= np.array(capacity) * (1 + 1e-6)).all()
    for rate, task in zip(rates, tasks, strict=True):
        assert any(
            used[link] >= capacity[link] * (1 - 1e-6) and rate >= fastest[link] * (1 - 1e-6)
            for link, _ in task
        )


def progressive_filling(
    tasks: list[list[tuple[int, float]]], capacity: list[float]
) -> list[Fraction]:
    """The textbook's, in exact fractions: all tasks that are not held up rise until a link is
    full, and then all that use it are held up."""
    rates = [Fraction(0)] * len(tasks)
    left = [Fraction(each) for each in capacity]
    rising = set(range(len(tasks)))
    while rising:
        rise = [Fraction(0)] * len(capacity)
        for number in rising:
            for link, part in tasks[number]:
                rise[link] += Fraction(part)
        step = min(room / speed for room, speed in zip(left, rise, strict=True) if speed)
        full = {n for n, speed in enumerate(rise) if speed and left[n] == step * speed}
        left = [room - step * speed for room, speed in zip(left, rise, strict=True)]
        for number in rising:
            rates[number] += step
        rising = {n for n in rising if not any(link in full for link, _ in tasks[n])}
    return rates


@settings(max_examples=50, deadline=None)
@given(systems())
def test_rates_are_those_of_progressive_filling(system: Flows) -> None:
    tasks, capacity = system
    expected = [float(each) for each in progressive_filling(tasks, capacity)]
    np.testing.assert_allclose(rates_of(tasks, capacity), expected, rtol=1e-6)


@given(st.integers(1, 20), st.floats(0.1, 100))
@settings(max_examples=20)
def test_equal_tasks_share_equally(num: int, capacity: float) -> None:
    np.testing.assert_allclose(rates_of([[(0, 1.0)]] * num, [capacity]), capacity / num)


def test_what_one_cannot_use_others_get() -> None:
    """Two flows on a link of 10, one of them held up at 2 elsewhere."""
    np.testing.assert_allclose(rates_of([[(0, 1), (1, 1)], [(0, 1)]], [10, 2]), [2, 8])
