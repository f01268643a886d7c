"""The syntax tree: what a ``.fsc`` file says, before any name is looked up.

Every node is frozen and carries the span of its text; spans are left out of comparisons, so two
trees are equal when they say the same. The last field of every node is its span.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from fuscoc.source import Span

# Deeper expressions are refused, so that no later stage needs to fear Python's recursion limit.
MAX_DEPTH = 64


class TooLargeError(Exception):
    """A number or an expression that no sensible spec contains."""

    def __init__(self, message: str, span: Span) -> None:
        self.span = span
        super().__init__(message)


@dataclass(frozen=True)
class Node:
    """A piece of the source text."""

    span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Ident(Node):
    """A name where it is declared or used."""

    name: str


@dataclass(frozen=True)
class Number(Node):
    """A whole number."""

    value: int


@dataclass(frozen=True)
class Decimal(Node):
    """``0.485``: a number that need not be whole, for what a cast computes."""

    value: Fraction


@dataclass(frozen=True)
class Values(Node):
    """``[0.485, 0.456, 0.406]``: numbers, one for each channel."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Name(Node):
    """A name used as a value: a constant, an index or a run-time extent."""

    name: str


@dataclass(frozen=True)
class Call(Node):
    """``f(a, b)``: a route, or an input given for each index, at some indices."""

    function: Ident
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Member(Node):
    """``where(n).offset``: one result of a route with several."""

    call: Call
    result: Ident


@dataclass(frozen=True)
class Binary(Node):
    """Arithmetic: of integers, but for what a cast computes."""

    op: Literal["+", "-", "*", "/", "%"]
    lhs: Expr
    rhs: Expr


Expr: TypeAlias = Number | Decimal | Values | Name | Call | Member | Binary


@dataclass(frozen=True)
class Range(Node):
    """``start .. stop``, half open."""

    start: Expr
    stop: Expr


@dataclass(frozen=True)
class Wildcard(Node):
    """``*``: the slot that the compiler assigns."""


Subscript: TypeAlias = Expr | Range | Wildcard


@dataclass(frozen=True)
class Access(Node):
    """``layout[subscript, …]``."""

    layout: Ident
    subscripts: tuple[Subscript, ...]


@dataclass(frozen=True)
class Type(Node):
    """An element type with its shape, or the name of a segment."""

    name: Ident
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class Binding(Node):
    """One ``name = value`` of a ``const``, or ``name = input tensor : type``."""

    ident: Ident
    value: Expr | InputRelation


@dataclass(frozen=True)
class Const(Node):
    """``const a = 1, b = 2``."""

    bindings: tuple[Binding, ...]


@dataclass(frozen=True)
class Index(Node):
    """``index t : tokens``."""

    ident: Ident
    extent: Expr


@dataclass(frozen=True)
class FieldDecl(Node):
    """One ``name : type`` of a segment."""

    ident: Ident
    type: Type


@dataclass(frozen=True)
class Segment(Node):
    """``segment token { x : bf16[hidden] }``."""

    ident: Ident
    fields: tuple[FieldDecl, ...]


@dataclass(frozen=True)
class Packed(Node):
    """``packed(s)``: the compiler assigns the slots along dimension ``s``."""

    dim: Ident


@dataclass(frozen=True)
class Dense(Node):
    """``dense(height(n), width(n))``: the extents of the trailing dimensions."""

    extents: tuple[Expr, ...]


@dataclass(frozen=True)
class Compact(Node):
    """``compact``."""


@dataclass(frozen=True)
class Distinct(Node):
    """``distinct``: a key holds a segment once."""


@dataclass(frozen=True)
class Align(Node):
    """``align 128``."""

    value: Expr


@dataclass(frozen=True)
class Capacity(Node):
    """``capacity exact`` (``limit`` is None) or ``capacity max N``."""

    limit: Expr | None


@dataclass(frozen=True)
class Layout(Node):
    """``layout by_token[t] of token``."""

    ident: Ident
    dims: tuple[Ident, ...]
    element: Type
    clauses: tuple[Packed | Dense | Compact | Align | Capacity, ...]


@dataclass(frozen=True)
class Order(Node):
    """``order(y, x, c)``: dimensions of a layout in the order that a segment has them in."""

    dims: tuple[Ident, ...]


@dataclass(frozen=True)
class View(Node):
    """``view patches[n, i] = pictures[n, i*p .. i*p+p]``."""

    ident: Ident
    dims: tuple[Ident, ...]
    access: Access
    order: Order | None = None


@dataclass(frozen=True)
class Place(Node):
    """``place e on rank by block``."""

    index: Ident
    kind: Literal["block", "cyclic", "table"]
    table: Ident | None


@dataclass(frozen=True)
class InputRelation(Node):
    """``input topk_idx : int64``."""

    input: Ident
    type: Type


@dataclass(frozen=True)
class ComputedRelation(Node):
    """A relation whose results are computed from the indices."""

    values: tuple[Expr, ...]


