"""Computed keys against Python's own arithmetic on the text of the spec: in Triton interpreted, in
CUDA compiled for the host, in tensors, and by the reference. In all of them a -1 that a route gives
drops the point."""

from __future__ import annotations

import ast
import ctypes
import operator
import re
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from fuscoc import testing
from fuscoc.capabilities import CUDA, find_fault
from fuscoc.codegen.cuda_relation import print_relation
from fuscoc.codegen.node_shuffle import node_shuffle
from fuscoc.lang.check import check
from fuscoc.lang.checked import DIVISIONS, CheckedShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.planning.points import points_of
from fuscoc.source import SourceFile
from fuscoc.testing.spec import describe
from fuscoc_runtime import reference
from fuscoc_runtime.kernels.cuda import INCLUDE
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.codegen.memory import zeros
from tests.codegen.specs import built_of
from tests.native import cxx

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
LEAVES = ["t", "k", "n", "rank", "ranks", "0", "1", "7", "2147483648", "wide(t)"]
LEAVES += ["narrow(t, k)"] * 4
DIVISORS = ["3", "8", "ranks", "(n * 2 + 1)"]
NUM_TOKENS = 4
EXTENTS = {"tokens": NUM_TOKENS, "n": 5, "rank": 1, "ranks": 3}
INPUTS = {
    "wide": np.array([5, -1, 2**31, -(2**40)], np.int64),
    "narrow": np.array([[2**31 - 1, 3, -1], [-(2**31), -8, 0], [7, -7, 1], [2, 4, 6]], np.int32),
}
OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "min": min,
    "max": max,
    "cdiv": lambda lhs, rhs: -(-lhs // rhs),
}
CALL = "struct Call { const void* inputs[8]; i64 extents[8]; int rank, num_ranks; };"
MACROS = """#include <algorithm>
#define __host__
#define __device__
#define __forceinline__ inline
using i64 = long long;
using std::max, std::min;"""


def expression(random: Random, depth: int) -> str:
    if depth == 0:
        return random.choice(LEAVES)
    op = random.choice(["+", "-", "*", "/", "%", "min", "max", "cdiv"])
    lhs = expression(random, depth - 1)
    rhs = random.choice(DIVISORS) if op in DIVISIONS else expression(random, depth - 1)
    return f"{op}({lhs}, {rhs})" if op in FUNCTIONS else f"({lhs} {op} {rhs})"


def value(node: ast.expr, names: Mapping[str, int]) -> int:
    """Raises OverflowError where something does not fit in 64 bits."""
    match node:
        case ast.BinOp():
            found = OPERATORS[type(node.op)](value(node.left, names), value(node.right, names))
            if not -(2**63) <= found < 2**63:
                raise OverflowError
            return int(found)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            return FUNCTIONS[name](*(value(each, names) for each in node.args))
        case ast.Call(func=ast.Name(id=route)):
            return int(INPUTS[route][tuple(value(each, names) for each in node.args)])
        case ast.Name(id=name):
            return names[name]
        case ast.Constant(value=int(number)):
            return number
    raise TypeError(ast.dump(node))


def keys(text: str) -> list[int]:
    """The keys of all points, -1 of those that read a -1.

    Raises OverflowError where something does not fit in 64 bits.
    """
    node = ast.parse(text, mode="eval").body
    calls = [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in INPUTS
    ]
    found = []
    for t, k in product(range(NUM_TOKENS), range(3)):
        names = {**EXTENTS, "t": t, "k": k}
        key = value(node, names)
        found.append(-1 if any(value(call, names) == -1 for call in calls) else key)
    return found


def cases(number: int, depth: int) -> Iterator[tuple[CheckedShuffle, str, list[int]]]:
    """Shuffles, their keys as text, and those of all points."""
    random = Random(0)
    while number:
        key = f"{expression(random, random.randint(1, depth))} + k * 0"
        try:
            wanted = keys(key)
        except OverflowError:
            continue
        (checked,) = check(SourceFile("s.fsc", SPEC.format(key)))
        number -= 1
        yield checked, key, wanted


