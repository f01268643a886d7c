"""Exact sizes by the Triton kernels of one node, interpreted: processes that store into each
other's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.gpus import torchrun
from tests.node_exact import memory_work, rank_work
from tests.node_exact.models import compile_all
from tests.node_triton.given_specs import EXAMPLES, TEXTS
from tests.node_triton.test_any_rows import CASTS
from tests.node_triton.test_given_slots import FANNED
from tests.node_triton.test_node_triton import COMPACT, SMALL, SPECS

NUM_RANKS = 4
OTHERS = {name: text for name, text in SPECS.items() if name != "long"}
OTHERS["normalised by a call"] = CASTS["normalised by a call"]
OTHERS["ragged"] = TEXTS
# The others have pieces, and inside a node exact sizes are the general engine's: `choose_exact`.
GIVEN = {name: EXAMPLES[name] for name in ("reshard", "kv_pages", "vit_patches_normalised")}
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


pool = pool_of(NUM_RANKS)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@one_of(OTHERS, "compact", "normalised by a call", "ragged")
def test_every_kind_of_shuffle(pool: Pool, name: str) -> None:
    pool.run(rank_work.batches, 2, path(OTHERS[name]), [(5, 0), (0, 0), (2, 12)], 1)


@NIGHTLY
@pytest.mark.parametrize("name", GIVEN)
def test_given_slots(pool: Pool, name: str) -> None:
    small = GIVEN[name]
    pool.run(rank_work.batches, NUM_RANKS, path(small.text), small.batches, 1)


def some_batches(
    num_ranks: st.SearchStrategy[int], largest: int
) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Sizes of every rank, batch after batch."""
    sizes = num_ranks.map(lambda count: st.tuples(*[st.integers(0, largest)] * count))
    return sizes.flatmap(lambda each: st.lists(each, min_size=1, max_size=4))


STATEFUL = [HealthCheck.function_scoped_fixture]


@by_night(SMALL)
@given(batches=some_batches(st.sampled_from([1, 2]), 5), seed=st.integers(0, 1000))
@settings(max_examples=2, suppress_health_check=STATEFUL)
def test_sizes_that_grow_and_shrink(
    pool: Pool, text: str, batches: list[tuple[int, ...]], seed: int
) -> None:
    pool.run(rank_work.batches, len(batches[0]), path(text), batches, seed)


@NIGHTLY
@BOTH
@given(batches=some_batches(st.integers(1, NUM_RANKS), 12), seed=st.integers(0, 1000))
@settings(max_examples=40, suppress_health_check=STATEFUL)
def test_many_sizes(pool: Pool, text: str, batches: list[tuple[int, ...]], seed: int) -> None:
    pool.run(rank_work.batches, len(batches[0]), path(text), batches, seed)


@pytest.mark.parametrize(
    "first",
    [pytest.param(2**31 - 2, id="signed"), pytest.param(2**32 - 2, id="unsigned", marks=NIGHTLY)],
)
def test_epochs_wrap(pool: Pool, first: int) -> None:
    """Windows grow before and behind it."""
    signed = first - (first >> 31 << 32)
    sizes = [(1, 2), (2, 1), (4, 0), (1, 1)]
    pool.run(rank_work.batches, 2, path(SMALL), sizes, 1, signed)


@by_night(SMALL)
@pytest.mark.parametrize("num_ranks", [1, pytest.param(4, marks=NIGHTLY)])
def test_handles_last(pool: Pool, text: str, num_ranks: int) -> None:
    pool.run(rank_work.handles_last, num_ranks, path(text))


def test_rows_of_the_window_are_not_dispatched(pool: Pool) -> None:
    """However often it has grown."""
    for said in pool.run(rank_work.lent_rows, 2, path(SMALL)):
        assert all("`x` on rank" in each and "is what a dispatch returned" in each for each in said)


def test_short_rows(pool: Pool) -> None:
    """One kernel sorts and moves them; those along a known routing another one moves."""
    text = specs.copied("f32", 4)
    assert specs.triton_tile(text)["sorted_rows"] > 1
    pool.run(rank_work.batches, 2, path(text), [(5, 0), (300, 30), (0, 0)], 1)
    pool.run(rank_work.short_rows_again, 2, path(text))


@pytest.mark.parametrize(
    ("text", "num_mistakes"),
    [
        pytest.param(COMPACT, 2, id="compact"),
        pytest.param(COMPACT, 5, id="compact, all", marks=NIGHTLY),
        pytest.param(SMALL, 5, id="expanded, all", marks=NIGHTLY),
    ],
)
def test_mistakes(pool: Pool, text: str, num_mistakes: int) -> None:
    """All ranks raise what the general engine raises, and nothing has moved."""
    found = pool.run(rank_work.mistakes, 2, path(text), num_mistakes, True)
    assert found == pool.run(rank_work.mistakes, 2, path(text), num_mistakes, False)
    assert len(found[0]) == num_mistakes
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


