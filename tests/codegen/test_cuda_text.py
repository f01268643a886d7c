"""The printed CUDA text of every example, byte by byte, or why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuscoc.capabilities import CUDA, find_fault
from tests.dialect.support import check_goldens
from tests.specs import EXAMPLE_NAMES, checked_example, cuda_of

GOLDEN = Path(__file__).parent / "golden" / "cuda"


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_golden(name: str) -> None:
    checked = checked_example(name)
    fault = find_fault(checked, CUDA)
    if fault is not None:
        texts = {".txt": f"{fault.reason}\n"}
    else:
        variants = cuda_of(checked).variants
        texts = {f".{each.target.arch}.cu": each.source.text for each in variants}
    check_goldens(GOLDEN, name, texts)
