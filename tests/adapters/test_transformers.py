"""Models of transformers with parallel experts on four ranks, against the unmodified model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuscoc_runtime.errors import AdapterError
from tests.adapters import transformers_work
from tests.adapters.by_day import IN_SUITE, nightly_but
from tests.adapters.transformers_models import ARCHITECTURES
from tests.engine.pool import Pool
from tests.gpus import ROOT, torchrun

pytestmark = pytest.mark.usefixtures("transformers")
nightly = pytest.mark.nightly


@pytest.mark.parametrize("halves", [False, True], ids=["all", "halves"])
def test_two_steps(pool: Pool, halves: bool) -> None:
    """Of all ranks, or of either half, each with all experts."""
    work = transformers_work.train
    assert pool.run(work, 4, IN_SUITE, {}, 2, False, halves) == [[]] * 4


def test_ranks_that_want_more_tokens(pool: Pool) -> None:
    kinds = ["greedy", "static"]
    assert pool.run(transformers_work.generate, 4, IN_SUITE, {}, kinds, 1) == [[]] * 4


@pytest.mark.parametrize("name", nightly_but("Mixtral", IN_SUITE))
def test_experts_in_bf16(pool: Pool, name: str) -> None:
    assert pool.run(transformers_work.experts_in_bf16, 4, name, {}) == [[]] * 4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_checkpoints(pool: Pool, name: str, tmp_path: Path) -> None:
    assert pool.run(transformers_work.save, 4, name, str(tmp_path)) == [[]] * 4


def test_ranks_that_do_not_divide_the_experts(pool: Pool) -> None:
    said = "8 experts of `model.layers.0.mlp.experts` cannot be spread evenly over 3 ranks"
    for outcome in pool.outcomes(transformers_work.save, 3, "Mixtral", ""):
        assert isinstance(outcome, AdapterError)
        assert said in str(outcome)


@pytest.mark.parametrize(
    ("work", "options", "said"),
    [
        (transformers_work.of_unsaid_replicas, [], "`replicas` has to say which"),
        (transformers_work.fully_sharded, [], "gate_up_proj is being replaced, as FSDP does"),
        (transformers_work.flattened, [False], "gate_up_proj is being replaced, as FSDP does"),
        (transformers_work.flattened, [True], "gate_up_proj is being replaced, as FSDP does"),
    ],
)
def test_what_would_train_experts_apart(
    pool: Pool, work: Callable[..., None], options: list[bool], said: str
) -> None:
    for outcome in pool.outcomes(work, 4, *options):
        assert isinstance(outcome, AdapterError)
        assert said in str(outcome)


@nightly
@pytest.mark.parametrize("fixed", [{}, {"max_sources": 24}], ids=["exact", "fixed"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ten_steps(pool: Pool, name: str, fixed: dict[str, int]) -> None:
    assert pool.run(transformers_work.train, 4, name, fixed, 10) == [[]] * 4


@nightly
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_that_nobody_writes(pool: Pool, name: str) -> None:
    work = transformers_work.train_on_nan
    assert pool.run(work, 4, name, {"max_sources": 24}, 1) == [[]] * 4


@nightly
@pytest.mark.parametrize("fixed", [{}, {"max_sources": 24}], ids=["exact", "fixed"])
def test_compiled(pool: Pool, fixed: dict[str, int]) -> None:
    assert pool.run(transformers_work.compiled, 4, IN_SUITE, fixed) == [[]] * 4


@nightly
@pytest.mark.parametrize("fixed", [{}, {"max_sources": 24}], ids=["exact", "fixed"])
def test_layers_that_are_recomputed(pool: Pool, fixed: dict[str, int]) -> None:
    assert pool.run(transformers_work.train, 4, IN_SUITE, fixed, 2, True) == [[]] * 4


@nightly
@pytest.mark.parametrize("fixed", [{}, {"max_sources": 48}], ids=["exact", "fixed"])
@pytest.mark.parametrize("kind", transformers_work.KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_kind_of_generation(pool: Pool, name: str, kind: str, fixed: dict[str, int]) -> None:
    assert pool.run(transformers_work.generate, 4, name, fixed, [kind], 1) == [[]] * 4


@nightly
def test_the_example(tmp_path: Path) -> None:
    """It compares the model that it saves with an ordinary one."""
    command = [sys.executable, str(ROOT / "examples/transformers_moe.py"), "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the saved model differs by" in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_on_gpus(num_ranks: int, tmp_path: Path) -> None:
    """All of the above, with exact sizes and with fixed ones."""
    printed = torchrun(num_ranks, "tests/adapters/transformers_gpu_run.py", tmp_path)
    assert "all as alone" in printed
