"""Conversions to and from 8-bit floats, on the host and in the device headers, against torch's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fuscoc_runtime.kernels.cuda import INCLUDE
from fuscoc_runtime.kernels.exact import FORMATS, narrow_float8, widen_float8
from tests.native import cxx

DTYPES = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
STRUCTS = {"fp8e4nv": "E4m3", "fp8e5": "E5m2"}

names = st.sampled_from(list(FORMATS))


def by_torch(values: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    """Saturating, with one NaN; torch's own conversion to f8e4m3 makes NaN of large values."""
    largest = torch.finfo(DTYPES[name]).max
    bits = torch.from_numpy(values).clamp(-largest, largest).to(DTYPES[name]).view(torch.uint8)
    return np.where(np.isnan(values), 0x7F, bits.numpy()).astype(np.uint8)


def values(name: str) -> NDArray[np.float32]:
    """Every bf16, what lies between neighbours of the format, and a little beside that."""
    every_bf16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    exact = widen_float8(np.arange(256, dtype=np.uint8), name)
    exact = np.sort(exact[np.isfinite(exact)])
    ties = (exact[1:] + exact[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([every_bf16, exact, ties, *beside]).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_pattern_is_widened(name: str) -> None:
    bits = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(bits).view(DTYPES[name]).float().numpy()
    found = widen_float8(bits, name)
    assert np.array_equal(found, wanted, equal_nan=True)
    numbers = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


@pytest.mark.parametrize("name", FORMATS)
def test_narrowing_rounds_to_nearest_even_and_saturates(name: str) -> None:
    given_values = values(name)
    assert np.array_equal(narrow_float8(given_values, name), by_torch(given_values, name))


@given(names, st.lists(st.floats(width=32), min_size=1))
def test_any_float_is_narrowed(name: str, floats: list[float]) -> None:
    array = np.array(floats, dtype=np.float32)
    assert np.array_equal(narrow_float8(array, name), by_torch(array, name))


@pytest.mark.parametrize("name", FORMATS)
def test_gpus_without_the_instruction_narrow_alike(name: str, tmp_path: Path) -> None:
    """The header's own rounding, compiled for the host: what sm_80 runs."""
    compiler = cxx()
    header = (INCLUDE / "cast.cuh").read_text()
    begin, end = header.index("// The 8-bit float nearest"), header.index("template <class From>")
    (tmp_path / "narrow.cpp").write_text(
        "#include <cmath>\n#include <cstdio>\n#include <cstring>\n"
        "#define __device__\n#define __forceinline__ inline\n"
        "using u32 = unsigned; using u16 = unsigned short;\n"
        "u32 __float_as_uint(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }\n"
        "float __uint_as_float(u32 x) { float value; memcpy(&value, &x, 4); return value; }\n"
        "float __fmul_rn(float a, float b) { return a * b; }\n"
        f"{header[begin:end]}\n"
        "int main() { float x; while (fread(&x, 4, 1, stdin) == 1)\n"
        f"  putchar({STRUCTS[name]}::pack(x, 0.f) & 0xff); }}\n"
    )
    program = tmp_path / "narrow"
    source = str(tmp_path / "narrow.cpp")
    subprocess.run([compiler, "-std=c++17", source, "-o", str(program)], check=True)
    given_values = values(name)
    done = subprocess.run([program], input=given_values.tobytes(), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, dtype=np.uint8)
    assert np.array_equal(found, by_torch(given_values, name))
