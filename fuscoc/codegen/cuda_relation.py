"""The functor ``Relation``: a shuffle's key, placement and source expressions as CUDA C++."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.language import DROPPED, RaggedLanguage
from fuscoc.codegen.regions import Region, divisors, regions_of
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.fused import NodeCount, NodePoints
from fuscoc.dialect.mlir import arith
from fuscoc.dialect.node import Node
from fuscoc.dialect.relation import Lookup, Point

BUILTIN_EXTENTS = {"rank": "i64(call.rank)", "ranks": "i64(call.num_ranks)"}
ARITHMETIC = {"addi": "+", "subi": "-", "muli": "*", "divsi": "/", "remsi": "%"}
CONDITIONS = {"andi": "&&", "ori": "||"}
COMPARISONS = {"eq": "==", "ne": "!=", "slt": "<", "sge": ">="}
SYMBOLS = ARITHMETIC | CONDITIONS | COMPARISONS
PER_RANK = "((num_keys + call.num_ranks - 1) / call.num_ranks)"

Result = Callable[[Region[str], Point], str]


def print_relation(module: Any, shuffle: CudaShuffle) -> str:
    """The functor of a module, from fuse-node on; ``shuffle`` says in which order a call
    has inputs and extents."""
    with module.context:
        node, op, point = fused_relation(module)
        (count,) = ops_of(node, NodeCount)
        placement = count.follow("placement")
        table = placement.read("table")
        places = {"block": f"key / {PER_RANK}", "cyclic": "key % call.num_ranks"}
        place = CudaText(shuffle).lookup(table, "key") if table else places[placement.read("kind")]
        num_indices, num_source_dims = len(op.read("indices")), op.read("num_source_dims")
        return "\n".join(
            [
                "struct Relation {",
                "  const Call& call;",
                f"  static constexpr int num_keys = {placement.read('num_keys')};",
                *_function("key", "point", _key, shuffle, op, point, num_indices),
                "  __device__ __forceinline__ int place(int key) const {",
                f"    return int({place});",
                "  }",
                *_function("source_cell", "source", _cell, shuffle, op, point, num_source_dims),
                "};",
            ]
        )


def fused_relation(module: Any) -> tuple[Any, Any, Point]:
    """The ``fsc.node`` of a module, what evaluates the relation in it, and its points."""
    (node,) = ops_of(module, Node)
    op, _, point = regions_of(node, NodePoints)
    return node, op, point


def _key(region: Region[str], point: Point) -> str:
    key, dropped = region.value(point.place), region.dropped(point, packed=True)
    language = region.language
    return key if dropped is None else language.select(dropped, language.constant(DROPPED), key)


def _cell(region: Region[str], point: Point) -> str:
    return region.value(point.src_offset)


def _function(
    name: str,
    linear: str,
    result: Result,
    shuffle: CudaShuffle,
    op: Any,
    point: Point,
    num_indices: int,
) -> list[str]:
    """A function of a place in the first ``num_indices`` indices, row by row."""
    text = CudaText(shuffle)
    names, sizes = op.read("indices")[:num_indices], Region(text, {})
    extents = sizes.extents(names[1:], divisors(op)[: num_indices - 1])
    indices = sizes.row_major(linear, names, extents)
    arguments = op.relation.blocks[0].arguments
    returned = result(Region(text, dict(zip(arguments, indices, strict=False))), point)
    return [
        f"  __device__ __forceinline__ i64 {name}(i64 {linear}) const {{",
        *text.declarations(returned),
        f"    return {returned};",
        "  }",
    ]


class CudaText(RaggedLanguage[str]):
    """C++ expressions of type i64, or bool; what has a name is a variable."""

    def __init__(self, shuffle: CudaShuffle) -> None:
        self.shuffle = shuffle
        self.variables: dict[str, str] = {}
        self.wish: str | None = None

    def declarations(self, result: str) -> list[str]:
        """Those of the variables that an expression, or several, depend on."""
        used, lines = result, list[str]()
        for name, value in reversed(self.variables.items()):
            if re.search(rf"\b{name}\b", used):
                lines.insert(0, f"    const auto {name} = {value};")
                used += f" {value}"
        return lines

    def constant(self, value: int) -> str:
        return f"i64({value})"

    def arithmetic(self, op: str, lhs: str, rhs: str) -> str:
        if op == "floordivsi":
            return self.made(f"floor_div({lhs}, {rhs})")
        return self.made(f"{lhs} {SYMBOLS[op]} {rhs}", binds=False)

    def compare(self, predicate: str, lhs: str, rhs: str) -> str:
        return self.arithmetic(predicate, lhs, rhs)

    def select(self, condition: str, then: str, otherwise: str) -> str:
        return self.made(f"{condition} ? {then} : {otherwise}", binds=False)

    def extent(self, name: str) -> str:
        if name not in self.shuffle.extents:
            return BUILTIN_EXTENTS[name]
        return f"call.extents[{self.shuffle.extents.index(name)}]"

    def lookup(self, name: str, offset: str) -> str:
        position, given = next(
            (i, each) for i, each in enumerate(self.shuffle.inputs) if each.name == name
        )
        kind = {"i32": "int", "i64": "i64"}[given.dtype]
        value = f"static_cast<const {kind}*>(call.inputs[{position}])[{offset}]"
        return self.made(value if kind == "i64" else f"i64({value})")

    def owner(self, key: str) -> str:
        return f"place({key})"

    def cell_base(self, outer: str) -> str:
        return self.of_call("cells_before", outer)

    def of_call(self, table: str, index: str) -> str:
        """An entry of a table of ``Call``."""
        return self.made(f"call.{table}[{index}]")

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        before, self.wish = self.wish, name
        yield
        self.wish = before

    def located(self, op: Any) -> AbstractContextManager[Any]:
        """What is used twice is computed once."""
        view = op.opview
        if isinstance(view, Lookup):
            return self.named(view.read("input"))
        shared = len(list(op.results[0].uses)) > 1 and not isinstance(view, arith.ConstantOp)
        return self.named("value") if shared else super().located(op)

    def made(self, text: str, *, binds: bool = True) -> str:
        """An expression, or the variable that holds it."""
        if self.wish is None:
            return text if binds else f"({text})"
        name, number = f"{self.wish}_", 0
        while name in self.variables:
            number += 1
            name = f"{self.wish}_{number}"
        self.variables[name], self.wish = text, None
        return name
