"""Exact sizes by the Triton kernels of one node, interpreted: processes that store into each
other's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import specs
from tests.engine.pool import Pool
from tests.gpus import torchrun
from tests.node_exact import rank_work
from tests.node_exact.models import compile_all
from tests.node_triton.given_specs import EXAMPLES
from tests.node_triton.test_given_slots import FANNED
from tests.node_triton.test_node_triton import COMPACT, SMALL, SPECS

NUM_RANKS = 4
OTHERS = {name: text for name, text in SPECS.items() if name not in ("table", "long")}
GIVEN = {name: small for name, small in EXAMPLES.items() if name != "vit_patches"}
NIGHTLY = pytest.mark.nightly
BOTH = pytest.mark.parametrize("text", [SMALL, COMPACT], ids=["expanded", "compact"])


def one_of(names: Iterable[str], *by_day: str) -> pytest.MarkDecorator:
    """All of them at night, since they are interpreted, and some by day."""
    marked = [pytest.param(each, marks=() if each in by_day else NIGHTLY) for each in names]
    return pytest.mark.parametrize("name", marked)


def by_night(text: str) -> pytest.MarkDecorator:
    """Both kinds of targets, one of them only at night."""
    kinds = {"expanded": SMALL, "compact": COMPACT}
    marks = {name: NIGHTLY if each == text else () for name, each in kinds.items()}
    params = [pytest.param(each, marks=marks[name], id=name) for name, each in kinds.items()]
    return pytest.mark.parametrize("text", params)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(NUM_RANKS)
    yield processes
    processes.close()


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@one_of(OTHERS, "unweighted", "fields", "compact")
def test_every_kind_of_shuffle(pool: Pool, name: str) -> None:
    pool.run(rank_work.batches, 2, path(OTHERS[name]), [(5, 0), (0, 0), (2, 12)], 1)


@one_of(GIVEN, "kv_pages")
def test_given_slots(pool: Pool, name: str) -> None:
    small = GIVEN[name]
    pool.run(rank_work.batches, NUM_RANKS, path(small.text), small.batches, 1)


def some_batches(num_ranks: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Sizes of every rank, batch after batch."""
    sizes = num_ranks.map(lambda count: st.tuples(*[st.integers(0, 12)] * count))
    return sizes.flatmap(lambda each: st.lists(each, min_size=1, max_size=4))


STATEFUL = [HealthCheck.function_scoped_fixture]


@BOTH
@given(batches=some_batches(st.sampled_from([1, 2])), seed=st.integers(0, 1000))
@settings(max_examples=2, suppress_health_check=STATEFUL)
def test_sizes_that_grow_and_shrink(
    pool: Pool, text: str, batches: list[tuple[int, ...]], seed: int
) -> None:
    pool.run(rank_work.batches, len(batches[0]), path(text), batches, seed)


@NIGHTLY
@BOTH
@given(batches=some_batches(st.integers(1, NUM_RANKS)), seed=st.integers(0, 1000))
@settings(max_examples=40, suppress_health_check=STATEFUL)
def test_many_sizes(pool: Pool, text: str, batches: list[tuple[int, ...]], seed: int) -> None:
    pool.run(rank_work.batches, len(batches[0]), path(text), batches, seed)


@pytest.mark.parametrize("first", [2**31 - 2, 2**32 - 2], ids=["signed", "unsigned"])
def test_epochs_wrap(pool: Pool, first: int) -> None:
    """Windows grow before and behind it."""
    signed = first - (first >> 31 << 32)
    sizes = [(1, 2), (2, 1), (4, 0), (1, 1)]
    pool.run(rank_work.batches, 2, path(SMALL), sizes, 1, signed)


@BOTH
@pytest.mark.parametrize("num_ranks", [1, pytest.param(4, marks=NIGHTLY)])
def test_handles_last(pool: Pool, text: str, num_ranks: int) -> None:
    pool.run(rank_work.handles_last, num_ranks, path(text))


@by_night(SMALL)
def test_mistakes(pool: Pool, text: str) -> None:
    """All ranks raise what the general engine raises, and nothing has moved."""
    found = pool.run(rank_work.mistakes, 2, path(text), True)
    assert found == pool.run(rank_work.mistakes, 2, path(text), False)
    assert found[0] == found[1]
    assert all(message != "no error" for message in found[0])


@by_night(COMPACT)
def test_calls_along_known_routings_that_one_rank_refuses(pool: Pool, text: str) -> None:
    first, second, third = pool.run(rank_work.refusals, 3, path(text))
    other = "is of dispatch 1; rank 1 passed that of dispatch 2"
    refused = "rank 1 refused 1 calls that rank 0 had joined"
    expected = ["joined", refused, "joined", other, "joined", refused, "joined", other]
    for said, part in zip(first, expected, strict=True):
        assert part in said
    assert [said.replace("rank 2", "rank 0") for said in third] == first
    assert "has the shape" in second[0]
    assert "is torch.float64" in second[4]
    passed = "is of dispatch 2; rank 0 passed that of dispatch 1"
    assert passed in second[3]
    assert passed in second[7]
    assert [second[i] for i in (1, 2, 5, 6)] == ["no error", "joined", "no error", "joined"]
    assert second[3].count("; rank 2 passed") == second[7].count("; rank 2 passed") == 1


def test_calls_that_kernels_leave_out(pool: Pool) -> None:
    pool.run(rank_work.left_out, 2, path(SMALL))


def test_gradients(pool: Pool) -> None:
    for errors in pool.run(rank_work.by_torch, 2, "gradients", path(SMALL), {}):
        assert max(errors) < 1e-5, errors


def test_what_fuscoc_run_does(pool: Pool) -> None:
    problems, rows = zip(*pool.run(rank_work.demo, 2, path(COMPACT)), strict=True)
    assert problems == (None, None)
    assert sum(rows) > 0


@one_of(FANNED, "weighted", "summed")
def test_given_slots_that_are_summed(pool: Pool, name: str) -> None:
    """Random data of the runtime's own generator names each slot once."""
    pool.run(rank_work.batches, 2, path(FANNED[name]), [(3, 2), (0, 5)], 1)


@NIGHTLY
def test_compiled(pool: Pool) -> None:
    assert max(pool.run(rank_work.by_torch, 2, "compiled", path(SMALL), {})) < 1e-5


def test_a_rank_that_does_not_come() -> None:
    pool = Pool(2)
    try:
        message = pool.run(rank_work.absent, 2, path(SMALL))[0]
    finally:
        pool.close()
    assert message.startswith("HopTimeoutError")
    assert "rank 1" in message


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_gpus(num_ranks: int, tmp_path: Path) -> None:
    """Rows bit by bit, stress, mistakes; one wait in a dispatch that plans, none in other calls."""
    compile_all(tmp_path)
    torchrun(num_ranks, "tests/node_exact/exact_gpu_run.py", tmp_path)
