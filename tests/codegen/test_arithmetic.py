"""Computed keys against Python's integers: in Triton interpreted, in CUDA compiled for the host."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fuscoc.codegen.cuda_relation import print_relation
from fuscoc.codegen.cuda_shuffle import cuda_shuffle
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.source import SourceFile
from fuscoc_runtime.kernels.cuda import INCLUDE
from fuscoc_runtime.scalar import Scope, evaluate, parse, subexpressions
from tests.codegen.memory import zeros
from tests.codegen.specs import built_of

SPEC = """
shuffle s {{
  index t : tokens  index k : 3  index u : n  index e : 8
  segment row {{ x : i64 }}
  layout source[t] of row
  layout target[e, s] of row packed(s)
  place e on rank by cyclic
  route wide(t) -> value = input wide : int64
  route narrow(t, k) -> value = input narrow : int32
  route r(t, k) -> e = {}
  dispatch source[t] -> target[r(t, k), *]
}}
"""
LEAVES = ["t", "k", "n", "rank", "ranks", "1", "7", "2147483648", "wide(t)"]
LEAVES += ["narrow(t, k)"] * 4
DIVISORS = ["3", "8", "ranks", "(n * 2 + 1)"]
NUM_TOKENS = 4
EXTENTS = {"tokens": NUM_TOKENS, "n": 5, "rank": 1, "ranks": 3}
INPUTS = {
    "wide": np.array([5, -9, 2**31, -(2**40)], np.int64),
    "narrow": np.array([[2**31 - 1, 3, -1], [-(2**31), -8, 0], [7, -7, 1], [2, 4, 6]], np.int32),
}
CALL = "struct Call { const void* inputs[8]; i64 extents[8]; int rank, num_ranks; };"
MACROS = (
    "#define __host__\n#define __device__\n#define __forceinline__ inline\nusing i64 = long long;"
)


def expression(random: Random, depth: int) -> str:
    if depth == 0:
        return random.choice(LEAVES)
    op = random.choice("+-*/%")
    rhs = random.choice(DIVISORS) if op in "/%" else expression(random, depth - 1)
    return f"({expression(random, depth - 1)} {op} {rhs})"


def keys(shuffle: CudaShuffle) -> list[int] | None:
    """The keys of all points; None where something does not fit in 64 bits."""
    key, found = parse(shuffle.key), []
    for t, k in product(range(NUM_TOKENS), range(3)):
        scope = Scope(EXTENTS, INPUTS, {"t": t, "k": k})
        if any(not -(2**63) <= evaluate(part, scope) < 2**63 for part in subexpressions(key)):
            return None
        found.append(evaluate(key, scope))
    return found


def cases(number: int, depth: int) -> Iterator[tuple[CheckedShuffle, CudaShuffle, list[int]]]:
    random = Random(0)
    while number:
        text = SPEC.format(f"{expression(random, random.randint(1, depth))} + k * 0")
        (checked,) = check(SourceFile("s.fsc", text))
        shuffle = cuda_shuffle(checked)
        wanted = keys(shuffle)
        if wanted is not None:
            number -= 1
            yield checked, shuffle, wanted


def test_triton() -> None:
    """Deep expressions, so that lines get long."""
    for checked, shuffle, wanted in cases(15, 5):
        outputs = {name: zeros(len(wanted)) for name in ("source", "src_offset", "rank", "key")}
        values = {**EXTENTS, "rank_": EXTENTS["rank"], **INPUTS, **outputs, "key_to_rank": zeros(8)}
        values |= {"num_points": len(wanted), "num_ranks": EXTENTS["ranks"]}
        kernels = built_of(checked).kernels
        taken = kernels.module.s_relation.arg_names
        kernels.launch("s_relation", **{name: values[name] for name in taken})
        assert outputs["key"].tolist() == wanted, shuffle.key


def test_cuda(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    found = list(cases(150, 3))
    header = (INCLUDE / "base.cuh").read_text(encoding="utf-8")
    divisions = re.findall(r"^.*constexpr i64 floor_.*$", header, re.MULTILINE)
    functions = [
        f"namespace n{i} {{ {print_relation(shuffle)} }}\n"
        f'extern "C" i64 key{i}(const Call& call, i64 point) '
        f"{{ return n{i}::Relation{{call}}.key(point); }}"
        for i, (_, shuffle, _) in enumerate(found)
    ]
    source, library = tmp_path / "relation.cc", tmp_path / "relation.so"
    source.write_text("\n".join([MACROS, CALL, *divisions, *functions]), encoding="utf-8")
    subprocess.run([compiler, "-O1", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    compiled = ctypes.CDLL(str(library))
    for i, (_, shuffle, wanted) in enumerate(found):
        call = (ctypes.c_int64 * 17)()
        call[: len(shuffle.inputs)] = [INPUTS[each.name].ctypes.data for each in shuffle.inputs]
        call[8 : 8 + len(shuffle.extents)] = [EXTENTS[name] for name in shuffle.extents]
        call[16] = EXTENTS["rank"] | EXTENTS["ranks"] << 32
        function = compiled[f"key{i}"]
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
        assert [function(call, point) for point in range(len(wanted))] == wanted, shuffle.key
