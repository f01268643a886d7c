"""The same among processes: engines of exact sizes and of fixed capacity, interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuscoc
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.gpus import torchrun
from tests.into import rank_work
from tests.into.models import EXAMPLE, MODELS, build, build_all
from tests.into.rank_work import Kind

pool = pool_of(2)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return build(Path(tmp_path_factory.mktemp("into")))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("table", "general"), ("table", "exact"), *((name, "fixed") for name in MODELS)],
)
def test_memory_is_what_torch_makes_it(
    pool: Pool, built: dict[str, str], name: str, kind: Kind
) -> None:
    """And of exact sizes a host waits once in a dispatch, of a fixed capacity never."""
    assert pool.run(rank_work.calls, 2, built[name], name, kind) == [[], []]


@pytest.mark.parametrize("name", ["kv_cache", "tiles"])
def test_memory_of_rows_from_other_nodes(pool: Pool, built: dict[str, str], name: str) -> None:
    """Segments of pieces, of exact sizes: one wait, too."""
    assert pool.run(rank_work.calls, 2, built[name], name, "exact", "2x1") == [[], []]


@pytest.mark.parametrize(
    ("kind", "topology"), [("general", None), ("exact", None), ("exact", "2x1"), ("fixed", None)]
)
def test_tables_that_are_wrong(
    pool: Pool, tmp_path: Path, kind: Kind, topology: str | None
) -> None:
    """Where hosts wait nothing moves, and all ranks say so; else such rows are counted."""
    sizes = {"layers": 1, "page": 1, "heads": 1, "width": 4}
    artifact = str(fuscoc.compile(EXAMPLE, tmp_path / "cache", **sizes))
    first, second = pool.run(rank_work.mistakes, 2, artifact, kind, topology)
    if kind != "fixed":
        assert first == second
        (outside, before), (twice, same) = first
        assert outside == "[FSR010] `block_table[1]` on rank 1 is 7; it must be between -1 and 3"
        assert twice.startswith("[FSR028] `block_table[s]` is one place of `cache` for several")
        assert before == same == [0, 0, 0, 0]
        return
    assert first == [("no error", [1, 2, 3, 0])] * 2
    (outside, kept), (twice, one) = second
    assert outside.startswith("[FSR027] `block_table[s]` leads out of `cache` for 1 rows of rank 1")
    assert kept == [1, 3, 0, 0]
    assert twice.startswith("[FSR028] `block_table[s]` is one place of `cache` for several rows of")
    assert one == [0, 2, 1, 0]


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_gpus(num_ranks: int, tmp_path: Path) -> None:
    """Memory bit by bit by every engine, mistakes, and graphs that are replayed on other calls."""
    build_all(tmp_path)
    torchrun(num_ranks, "tests/into/gpu_run.py", tmp_path)
