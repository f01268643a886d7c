"""Loading kernels of an artifact, and what the interpreter has to get right."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fuscoc_runtime.kernels import device
from fuscoc_runtime.kernels.exact import round_to_bfloat16, widen_bfloat16
from fuscoc_runtime.kernels.loader import Kernel, KernelError, address, load_kernel
from fuscoc_runtime.manifest.schema import KernelArg, KernelSpec

MODULE = """
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "src", "dst"])
def narrow(count: tl.int64, src: tl.int64, dst: tl.int64):
    src = src.to(tl.pointer_type(tl.float32))
    dst = dst.to(tl.pointer_type(tl.bfloat16))
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        tl.store(dst + i, tl.load(src + i).to(tl.bfloat16))
"""


def spec(*args: str, function: str = "narrow") -> KernelSpec:
    named = tuple(KernelArg(name, "address", f"value.{name}") for name in args)
    return KernelSpec("narrow", "narrow.py", function, named, 4, ())


def loaded(tmp_path: Path) -> Kernel:
    path = tmp_path / "narrow.py"
    return load(path, MODULE)


def load(path: Path, text: str, function: str = "narrow", interpreted: bool = True) -> Kernel:
    named = spec("count", "src", "dst", function=function)
    return load_kernel(path, named, text.encode(), interpreted=interpreted)


@pytest.mark.parametrize("num_programs", [1, 3, 40])
def test_interpreted_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_programs: int
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    import triton

    kernel = loaded(tmp_path)
    source = torch.randn(33)
    result = torch.empty(33, dtype=torch.bfloat16)
    values = {"value.count": 33, "value.src": address(source), "value.dst": address(result)}
    kernel.launch(values, num_programs)
    assert torch.equal(result, source.bfloat16())
    assert not triton.knobs.runtime.interpret


def test_native_functions_stay_native(tmp_path: Path) -> None:
    import triton

    loaded(tmp_path)
    kernel = load(tmp_path / "narrow.py", MODULE, interpreted=False)
    assert isinstance(kernel.function, triton.JITFunction)


def test_missing_value(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"kernel narrow: no value for value\.src, value\.dst"):
        loaded(tmp_path).launch({"value.count": 1}, 1)


def test_missing_kernel(tmp_path: Path) -> None:
    loaded(tmp_path)
    with pytest.raises(KernelError, match="has no kernel widen"):
        load(tmp_path / "narrow.py", MODULE, "widen")


def test_a_module_that_is_replaced(tmp_path: Path) -> None:
    """The new text is loaded; the old kernel, first launched now, still is the old text's."""
    path = tmp_path / "narrow.py"
    old = load(path, MODULE)
    new = load(path, MODULE.replace("tl.load(src + i)", "tl.load(src + i) + tl.load(src + i)"))
    for kernel, factor in ((old, 1), (new, 2), (old, 1)):
        source, result = torch.arange(5.0), torch.empty(5, dtype=torch.bfloat16)
        values = {"value.count": 5, "value.src": address(source), "value.dst": address(result)}
        kernel.launch(values, 1)
        assert torch.equal(result.float(), factor * source)


def test_missing_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(KernelError, match="pip install triton"):
        loaded(tmp_path)


floats = arrays.arrays(np.uint32, st.integers(0, 20), elements=st.integers(0, 2**32 - 1))


@given(floats)
def test_round_to_bfloat16(bits: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
    values = bits.view(np.float32)
    found = torch.from_numpy(round_to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    wanted = torch.from_numpy(values.copy()).bfloat16()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_widen_bfloat16() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wanted = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float()
    assert widen_bfloat16(bits).tobytes() == wanted.numpy().tobytes()


def test_no_text_is_a_default_of_a_device_function() -> None:
    """Triton 3.6 compiles none that is called without it; later ones do."""
    functions = [
        (path.name, node)
        for path in sorted(Path(device.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert len(functions) > 100
    for file, function in functions:
        for default in function.args.defaults:
            text = isinstance(default, ast.Constant) and isinstance(default.value, str)
            assert not text, f"{function.name} in {file}"
