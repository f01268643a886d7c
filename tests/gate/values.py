"""Other legal values of an attribute, and illegal ones, from the declaration of its kind.

A value has a *path*: the names of the attribute and of the keys of the records inside it, such as
``("bind", "buffer")``. Elements of an array have the path of the array. Whether something optional
is there at all is a question of its own, with a path of its own: ``("bind", "dtype?")``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Any

from fuscoc.dialect.attrs import (
    SPEC,
    Array,
    Attr,
    Flag,
    Integer,
    Name,
    Real,
    Record,
    Ref,
    Text,
    VerifyError,
    resolve,
)
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.dtypes import DType, TensorType
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.path import Path
from fuscoc.dialect.runs import UNITS, Stride, Unit

Names = tuple[str, ...]
Value = tuple[Names, Any]
"""A path below an attribute, and what the whole attribute is once the value there is another."""

FRESH = "fresh"


def is_legal(kind: Attr, op: Any, attr: Any) -> bool:
    """Whether the attribute alone is legal; operations have further rules."""
    try:
        kind.check(op, attr)
    except VerifyError:
        return False
    return True


def others(
    kind: Attr, op: Any, attr: Any, leaves_out: Callable[[Names], bool] = lambda _: False
) -> Iterator[Value]:
    """Every other legal value of an attribute of ``op``, each once; none of paths left out."""
    seen = {str(attr)}
    for names, value in _others(kind, op, attr):
        if leaves_out(names) or str(value) in seen:
            continue
        if is_legal(kind, op, value):
            seen.add(str(value))
            yield names, value


@singledispatch
def _others(kind: Attr, op: Any, attr: Any) -> Iterable[Value]:
    raise TypeError(f"no values of a {type(kind).__name__}")


@_others.register
def _(kind: Text, op: Any, attr: Any) -> Iterable[Value]:
    texts = kind.choices or (FRESH,)
    return [((), ir.StringAttr.get(text)) for text in texts]


@_others.register
def _(kind: Name, op: Any, attr: Any) -> Iterable[Value]:
    return [((), ir.StringAttr.get(f"{SPEC}{FRESH}"))]


@_others.register
def _(kind: Integer, op: Any, attr: Any) -> Iterable[Value]:
    value = kind.decode(attr)
    return [((), kind.encode(other)) for other in (value + 1, 2 * value, value - 1, value // 2)]


@_others.register
def _(kind: Real, op: Any, attr: Any) -> Iterable[Value]:
    value = kind.decode(attr)
    return [((), kind.encode(other)) for other in (value + 1, 2 * value, -value)]


@_others.register
def _(kind: Flag, op: Any, attr: Any) -> Iterable[Value]:
    return [((), kind.encode(other)) for other in (0, 1)]


@_others.register
def _(kind: Unit, op: Any, attr: Any) -> Iterable[Value]:
    return [((), kind.encode(other)) for other in UNITS]


@_others.register
def _(kind: Stride, op: Any, attr: Any) -> Iterable[Value]:
    value = kind.decode(attr)
    more = [value + 1] if isinstance(value, int) else [1]
    return [((), kind.encode(other)) for other in (*more, "src_stride0", "src_stride1")]


@_others.register
def _(kind: DType, op: Any, attr: Any) -> Iterable[Value]:
    return [((), kind.encode(other)) for other in sorted(kind.choices)]


@_others.register
def _(kind: TensorType, op: Any, attr: Any) -> Iterable[Value]:
    dtype, shape = kind.decode(attr)
    longer = [3 if size is None else size + 1 for size in shape]
    shapes = [(*shape, 2), shape[:-1]]
    shapes += [(*shape[:at], more, *shape[at + 1 :]) for at, more in enumerate(longer)]
    shapes += [(*shape[:at], None, *shape[at + 1 :]) for at in range(len(shape))]
    types = [(dtype, other) for other in shapes]
    types += [(other, shape) for other in ("f32", "i32", "u8")]
    return [((), kind.encode(other)) for other in types]


@_others.register
def _(kind: Array, op: Any, attr: Any) -> Iterator[Value]:
    items = list(attr)
    for at, item in enumerate(items):
        before, behind = items[:at], items[at + 1 :]
        yield (), ir.ArrayAttr.get([*before, *behind])
        yield (), ir.ArrayAttr.get([*items, item])
        yield (), ir.ArrayAttr.get([item, *before, *behind])
        for names, other in _others(kind.element, op, item):
            yield names, ir.ArrayAttr.get([*before, other, *behind])
    for _, more in samples(kind.element, op):
        yield (), ir.ArrayAttr.get([*items, more])


@_others.register
def _(kind: Record, op: Any, attr: Any) -> Iterator[Value]:
    given = {named.name: named.attr for named in attr}
    yield from (
        ((name, *names), ir.DictAttr.get({key: each for key, each in changed.items() if each}))
        for name, names, changed in _named(kind.fields, op, given)
    )


def _named(
    kinds: Mapping[str, Attr], op: Any, given: Mapping[str, Any]
) -> Iterator[tuple[str, Names, dict[str, Any]]]:
    for name, kind in kinds.items():
        if name in given:
            for names, other in _others(kind, op, given[name]):
                yield name, names, {**given, name: other}
            if kind.optional:
                yield f"{name}?", (), {**given, name: None}
        else:
            for _, more in samples(kind, op):
                yield f"{name}?", (), {**given, name: more}


@_others.register
def _(kind: Ref, op: Any, attr: Any) -> Iterable[Value]:
    return samples(kind, op)


def samples(kind: Attr, op: Any) -> Iterator[Value]:
    """Some legal values for where there is none: every choice, if there are few."""
    for value in _samples(kind, op):
        if is_legal(kind, op, value):
            yield (), value


def _samples(kind: Attr, op: Any) -> Iterable[Any]:
    match kind:
        case Ref():
            return _symbols(kind, op)
        case Array():
            return [ir.ArrayAttr.get([item]) for item in _samples(kind.element, op)]
        case Record():
            first = {name: next(iter(_samples(each, op))) for name, each in kind.fields.items()}
            return [ir.DictAttr.get(first)]
        case TensorType():
            return [kind.encode(("f32", (2,)))]
        case DType():
            return [kind.encode(name) for name in sorted(kind.choices)]
        case Integer():
            return [kind.encode(value) for value in range(17)]
        case Real():
            return [kind.encode(0.5)]
        case Stride():
            return [kind.encode(1)]
        case Text():
            return [ir.StringAttr.get(text) for text in kind.choices or (FRESH,)]
    raise TypeError(f"no values of a {type(kind).__name__}")


def _symbols(kind: Ref, op: Any) -> Iterator[Any]:
    """References to every operation of the right kinds, as ``op`` would spell them."""
    module = op.operation
    while module.parent is not None:
        module = module.parent
    for owner in (module, *ops_of(module, Path)):
        for each in ops_of(owner, ir.OpView):
            if each.operation.name.removeprefix("fsc.") not in kind.kinds:
                continue
            name = ir.FlatSymbolRefAttr.get(each.operation.attributes["sym_name"].value)
            found = resolve(op, name)
            if found is not None and found == each.operation:
                yield name


def paths(kind: Attr, attr: Any) -> set[Names]:
    """The paths of the values inside an attribute, its own among them."""
    match kind:
        case Array():
            return {()}.union(*(paths(kind.element, item) for item in attr))
        case Record():
            below = {
                (named.name, *names)
                for named in attr
                for names in paths(kind.fields[named.name], named.attr)
            }
            return {(), *below}
    return {()}


def declared(names: Names, kind: Attr) -> Iterator[tuple[Names, Attr]]:
    """The kind at the path ``names`` and those inside it, each with its path."""
    yield names, kind
    match kind:
        case Array():
            yield from declared(names, kind.element)
        case Record():
            for key, each in kind.fields.items():
                yield from declared((*names, key), each)


def illegal(kind: Attr, op: Any, attr: Any) -> Iterator[Value]:
    """Values that must never verify, in the attribute or anywhere inside it."""
    yield (), ir.UnitAttr.get()
    yield from _illegal(kind, op, attr)


def _illegal(kind: Attr, op: Any, attr: Any) -> Iterator[Value]:
    match kind:
        case Array():
            yield (), ir.ArrayAttr.get([])
            items = list(attr)
            if kind.distinct:
                yield (), ir.ArrayAttr.get([*items, items[0]])
            for at, item in enumerate(items):
                for names, other in illegal(kind.element, op, item):
                    yield names, ir.ArrayAttr.get([*items[:at], other, *items[at + 1 :]])
        case Record():
            yield from _illegal_record(kind, op, {named.name: named.attr for named in attr})
        case Text():
            yield (), ir.StringAttr.get("")
            if kind.choices:
                yield (), ir.StringAttr.get("nonsense")
        case Integer():
            i64 = ir.IntegerType.get_signless(64)
            yield (), ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
            if kind.minimum is not None:
                yield (), ir.IntegerAttr.get(i64, kind.minimum - 1)
            if isinstance(kind, Flag):
                yield (), ir.IntegerAttr.get(i64, 2)
        case Real():
            yield (), ir.FloatAttr.get(ir.F64Type.get(), 1.0, loc=ir.Location.unknown())
            yield (), kind.encode(float("inf"))
        case DType():
            yield (), ir.TypeAttr.get(ir.IndexType.get())
        case Ref():
            yield (), ir.FlatSymbolRefAttr.get("nowhere")


def _illegal_record(kind: Record, op: Any, given: Mapping[str, Any]) -> Iterator[Value]:
    yield (), ir.DictAttr.get({**given, "nonsense": ir.UnitAttr.get()})
    for name, attr in given.items():
        if not kind.fields[name].optional:
            yield (), ir.DictAttr.get({key: each for key, each in given.items() if key != name})
        for names, other in illegal(kind.fields[name], op, attr):
            yield (name, *names), ir.DictAttr.get({**given, name: other})
