"""Results that ranks lend to each other, through the Triton kernels of one node, interpreted."""

from __future__ import annotations

from typing import Any

import pytest

from fuscoc.explain import fixed
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import lent_work
from tests.node_triton.given_specs import EXAMPLES

pool = pool_of(4)


def given(name: str) -> tuple[str, dict[str, Any]]:
    """An artifact, and what it is opened with: room for whole sources, moved or not."""
    options = {"max_sources": 64}
    if "capacity" in EXAMPLES[name].options:
        options["capacity"] = 400
    return str(specs.artifact(EXAMPLES[name].text).path), options


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    [
        ("ulysses", 2),
        ("moving", 4),
        ("vit_patches", 3),  # chains, and parts that are cleared
        ("kv_long_pages", 2),
        pytest.param("fft_transpose", 4, marks=pytest.mark.nightly),
        pytest.param("redistribute", 4, marks=pytest.mark.nightly),
        pytest.param("vit_patches_nchw", 3, marks=pytest.mark.nightly),
        pytest.param("vit_unpack", 2, marks=pytest.mark.nightly),
        pytest.param("spread", 3, marks=pytest.mark.nightly),
    ],
)
def test_calls(pool: Pool, name: str, num_ranks: int) -> None:
    path, options = given(name)
    batches = [sizes[:num_ranks] for sizes in EXAMPLES[name].batches]
    seen = pool.run(lent_work.calls, num_ranks, path, batches, options)
    assert all(each == seen[0] for each in seen)
    first, mixed, last = seen[0]
    assert all(first)
    assert 0 < sum(mixed) < len(mixed)
    assert all(last)


@pytest.mark.parametrize(
    ("name", "sms", "role"),
    [
        ("vit_patches", 47, "dispatch_few"),
        ("vit_patches", 48, "dispatch"),
        ("vit_patches", None, "dispatch"),
        ("kv_long_pages", 47, "dispatch"),  # words of 16 bytes
    ],
)
def test_few_sms_dispatch_by_kernels_of_their_own(
    pool: Pool, name: str, sms: int | None, role: str
) -> None:
    assert pool.run(lent_work.dispatches_by, 1, *given(name), sms) == [role]


def test_a_rank_does_not_join(pool: Pool) -> None:
    """What the others would get of it is lost, and no more; later results are lent again."""
    *others, last = pool.run(lent_work.one_does_not_join, 4, *given("ulysses"))
    for lacks, lent, said in others:
        assert lacks == [True, True]
        assert lent == [True] + [False, True, True] * 2
        assert all("rank 3 refused 1 calls" in each for each in said)
    assert last == ([], [True] * 5, ["no error"] * 2)


def test_a_rank_looks_late(pool: Pool) -> None:
    """Who has gone on to its next combine has not lent its result in this one."""
    for found in pool.run(lent_work.one_looks_late, 2, *given("kv_long_pages")):
        assert found == [False, True]


def test_what_a_late_rank_stores_is_waited_for(pool: Pool) -> None:
    for found in pool.run(lent_work.one_stores_late, 2, *given("ulysses")):
        assert found == [True, True]


@pytest.mark.parametrize("comes", [False, True])
def test_a_rank_is_lost(pool: Pool, comes: bool) -> None:
    """Before all ranks have met, or behind it."""
    lacks, said, again = pool.run(lent_work.one_is_lost, 2, *given("ulysses"), comes)[0]
    assert lacks
    assert said.startswith("HopTimeoutError")
    assert "rank 1" in said
    assert again == said


def test_captured_handles_lend_nothing(pool: Pool) -> None:
    for found in pool.run(lent_work.captured, 2, *given("ulysses")):
        assert found == [True, False, False, True]


def test_explained() -> None:
    """What explain says of the memory for them, which is that of the largest results."""
    shuffle = specs.artifact(EXAMPLES["ulysses"].text).shuffle(None)
    told = fixed.results(shuffle, Topology(1, 2), 64, shuffle.node)
    assert told is not None
    assert (told.count, told.num_bytes) == (2, 64 * 4 * 6 * 2)
