"""The kernels of calls along known routings, compiled for sm_90 without a GPU."""

from __future__ import annotations

import pytest
import triton
from triton.compiler import ASTSource

from fuscoc_runtime.kernels.loader import device_module
from tests.codegen.ptx import TARGET, barriers_before_release


@pytest.mark.parametrize(
    ("module", "name"),
    [("known", "again"), ("known", "agree"), ("known", "tell"), ("answer", "adopt")],
)
def test_tells_peers(module: str, name: str) -> None:
    """What a program has stored is behind a barrier of all its threads when it is flagged."""
    assert barriers_before_release(compiled(module, name)) >= 1


def test_judges() -> None:
    """By a kernel that tells the host alone."""
    assert ".release" not in compiled("known", "judge")


def compiled(module: str, name: str) -> str:
    function = getattr(device_module(module, interpreted=False), name)
    source = ASTSource(function, signature=dict.fromkeys(function.arg_names, "i64"))
    made = triton.compile(source, target=TARGET, options={"num_warps": 4})
    assert made.asm["cubin"]
    ptx: str = made.asm["ptx"]
    return ptx