def test_triton() -> None:
    """Deep expressions, so that lines get long."""
    for checked, key, wanted in cases(15, 5):
        outputs = {name: zeros(len(wanted)) for name in ("source", "src_offset", "rank", "key")}
        values = {**EXTENTS, "rank_": EXTENTS["rank"], **INPUTS, **outputs, "key_to_rank": zeros(8)}
        values |= {"num_points": len(wanted), "num_ranks": EXTENTS["ranks"]}
        kernels = built_of(checked).kernels
        taken = kernels.module.s_relation.arg_names
        kernels.launch("s_relation", **{name: values[name] for name in taken})
        assert outputs["key"].tolist() == wanted, key
        ranks = [0 if 0 <= each < 8 else -1 if each == -1 else -2 for each in wanted]
        assert outputs["rank"].tolist() == ranks, key


def test_tensors_and_reference() -> None:
    topology, extents = Topology(1, EXTENTS["ranks"]), {"tokens": NUM_TOKENS, "n": EXTENTS["n"]}
    inputs = {name: torch.from_numpy(each) for name, each in INPUTS.items()}
    for checked, key, wanted in cases(30, 4):
        spec = describe(checked)
        given = {each.name: inputs[each.name] for each in spec.declared.inputs}
        named = {name: extents[name] for name in spec.declared.extents}
        ranks = [RankData({}, given, named) for _ in range(topology.num_ranks)]
        module = compile_to_ir(checked, after="coalesce-segments").module
        points = points_of(module, spec, topology, ranks)[EXTENTS["rank"]]
        assert points.columns["key"].tolist() == wanted, key
        by_text = testing.points_of(spec, topology, ranks)[EXTENTS["rank"]]
        for name, column in by_text.columns.items():
            np.testing.assert_array_equal(points.columns[name], column, err_msg=f"{key} {name}")
        arrived = {}
        deliveries, layouts = reference.route(spec, ranks)
        for each in deliveries:
            if each.origin.rank == EXTENTS["rank"]:
                layout = layouts[each.rank]
                at = bisect_right(layout.key_offsets, each.slot) - 1
                arrived[each.origin.point] = layout.keys[at]
        assert arrived == {d: each for d, each in enumerate(wanted) if 0 <= each < 8}, key


def test_cuda(tmp_path: Path) -> None:
    compiler = cxx()
    # Extents that keys have times `rank` are compared by ranks: not by these kernels.
    found = [
        (compile_to_ir(each, after="fuse-node").module, key, wanted)
        for each, key, wanted in cases(160, 3)
        if find_fault(each, CUDA) is None
    ]
    assert len(found) > 80
    shuffles = [node_shuffle(module) for module, *_ in found]
    header = (INCLUDE / "base.cuh").read_text(encoding="utf-8")
    divisions = re.findall(r"^.*constexpr i64 floor_.*$", header, re.MULTILINE)
    relations = [
        print_relation(module, shuffle)
        for (module, *_), shuffle in zip(found, shuffles, strict=True)
    ]
    functions = [
        f"namespace n{i} {{ {relation} }}\n"
        f'extern "C" i64 key{i}(const Call& call, i64 point) '
        f"{{ return n{i}::Relation{{call}}.key(point); }}"
        for i, relation in enumerate(relations)
    ]
    source, library = tmp_path / "relation.cc", tmp_path / "relation.so"
    source.write_text("\n".join([MACROS, CALL, *divisions, *functions]), encoding="utf-8")
    subprocess.run([compiler, "-O1", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    compiled = ctypes.CDLL(str(library))
    for i, (shuffle, (_, key, wanted)) in enumerate(zip(shuffles, found, strict=True)):
        call = (ctypes.c_int64 * 17)()
        call[: len(shuffle.inputs)] = [INPUTS[each.name].ctypes.data for each in shuffle.inputs]
        call[8 : 8 + len(shuffle.extents)] = [EXTENTS[name] for name in shuffle.extents]
        call[16] = EXTENTS["rank"] | EXTENTS["ranks"] << 32
        function = compiled[f"key{i}"]
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
        assert [function(call, point) for point in range(len(wanted))] == wanted, key
