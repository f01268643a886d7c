"""The functor ``Relation``: a shuffle's key, placement and source expressions as CUDA C++."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.language import DROPPED, OUT_OF_RANGE, RaggedLanguage
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


def print_relation(module: Any, shuffle: CudaShuffle) -> str:
    """The functor of a module, from fuse-node on; ``shuffle`` says in which order a call
    has inputs and extents."""
    with module.context:
        node, op, point = fused_relation(module)
        (count,) = ops_of(node, NodeCount)
        placement = count.follow("placement")
        table = placement.read("table")
        group = placement.read("group")
        number = f"key / {group}" if group else "key"
        places = {"block": f"key / {PER_RANK}", "cyclic": f"{number} % call.num_ranks"}
        place = CudaText(shuffle).lookup(table, "key") if table else places[placement.read("kind")]
        kind = "i64" if table else "int"  # an entry may be any number
        source = _source_place if shuffle.is_placed else _source_cell
        return "\n".join(
            [
                "struct Relation {",
                "  const Call& call;",
                f"  static constexpr int num_keys = {placement.read('num_keys')};",
                *_key(shuffle, op, point),
                f"  __device__ __forceinline__ {kind} place(int key) const {{",
                f"    return {kind}({place});",
                "  }",
                *source(shuffle, op, point),
                "};",
            ]
        )


def fused_relation(module: Any) -> tuple[Any, Any, Point]:
    """The ``fsc.node`` of a module, what evaluates the relation in it, and its points."""
    (node,) = ops_of(module, Node)
    op, _, point = regions_of(node, NodePoints)
    return node, op, point


def _key(shuffle: CudaShuffle, op: Any, point: Point) -> list[str]:
    """The key of a point. Where a place that it looks up does not exist, it is none."""
    text = CudaText(shuffle)
    region = _region(text, op, point_indices(shuffle, op, text))
    if shuffle.is_placed:  # its segment's place may be looked up, too
        for each in (point.src_offset, *point.src_strides):
            region.value(each)
    key, dropped = region.value(point.place), region.dropped(point, packed=True)
    if region.places:
        exist = text.fold("andi", list(region.places.values()))
        key = text.select(exist, key, text.constant(OUT_OF_RANGE))
    if dropped is not None:
        key = text.select(dropped, text.constant(DROPPED), key)
    return _function("i64 key(i64 point)", text, key, f"return {key};")


def _source_cell(shuffle: CudaShuffle, op: Any, point: Point) -> list[str]:
    """The first cell of a segment: those of all lie one behind the other."""
    text, count = CudaText(shuffle), op.read("num_source_dims")
    names, sizes = op.read("indices")[:count], Region(text, {})
    extents = sizes.extents(names[1:], divisors(op)[: count - 1])
    region = _region(text, op, sizes.row_major("source", names, extents))
    cell = region.value(point.src_offset)
    return _function("i64 source_cell(i64 source)", text, cell, f"return {cell};")


def _source_place(shuffle: CudaShuffle, op: Any, point: Point) -> list[str]:
    """The place of a segment, by the first of its points."""
    text = CudaText(shuffle)
    region = _region(text, op, point_indices(shuffle, op, text))
    words = [region.value(each) for each in (point.src_offset, *point.src_strides)]
    stores = [f"place[{number}] = {word};" for number, word in enumerate(words)]
    return _function("void source_place(i64 point, i64* place)", text, ", ".join(words), *stores)


def _region(text: CudaText, op: Any, indices: list[str]) -> Region[str]:
    return Region(text, dict(zip(op.relation.blocks[0].arguments, indices, strict=False)))


def _function(head: str, text: CudaText, result: str, *body: str) -> list[str]:
    """A member function, with the variables that ``result`` depends on."""
    return [
        f"  __device__ __forceinline__ {head} const {{",
        *text.declarations(result),
        *(f"    {line}" for line in body),
        "  }",
    ]


def point_indices(shuffle: CudaShuffle, op: Any, text: CudaText) -> list[str]:
    """The domain's indices at ``point``, which counts the domain row by row."""
    names = op.read("indices")
    if not shuffle.ragged:
        sizes = Region(text, {})
        return sizes.row_major("point", names, sizes.extents(names[1:], divisors(op)))
    with text.named(names[0]):
        outer = text.of_call("outer", "point")
    (argument,) = op.domain.blocks[0].arguments
    sizes = Region(text, {argument: outer})
    extents = sizes.extents(names[2:], divisors(op))
    with text.named("first"):
        first = text.of_call("points_before", outer)
    with text.named("inner"):
        inner = text.arithmetic("subi", "point", first)
    return [outer, *sizes.row_major(inner, names[1:], extents)]


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
                lines.insert(0, f"    {self.declared(name, value)}")
                used += f" {value}"
        return lines

    def declared(self, name: str, value: str) -> str:
        """A variable."""
        return f"const auto {name} = {value};"

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

    def bound(self, predicate: str, lhs: str, rhs: str) -> str:
        return self.made(f"{'min' if predicate == 'slt' else 'max'}({lhs}, {rhs})")

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