def test_a_default_device_is_the_programs(pool: Pool) -> None:
    pool.run(rank_work.elsewhere_by_default, 2, path(SMALL))


@pytest.mark.parametrize("fits", [True, False], ids=["one as before fits", "none fits"])
def test_no_memory_for_a_larger_window(pool: Pool, fits: bool) -> None:
    """All ranks name the one that has none; they go on, or say so in every later call."""
    first, *others = pool.run(memory_work.out_of_memory, 3, path(SMALL), fits)
    assert all(each == first for each in others)
    assert first[0].startswith("NetworkError")
    assert "failed on rank 2: Cannot allocate memory" in first[0]
    assert set(first) == {first[0]}


def ended_amid_a_call(work: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """What two ranks say, the last of which comes to no call any more; neither waits for long."""
    processes = Pool(2)
    try:
        (first, is_slow), (last, _) = processes.run(work, 2, path(SMALL))
    finally:
        processes.close()
    assert not is_slow
    return first, last


def test_no_memory_amid_a_call() -> None:
    first, last = ended_amid_a_call(memory_work.out_of_memory_amid_a_call)
    assert first[0] == "no error"
    assert first[1].startswith("HopTimeoutError: [FSR020] rank 0 waited")
    assert "for rank 1 in the counts" in first[1]
    assert last[0] == "no memory"
    assert "rank 1 could not prepare the call: OutOfMemoryError: no memory" in last[1]


def test_a_refusal_that_fails_leaves_nobody_waiting() -> None:
    first, last = ended_amid_a_call(memory_work.refused_amid_a_call)
    assert first[-1].startswith("HopTimeoutError: [FSR020] rank 0 waited")
    assert "for rank 1 in the" in first[-1]
    assert last[0] == "no memory"
    assert "rank 1 could not prepare the call: OutOfMemoryError: no memory" in last[1]


def test_no_memory_for_a_call(pool: Pool) -> None:
    said = (
        "PreparationError: [FSR006] rank 1 could not prepare the call: OutOfMemoryError: no memory"
    )
    assert pool.run(memory_work.out_of_scratch, 2, path(SMALL)) == [said, said]


@pytest.mark.parametrize("fits", [True, False])
def test_no_memory_for_a_larger_window_of_one_rank(pool: Pool, fits: bool) -> None:
    [said] = pool.run(memory_work.out_of_memory_alone, 1, path(SMALL), fits)
    assert all("PreparationError: [FSR006] rank 0 could not prepare" in each for each in said)


def test_no_memory_on_one_of_two_gpus(pool: Pool) -> None:
    first, second = pool.run(memory_work.gpus_out_of_memory, 2)
    assert first == second
    assert "mapping 128 bytes of cpu for its node failed on rank 1: out of memory" in first[0]
    assert [said == "no error" for said in first] == [False, True, False, False]
    assert "mapping 40 bytes of cpu for its node failed on rank 1: out of memory" in first[3]


def test_graphs_cannot_capture_calls(pool: Pool) -> None:
    for said in pool.run(rank_work.captured, 2, path(SMALL)):
        assert all(each.startswith("OptionError") and "CUDA graph" in each for each in said), said


def test_gradients(pool: Pool) -> None:
    for errors in pool.run(rank_work.by_torch, 2, "gradients", path(SMALL), {}):
        assert max(errors) < 1e-5, errors


def test_what_fuscoc_run_does(pool: Pool) -> None:
    problems, rows = zip(*pool.run(rank_work.demo, 2, path(COMPACT)), strict=True)
    assert problems == (None, None)
    assert sum(rows) > 0


@one_of(FANNED, "weighted")
def test_given_slots_that_are_summed(pool: Pool, name: str) -> None:
    """Random data of the runtime's own generator names each slot once."""
    pool.run(rank_work.batches, 2, path(FANNED[name]), [(3, 2), (0, 5)], 1)


@NIGHTLY
def test_compiled(pool: Pool) -> None:
    assert max(pool.run(rank_work.by_torch, 2, "compiled", path(SMALL), {})) < 1e-5


@NIGHTLY
def test_a_rank_that_does_not_come() -> None:
    pool = Pool(2)
    try:
        message = pool.run(rank_work.absent, 2, path(SMALL))[0]
    finally:
        pool.close()
    assert message.startswith("HopTimeoutError")
    assert "rank 1" in message


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_gpus(num_ranks: int, tmp_path: Path) -> None:
    """Rows bit by bit, stress, mistakes; one wait in a dispatch that plans, none in other calls."""
    compile_all(tmp_path)
    torchrun(num_ranks, "tests/node_exact/exact_gpu_run.py", tmp_path)
