"""Properties of simulated times on tasks of any shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.simulate.events import CycleError, Samples, busiest, run
from fuscoc.simulate.tasks import Builder, Tasks

few = settings(max_examples=30, deadline=None)


@dataclass(frozen=True)
class Work:
    """Tasks in order: latency, demands by link, and earlier tasks that each comes behind."""

    tasks: list[tuple[float, dict[int, float], list[int]]]
    capacity: list[float]

    def build(self) -> Tasks:
        builder = Builder()
        ids = builder.add(
            np.arange(len(self.tasks)), "lane", ("",), np.array([each[0] for each in self.tasks])
        )
        for number, (_, demands, before) in enumerate(self.tasks):
            for link, amount in demands.items():
                builder.demand(ids[[number]], np.array([link]), np.array([amount]))
            builder.after(np.array(before, np.int64), ids[[number]])
        return builder.finish()

    def critical(self) -> float:
        """The longest way through latencies and demands as if each task had all links alone."""
        ends: list[float] = []
        for latency, demands, before in self.tasks:
            begin = max((ends[each] for each in before), default=0.0)
            alone = max((n / self.capacity[link] for link, n in demands.items()), default=0.0)
            ends.append(begin + latency + alone)
        return max(ends)


@st.composite
def works(draw: st.DrawFn, shared: bool = True) -> Work:
    """``shared``: whether several tasks may use a link."""
    num = draw(st.integers(1, 10))
    num_links = draw(st.integers(1, 4)) if shared else num
    capacity = draw(st.lists(st.floats(0.5, 50), min_size=num_links, max_size=num_links))
    tasks = []
    for number in range(num):
        links = st.integers(0, num_links - 1) if shared else st.just(number)
        demands = draw(st.dictionaries(links, st.floats(0.1, 20), max_size=3))
        before = (
            draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        )
        tasks.append((draw(st.sampled_from([0.0, 0.1, 1.0])), demands, before))
    return Work(tasks, capacity)


def seconds(work: Work, grain: float = 0.0) -> float:
    return run(work.build(), np.array(work.capacity), grain).seconds


@few
@given(works())
def test_no_time_is_below_a_bound(work: Work) -> None:
    tasks, capacity = work.build(), np.array(work.capacity)
    found = run(tasks, capacity, 0.0)
    assert found.seconds >= busiest(tasks, capacity).max() * (1 - 1e-6)
    assert found.seconds >= work.critical() * (1 - 1e-6)


@few
@given(works())
def test_order_is_kept(work: Work) -> None:
    found = run(work.build(), np.array(work.capacity), 0.0)
    for number, (latency, _, before) in enumerate(work.tasks):
        ready = max((found.end[each] for each in before), default=0.0)
        assert found.ready[number] == pytest.approx(ready, abs=1e-9)
        assert found.begin[number] == pytest.approx(ready + latency, abs=1e-9)
        assert found.end[number] >= found.begin[number]


@few
@given(works(), st.floats(0.25, 4))
def test_twice_as_fast_takes_half_as_long(work: Work, factor: float) -> None:
    """All rates by a factor, all latencies by its inverse: exactly so."""
    tasks = [(latency / factor, demands, before) for latency, demands, before in work.tasks]
    faster = Work(tasks, [each * factor for each in work.capacity])
    assert seconds(faster) * factor == pytest.approx(seconds(work), rel=1e-6)


@few
@given(works(shared=False), st.integers(0, 9), st.floats(1, 10))
def test_a_faster_link_never_hurts_where_none_is_shared(
    work: Work, link: int, factor: float
) -> None:
    link %= len(work.capacity)
    capacity = [each * (factor if n == link else 1) for n, each in enumerate(work.capacity)]
    assert seconds(Work(work.tasks, capacity)) <= seconds(work) * (1 + 1e-9)


@few
@given(works(), st.integers(0, 3), st.floats(1, 10))
def test_a_faster_link_never_raises_a_bound(work: Work, link: int, factor: float) -> None:
    link %= len(work.capacity)
    faster = [each * (factor if n == link else 1) for n, each in enumerate(work.capacity)]
    tasks = work.build()
    assert (busiest(tasks, np.array(faster)) <= busiest(tasks, np.array(work.capacity))).all()
    assert Work(work.tasks, faster).critical() <= work.critical() * (1 + 1e-9)


def test_a_faster_link_can_hurt() -> None:
    """Graham's anomaly: why more is not claimed. The first task ends earlier on a faster link, and
    its follower then takes a share of what the longest task needs."""

    def work(rate: float) -> Work:
        chain = [(0.0, {0: 10.0}, []), (0.0, {1: 10.0}, [0])]
        return Work([*chain, (0.0, {1: 5.0}, []), (0.0, {2: 20.0}, [2])], [rate, 1.0, 1.0])

    assert seconds(work(2.0)) == pytest.approx(25)
    assert seconds(work(10.0)) > 25


@few
@given(works(), st.floats(0, 0.5))
def test_a_grain_delays_and_never_hurries(work: Work, grain: float) -> None:
    tasks, capacity = work.build(), np.array(work.capacity)
    found = run(tasks, capacity, grain)
    assert found.seconds >= busiest(tasks, capacity).max() * (1 - 1e-6)
    assert found.seconds >= work.critical() * (1 - 1e-6)


def test_a_crowd_has_fewer_events_and_ends_hardly_later(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    amounts = random.uniform(1, 2, 400).tolist()
    work = Work([(0.0, {n % 7: size}, []) for n, size in enumerate(amounts)], [1.0] * 7)
    tasks, capacity = work.build(), np.ones(7)
    exact = run(tasks, capacity, 0.0)
    monkeypatch.setattr("fuscoc.simulate.events.CROWD", 20)
    crowded = run(tasks, capacity)
    assert (crowded.end >= exact.end * (1 - 1e-9)).all()
    assert exact.seconds <= crowded.seconds <= exact.seconds * 1.02
    assert len(np.unique(crowded.end)) < len(np.unique(exact.end)) / 4


@few
@given(works(), st.floats(0.01, 3))
def test_all_bytes_pass_and_no_link_carries_more_than_it_can(work: Work, length: float) -> None:
    tasks, capacity = work.build(), np.array(work.capacity)
    samples = Samples(len(capacity), length, 16)
    run(tasks, capacity, 0.0, samples)
    moved = busiest(tasks, capacity) * capacity
    np.testing.assert_allclose(samples.bytes.sum(axis=0), moved, rtol=1e-6, atol=1e-9)
    assert (samples.bytes <= capacity * samples.length * (1 + 1e-6)).all()


@few
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.1, 20))
def test_a_link_is_shared_alike_whatever_tasks_put_on_others(
    elsewhere: list[float], size: float
) -> None:
    """Where no other link has more bytes of a task."""
    tasks = [(0.0, {0: size, 1: size * part}, []) for part in elsewhere]
    work = Work(tasks, [1.0, 50.0])
    found = run(work.build(), np.array(work.capacity), 0.0)
    np.testing.assert_allclose(found.end, size * len(tasks))


@few
@given(st.lists(st.floats(0.1, 20), min_size=1, max_size=8), st.floats(0.5, 50))
def test_one_link_takes_what_all_of_its_bytes_take(amounts: list[float], rate: float) -> None:
    work = Work([(0.0, {0: amount}, []) for amount in amounts], [rate])
    assert seconds(work) == pytest.approx(sum(amounts) / rate)


@few
@given(st.lists(st.tuples(st.floats(0.0, 2), st.floats(0.1, 20)), min_size=1, max_size=8))
def test_a_chain_takes_the_sum_of_its_parts(parts: list[tuple[float, float]]) -> None:
    tasks = [(late, {0: size}, [n - 1] if n else []) for n, (late, size) in enumerate(parts)]
    expected = sum(late + size / 4.0 for late, size in parts)
    assert seconds(Work(tasks, [4.0])) == pytest.approx(expected)


def test_tasks_that_wait_for_each_other_are_an_error() -> None:
    builder = Builder()
    ids = builder.add(np.arange(2))
    builder.after(ids, ids[::-1])
    with pytest.raises(CycleError, match="2 tasks"):
        run(builder.finish(), np.ones(1), 0.0)
