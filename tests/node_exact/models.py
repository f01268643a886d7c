"""What the tests compile and run on GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.engine import specs
from tests.node_triton.given_specs import EXAMPLES, by_triton
from tests.node_triton.test_node_triton import COMPACT, SMALL, SPECS

SMALL_ONES = {
    "expanded": SMALL,
    "compacted": COMPACT,
    **{name: SPECS[name] for name in ("bf16", "cyclic", "unweighted", "fields", "compact")},
    "kv_pages": EXAMPLES["kv_pages"].text,
}
LARGE_ONES = ("moe", "moe_compact", "hash_buckets")
SMALL_FOLDER, LARGE_FOLDER = "small", "large"


def compile_all(folder: Path) -> None:
    """Artifacts of small sizes to compare with the reference, and of examples to be timed."""
    import fuscoc

    for name, text in SMALL_ONES.items():
        fuscoc.compile(by_triton(text), folder / SMALL_FOLDER / name)
    for name in LARGE_ONES:
        text = (specs.EXAMPLES / f"{name}.fsc").read_text()
        fuscoc.compile(by_triton(text), folder / LARGE_FOLDER / name)
