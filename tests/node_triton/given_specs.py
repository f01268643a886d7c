"""The examples whose slots the spec gives, with small sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine import specs


@dataclass(frozen=True)
class Small:
    """An example of small sizes: its text, what it is opened with, its outermost extents, and how
    many ranks it takes at least."""

    text: str
    options: dict[str, Any]
    batches: list[tuple[int, ...]]
    least_ranks: int = 1


def example(name: str, *constants: tuple[str, str]) -> str:
    text = (specs.EXAMPLES / f"{name}.fsc").read_text()
    for old, new in constants:
        assert old in text
        text = text.replace(old, new)
    return text


TEXTS = example(
    "ragged_text", ("const width = 1024, buckets = 64", "const width = 6, buckets = 8")
).split("// The lengths")[0]
"""Slots that are assigned, of a ragged source."""

MOVING = """
    shuffle moving {
      const most = 4
      index i : rows   index k : ranks   index s : length
      segment row { x : f32[3] }
      layout mine[i, k] of row dense(rows, ranks)
      layout theirs[s] of row dense(length)
      dispatch mine[i, k] -> theirs[rank * most + i] on k
      combine reverse
    }"""
LINES = MOVING.replace("f32[3]", "f32[4]")
"""Extents of calls, which decide alone what moves, and rows that are not whole lines, or are."""

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
    "reshard": Small(
        example(
            "reshard",
            ("rows = 1000, columns = 363", "rows = 7, columns = 5"),
            ("high = 32, wide = 8", "high = 2, wide = 2"),
        ),
        {"max_sources": 20},
        FIXED,
        least_ranks=2,
    ),
    "all_gather": Small(
        example("all_gather", ("total = 8192, width = 1024", "total = 11, width = 12")),
        {"max_sources": 12},
        FIXED,
    ),
    "halo": Small(
        example(
            "halo", ("rows = 4096, reach = 2, width = 1024", "rows = 11, reach = 1, width = 5")
        ),
        {"max_sources": 12},
        FIXED,
    ),
    "moving": Small(
        LINES,
        {"max_sources": 16, "capacity": 16},
        [(2, 3, 1, 4), (4, 4, 4, 4), (2, 3, 1, 4), (2, 3, 2, 4)],
    ),
    "spread": Small(
        specs.SPREAD,
        {"max_sources": 24, "capacity": 24},
        [(1, 2, 3, 0), (5, 2, 6, 1), (1, 2, 3, 0)],
    ),
    "vit_patches": Small(
        specs.patches(p=2, c=3),
        {"max_sources": 60, "capacity": 400},
        [(3, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
    "vit_patches_nchw": Small(
        example("vit_patches_nchw", ("p = 14, c = 3", "p = 2, c = 3")),
        {"max_sources": 60, "capacity": 400},
        [(3, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
    "vit_patches_normalised": Small(
        example("vit_patches_normalised", ("p = 14, c = 3", "p = 2, c = 3")),
        {"max_sources": 60, "capacity": 400},
        [(3, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
    "vit_patches_normalised by a call": Small(
        example(
            "vit_patches_normalised",
            ("p = 14, c = 3", "p = 2, c = 3"),
            ("mean = [0.485, 0.456, 0.406]", "mean = input mean : f32[c]"),
            ("std = [0.229, 0.224, 0.225]", "std = input std : f32[c]"),
        ),
        {"max_sources": 60, "capacity": 400},
        [(3, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
    "vit_unpack": Small(
        example(
            "vit_unpack",
            ("p = 14, c = 3, rows = 16, columns = 16", "p = 2, c = 3, rows = 3, columns = 2"),
        ),
        {"max_sources": 40, "capacity": 120},
        [(5, 0, 7, 3), (0, 0, 0, 0), (2, 3, 4, 0)],
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
    "kv_long_pages": Small(
        example(
            "kv_pages",
            (
                "layers = 32, page = 16, heads = 8, width = 128",
                "layers = 2, page = 4, heads = 8, width = 64",
            ),
        ),
        {"max_sources": 6, "capacity": 24},
        [(3, 0, 5, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
    ),
}


def compile_all(folder: Path) -> list[str]:
    """The artifacts of all examples, in their order, for the Triton kernels."""
    import fuscoc

    return [
        str(fuscoc.compile(by_triton(small.text), folder / name))
        for name, small in EXAMPLES.items()
    ]


def by_triton(text: str) -> str:
    """The same shuffle, whose kernels are Triton's on any GPU."""
    before, word, after = text.rpartition("  combine" if "  combine" in text else "}")
    return f"{before}    backend triton\n{word}{after}"
