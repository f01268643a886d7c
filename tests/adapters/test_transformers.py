"""Models of transformers with parallel experts on four ranks, against the unmodified model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters import transformers_work
from tests.adapters.transformers_models import ARCHITECTURES
from tests.engine.pool import Pool

pytest.importorskip("transformers", reason="transformers is not installed")

IN_SUITE = "GptOss"
EVERY = [
    pytest.param(name, marks=[] if name == IN_SUITE else [pytest.mark.nightly])
    for name in ARCHITECTURES
]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("name", EVERY)
def test_training(pool: Pool, name: str) -> None:
    assert pool.run(transformers_work.train, 4, name, {}) == [[]] * 4


@pytest.mark.parametrize("name", EVERY)
def test_generation(pool: Pool, name: str) -> None:
    assert pool.run(transformers_work.generate, 4, name, {}) == [[]] * 4


@pytest.mark.parametrize("name", EVERY)
def test_checkpoints(pool: Pool, name: str, tmp_path: Path) -> None:
    assert pool.run(transformers_work.save, 4, name, str(tmp_path)) == [[]] * 4
