"""What the tests compile and run on GPUs."""

from __future__ import annotations

import re
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
WITH_A_POLICY = ("expanded", "compacted", "bf16", "cyclic", "unweighted", "fields", "compact")
SMALL_FOLDER, LARGE_FOLDER = "small", "large"


def compile_all(folder: Path, policy: str = "") -> None:
    """Artifacts of small sizes to compare with the reference, and of examples to be timed; with a
    ``policy`` of what crosses nodes those that can have one."""
    import fuscoc

    for name, text in SMALL_ONES.items():
        if not policy or name in WITH_A_POLICY:
            fuscoc.compile(by_triton(_by(text, policy)), folder / SMALL_FOLDER / name)
    for name in LARGE_ONES:
        text = (specs.EXAMPLES / f"{name}.fsc").read_text()
        fuscoc.compile(by_triton(_by(text, policy)), folder / LARGE_FOLDER / name)


def _by(text: str, policy: str) -> str:
    """A shuffle whose dispatch has the policy, too, if there is one."""
    if not policy:
        return text
    found, number = re.subn(r"(dispatch .*\*\])", rf"\1 {policy}", text)
    assert number == 1
    return found
