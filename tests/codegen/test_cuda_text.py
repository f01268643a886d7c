"""The printed CUDA text of every example, byte by byte, or why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuscoc.codegen.cuda_types import Unsupported
from tests.dialect.support import check_goldens
from tests.specs import EXAMPLE_NAMES, checked_example, cuda_of

GOLDEN = Path(__file__).parent / "golden" / "cuda"


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_golden(name: str) -> None:
    try:
        variants = cuda_of(checked_example(name)).variants
        texts = {f".{each.target.arch}.cu": each.source.text for each in variants}
    except Unsupported as reason:
        texts = {".txt": f"{reason}\n"}
    check_goldens(GOLDEN, name, texts)
