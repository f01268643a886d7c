"""Slots that the relation gives, through the Triton kernels of one node, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engine import specs
from tests.engine.pool import Pool
from tests.node_triton import given_work


@dataclass(frozen=True)
class Small:
    """An example of small sizes: its text, what it is opened with, and its outermost extents."""

    text: str
    options: dict[str, Any]
    batches: list[tuple[int, ...]]


def example(name: str, *constants: tuple[str, str]) -> str:
    text = (specs.EXAMPLES / f"{name}.fsc").read_text()
    for old, new in constants:
        assert old in text
        text = text.replace(old, new)
    return text


NUM_RANKS = 4
FIXED = [(1, 1, 1, 1)] * 3  # their extents are constants
EXAMPLES = {
    "ulysses": Small(
        example(
            "ulysses",
            ("tokens = 4096, heads = 32, width = 128", "tokens = 32, heads = 8, width = 6"),
            ("block = 64", "block = 4"),
        ),
        {"max_sources": 64},
        FIXED,
    ),
    "fft_transpose": Small(
        example("fft_transpose", ("nx = 256, ny = 128, nz = 128", "nx = 5, ny = 8, nz = 4")),
        {"max_sources": 32},
        FIXED,
    ),
    "redistribute": Small(
        example("redistribute", ("rows = 8192, columns = 1024", "rows = 16, columns = 7")),
        {"max_sources": 16},
        FIXED,
    ),
    "vit_patches": Small(
        specs.patches(p=2, c=3),
        {"max_sources": 60, "capacity": 400},
        [(3, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
    "kv_pages": Small(
        example(
            "kv_pages",
            (
                "layers = 32, page = 16, heads = 8, width = 128",
                "layers = 3, page = 2, heads = 2, width = 5",
            ),
        ),
        {"max_sources": 12, "capacity": 64},
        [(3, 0, 12, 5), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(NUM_RANKS)
    yield processes
    processes.close()


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(pool: Pool, name: str, num_ranks: int) -> None:
    small = EXAMPLES[name]
    batches = [sizes[:num_ranks] for sizes in small.batches]
    pool.run(given_work.epochs, num_ranks, path(small.text), batches, 1, small.options)
