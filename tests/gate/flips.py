"""Flips: one attribute of one operation of a module gets another legal value.

A reference also flips to a *planted* copy of what it names, which differs in one attribute. The
module with the copy, but with the reference as it was, is what such a flip is compared with.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from fuscoc.dialect.attrs import SPEC, Ref, resolve
from fuscoc.dialect.base import Op
from fuscoc.dialect.mlir import ir
from tests.gate.values import Names, others, paths, samples

PLANTED = "planted"
Change = tuple[str, Any]
"""An attribute by name, and its new value; None takes it away."""


@dataclass(frozen=True)
class Flip:
    """``at`` counts the operations of the module; ``plant`` are changes of a planted copy."""

    at: int
    names: Names
    value: Any
    plant: tuple[Change, ...] | None = None

    @property
    def name(self) -> str:
        """The attribute."""
        return self.names[0].removesuffix("?")

    def planted(self, module: Any) -> Any:
        """A copy of the module in which nothing is flipped yet."""
        copy = module.operation.clone()
        if self.plant is not None:
            op = operations(copy)[self.at]
            target = resolve(op, op.attributes[self.name])
            beside = target.clone(ip=ir.InsertionPoint(target))
            name = f"{SPEC}{PLANTED}" if target.name.startswith("fsc.def_") else PLANTED
            for change in (("sym_name", ir.StringAttr.get(name)), *self.plant):
                _change(beside, change)
        return copy

    def flipped(self, module: Any) -> Any:
        """A copy of the module with the flip."""
        copy = self.planted(module)
        _change(_find(copy, self.at, self.plant is not None), (self.name, self.value))
        return copy


def operations(module: Any) -> list[Any]:
    """All operations of the dialect, those in regions behind the one that holds them."""
    found: list[Any] = []
    for region in module.operation.regions:
        for block in region:
            for op in block:
                if isinstance(op, Op):
                    found.append(op)
                found += operations(op)
    return found


def present(op: Any) -> set[Names]:
    """The paths of all values that the operation has."""
    return {
        (name, *names)
        for name, kind in op.attrs.items()
        if name in op.attributes
        for names in paths(kind, op.attributes[name])
    }


def flips(at: int, op: Any, but: Container[Names] = ()) -> Iterator[Flip]:
    """Every flip of an operation; references to planted copies come last.

    There are none of paths in ``but``, to which some may be added meanwhile.
    """
    for name, kind in op.attrs.items():
        if name not in op.attributes:
            for _, value in samples(kind, op) if (f"{name}?",) not in but else ():
                yield Flip(at, (f"{name}?",), value)
            continue
        if kind.optional and (f"{name}?",) not in but:
            yield Flip(at, (f"{name}?",), None)
        for names, value in others(
            kind, op, op.attributes[name], lambda names, name=name: (name, *names) in but
        ):
            yield Flip(at, (name, *names), value)
    for name, kind in op.attrs.items():
        if isinstance(kind, Ref) and name in op.attributes and (name,) not in but:
            yield from _to_planted(at, op, name)


def _to_planted(at: int, op: Any, name: str) -> Iterator[Flip]:
    target = resolve(op, op.attributes[name]).opview
    old = ir.FlatSymbolRefAttr(op.attributes[name]).value
    value = ir.FlatSymbolRefAttr.get(f"{SPEC}{PLANTED}" if old.startswith(SPEC) else PLANTED)
    yield Flip(at, (name,), value, ())
    for key, kind in target.attrs.items():
        if key == "sym_name":
            continue
        if key not in target.attributes:
            found = samples(kind, target)
        else:
            found = others(kind, target, target.attributes[key])
            if kind.optional:
                yield Flip(at, (name,), value, ((key, None),))
        for _, other in found:
            yield Flip(at, (name,), value, ((key, other),))


def _find(module: Any, at: int, has_plant: bool) -> Any:
    """The operation that was number ``at`` before anything was planted."""
    ops = operations(module)
    if not has_plant:
        return ops[at]
    planted = next(op for op in ops if _is_planted(op))
    inside = [planted, *operations(planted)]
    return [op for op in ops if op not in inside][at]


def _is_planted(op: Any) -> bool:
    name = op.attributes.get("sym_name", None)
    return name is not None and name.value.removeprefix(SPEC) == PLANTED


def _change(op: Any, change: Change) -> None:
    name, value = change
    if value is None:
        del op.attributes[name]
    else:
        op.attributes[name] = value
