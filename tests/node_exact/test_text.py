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
def test_compiles(module: str, name: str) -> None:
    """What a program has stored is behind a barrier of all its threads when it is flagged."""
    function = getattr(device_module(module, interpreted=False), name)
    source = ASTSource(function, signature=dict.fromkeys(function.arg_names, "i64"))
    compiled = triton.compile(source, target=TARGET, options={"num_warps": 4})
    assert compiled.asm["cubin"]
    assert barriers_before_release(compiled.asm["ptx"]) >= 1
