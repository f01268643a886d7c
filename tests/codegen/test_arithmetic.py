"""Computed keys against Python's own arithmetic on the text of the spec: in Triton interpreted, in
CUDA compiled for the host."""

from __future__ import annotations

import ast
import ctypes
import operator
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fuscoc.codegen.cuda_relation import print_relation
from fuscoc.codegen.cuda_shuffle import cuda_shuffle
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.source import SourceFile
from fuscoc_runtime.kernels.cuda import INCLUDE
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
OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
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


def value(node: ast.expr, names: Mapping[str, int]) -> int:
    """Raises OverflowError where something does not fit in 64 bits."""
    match node:
        case ast.BinOp():
            found = OPERATORS[type(node.op)](value(node.left, names), value(node.right, names))
            if not -(2**63) <= found < 2**63:
                raise OverflowError
            return int(found)
        case ast.Call(func=ast.Name(id=route)):
            return int(INPUTS[route][tuple(value(each, names) for each in node.args)])
        case ast.Name(id=name):
            return names[name]
        case ast.Constant(value=int(number)):
            return number
    raise TypeError(ast.dump(node))


def keys(text: str) -> list[int]:
    """The keys of all points. Raises OverflowError where something does not fit in 64 bits."""
    node = ast.parse(text, mode="eval").body
    points = product(range(NUM_TOKENS), range(3))
    return [value(node, {**EXTENTS, "t": t, "k": k}) for t, k in points]


def cases(number: int, depth: int) -> Iterator[tuple[CheckedShuffle, CudaShuffle, list[int]]]:
    random = Random(0)
    while number:
        key = f"{expression(random, random.randint(1, depth))} + k * 0"
        try:
            wanted = keys(key)
        except OverflowError:
            continue
        (checked,) = check(SourceFile("s.fsc", SPEC.format(key)))
        number -= 1
        yield checked, cuda_shuffle(checked), wanted


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