@dataclass(frozen=True)
class Route(Node):
    """``route r(t, k) -> e = input topk_idx : int64``."""

    ident: Ident
    params: tuple[Ident, ...]
    results: tuple[Ident, ...]
    relation: InputRelation | ComputedRelation


@dataclass(frozen=True)
class WeightDecl(Node):
    """``weight w(t, k) : f32 = input topk_weights``."""

    ident: Ident
    params: tuple[Ident, ...]
    type: Type
    input: Ident


@dataclass(frozen=True)
class On(Node):
    """``on where(n).rank``."""

    rank: Expr


@dataclass(frozen=True)
class Clip(Node):
    """``clip``: what has no place in the target is dropped."""


@dataclass(frozen=True)
class Partial(Node):
    """``partial``: slots of the target may have no segment."""


@dataclass(frozen=True)
class Dedup(Node):
    """``dedup(node, rank)``."""

    levels: tuple[Ident, ...]


@dataclass(frozen=True)
class Choice(Node):
    """``balance none``, ``schedule pairwise`` or ``backend triton``."""

    knob: Literal["balance", "schedule", "backend"]
    value: Ident


@dataclass(frozen=True)
class Slice(Node):
    """``slice 4 MiB``."""

    size: Expr
    unit: Ident


@dataclass(frozen=True)
class CastItem(Node):
    """``x``, ``x by scales`` or ``(x / 255 - mean) / std``."""

    value: Expr
    scale: Ident | None


@dataclass(frozen=True)
class Cast(Node):
    """``cast(x by scales)``."""

    items: tuple[CastItem, ...]


@dataclass(frozen=True)
class Into(Node):
    """``into cache[block(s)]``: the caller's memory that a row goes to from its slot, or
    ``into sums[node(s)] reduce sum``: that it is added to."""

    access: Access
    reduce: Reduce | None = None


@dataclass(frozen=True)
class Dispatch(Node):
    """``dispatch source -> target options``."""

    source: Access
    target: Access
    options: tuple[On | Clip | Partial | Dedup | Choice | Slice | Cast | Into, ...]


@dataclass(frozen=True)
class Indices(Node):
    """``(t, k)`` or ``[t, k]``."""

    listed: tuple[Subscript, ...]


@dataclass(frozen=True)
class Reduce(Node):
    """``reduce sum``, ``reduce sum(w)`` or ``reduce max``.

    ``indices`` are what is wrongly written behind the weight, as in ``sum(w(t, k))``.
    """

    op: Ident
    weight: Ident | None
    indices: Indices | None


@dataclass(frozen=True)
class Combine(Node):
    """``combine reverse`` (``path`` is None) or ``combine target -> source``."""

    path: tuple[Access, Access] | None
    reduce: Reduce | None


@dataclass(frozen=True)
class Reply(Node):
    """``reply sums[t] of pooled reduce sum(w)``."""

    ident: Ident
    indices: tuple[Ident, ...]
    segment: Ident
    reduce: Reduce | None = None


Declaration: TypeAlias = (
    Const
    | Index
    | Segment
    | Layout
    | View
    | Place
    | Route
    | WeightDecl
    | Dispatch
    | Combine
    | Reply
)


@dataclass(frozen=True)
class Broken(Node):
    """A part of a shuffle with a syntax error, which no declaration of the tree covers.

    ``declared`` are the keywords in it, each with the name that it seems to declare; ``words`` are
    all of its words. Unless it ``is_known``, it may declare anything else.
    """

    declared: tuple[tuple[str, Ident | None], ...]
    words: frozenset[str]
    is_known: bool


@dataclass(frozen=True)
class Shuffle(Node):
    """``shuffle name { … }``."""

    ident: Ident
    declarations: tuple[Declaration, ...]
    broken: tuple[Broken, ...] = ()


def depth(expr: Expr) -> int:
    """How deeply an expression nests; a number or a name is 1."""
    match expr:
        case Binary(lhs=lhs, rhs=rhs):
            return 1 + max(depth(lhs), depth(rhs))
        case Member(call=call):
            return depth(call)
        case Call(args=args):
            return 1 + max(map(depth, args))
        case Values(items=items):
            return 1 + max(map(depth, items))
        case _:
            return 1


def results(node: Node) -> Iterator[str]:
    """The results of routes that the expressions of a node name."""
    if isinstance(node, Member):
        yield node.result.name
    for each in fields(node):
        value = getattr(node, each.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Node):
                yield from results(part)


def dump(node: object, indent: int = 0) -> str:
    """The tree as indented text, one node a line, for people."""
    pad = "  " * indent
    if isinstance(node, Ident | Name | Number | Decimal):
        value = node.value if isinstance(node, Number | Decimal) else node.name
        return f"{pad}{type(node).__name__} {value}\n"
    if isinstance(node, tuple):
        return "".join(dump(item, indent) for item in node)
    if not is_dataclass(node):
        return f"{pad}{node}\n"
    children = [getattr(node, f.name) for f in fields(node) if f.name != "span"]
    return f"{pad}{type(node).__name__}\n" + "".join(
        dump(child, indent + 1) for child in children if child is not None
    )
