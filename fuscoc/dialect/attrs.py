"""Kinds of attributes: how one is written from Python, read back and checked.

A verifier's message is put together from outside in: the operation, the attribute, what is wrong.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from types import MappingProxyType
from typing import Any

from fuscoc.dialect.mlir import ir

SPEC = "spec."


class VerifyError(Exception):
    """What is wrong with an operation; its verifier adds the operation's name and location."""


class Attr:
    """How one attribute is written, read and checked.

    ``stands_alone``: whether ``check`` looks at nothing of the operation but the attribute.
    """

    stands_alone = True

    def __init__(self, *, optional=False):
        self.optional = optional

    def encode(self, value):
        return value

    def decode(self, attr):
        return attr

    def check(self, op, attr):
        """Raise VerifyError unless ``attr`` is a legal value on ``op``."""


class Text(Attr):
    """A string, one of ``choices`` if any are given."""

    def __init__(self, *choices, optional=False):
        super().__init__(optional=optional)
        self.choices = choices

    def encode(self, value):
        return ir.StringAttr.get(value)

    def decode(self, attr):
        return ir.StringAttr(attr).value

    def check(self, op, attr):
        if not isinstance(attr, ir.StringAttr):
            raise VerifyError(f"must be a string, not {attr}")
        if self.choices and attr.value not in self.choices:
            raise VerifyError(f"must be one of {', '.join(self.choices)}, not '{attr.value}'")
        if not attr.value:
            raise VerifyError("must not be empty")


class Name(Text):
    """The symbol of something that the spec defines, built and read without its ``spec.``.

    The prefix keeps the user's names apart from those of fuscoc: a shuffle ``x`` may have an extent
    ``x``, and an input ``x_dispatch``.
    """

    def encode(self, value):
        return super().encode(f"{SPEC}{value}")

    def decode(self, attr):
        return super().decode(attr).removeprefix(SPEC)

    def check(self, op, attr):
        super().check(op, attr)
        if not attr.value.startswith(SPEC):
            raise VerifyError(f"must begin with '{SPEC}', not {attr}")


class Integer(Attr):
    """An i64 of at least ``minimum``."""

    def __init__(self, minimum=None, *, optional=False):
        super().__init__(optional=optional)
        self.minimum = minimum

    def encode(self, value):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)

    def decode(self, attr):
        return ir.IntegerAttr(attr).value

    def check(self, op, attr):
        if not isinstance(attr, ir.IntegerAttr) or str(attr.type) != "i64":
            raise VerifyError(f"must be an i64, not {attr}")
        if self.minimum is not None and attr.value < self.minimum:
            raise VerifyError(f"must be at least {self.minimum}, not {attr.value}")


class Flag(Integer):
    """0 or 1 (the bindings mistake a false BoolAttr for a missing one)."""

    def decode(self, attr):
        return bool(super().decode(attr))

    def check(self, op, attr):
        super().check(op, attr)
        if attr.value not in (0, 1):
            raise VerifyError(f"must be 0 or 1, not {attr.value}")


class Real(Attr):
    """A finite number of f32."""

    def encode(self, value):
        return ir.FloatAttr.get(ir.F32Type.get(), value, loc=ir.Location.unknown())

    def decode(self, attr):
        return ir.FloatAttr(attr).value

    def check(self, op, attr):
        if not isinstance(attr, ir.FloatAttr) or str(attr.type) != "f32":
            raise VerifyError(f"must be an f32, not {attr}")
        if not isfinite(attr.value):
            raise VerifyError(f"must be finite, not {attr}")


class Array(Attr):
    """A non-empty array; an absent optional one reads as ``()``."""

    def __init__(self, element, *, optional=False, distinct=False):
        super().__init__(optional=optional)
        self.element = element
        self.distinct = distinct
        self.stands_alone = element.stands_alone

    def encode(self, value):
        return ir.ArrayAttr.get([self.element.encode(item) for item in value])

    def decode(self, attr):
        return tuple(self.element.decode(item) for item in attr)

    def check(self, op, attr):
        if not isinstance(attr, ir.ArrayAttr):
            raise VerifyError(f"must be an array, not {attr}")
        if not len(attr):
            raise VerifyError("must not be empty (leave it out)")
        for i, item in enumerate(attr):
            try:
                self.element.check(op, item)
            except VerifyError as error:
                raise VerifyError(f"element {i} {error}") from None
        if self.distinct and len(set(map(str, attr))) != len(attr):
            raise VerifyError("must not repeat an element")


class Ref(Attr):
    """A symbol that must name an operation of one of ``kinds`` (without the ``fsc.`` prefix)."""

    stands_alone = False

    def __init__(self, *kinds, optional=False):
        super().__init__(optional=optional)
        self.kinds = kinds
        self.prefix = SPEC if kinds[0].startswith("def_") else ""

    def encode(self, value):
        return ir.FlatSymbolRefAttr.get(f"{self.prefix}{value}")

    def decode(self, attr):
        return ir.FlatSymbolRefAttr(attr).value.removeprefix(self.prefix)

    def check(self, op, attr):
        if not isinstance(attr, ir.FlatSymbolRefAttr):
            raise VerifyError(f"must be a symbol reference, not {attr}")
        found = resolve(op, attr)
        if found is None:
            raise VerifyError(f"names {attr}, which is not defined")
        if found.name.removeprefix("fsc.") not in self.kinds:
            wanted = " or ".join(f"fsc.{kind}" for kind in self.kinds)
            raise VerifyError(f"names {attr}, a {found.name} where {wanted} is needed")


def resolve(op, ref):
    """The operation that a symbol on ``op`` names, or None: innermost region around it first."""
    name = ir.FlatSymbolRefAttr(ref).value
    scope, found = op.operation.parent, None
    while scope is not None and found is None:
        found = defined(scope, name)
        scope = scope.operation.parent
    return found


def defined(scope, name):
    """The operation that the regions of ``scope`` define under a name, or None."""
    symbols = _memory.symbols
    if symbols is None:
        return next((op for symbol, op in _definitions(scope) if symbol == name), None)
    if scope not in symbols:
        symbols[scope] = table = {}
        for symbol, op in _definitions(scope):
            table.setdefault(symbol, op)
    return symbols[scope].get(name)


def _definitions(scope):
    for op in standing_in(scope):
        symbol = op.attributes.get("sym_name", None)
        if isinstance(symbol, ir.StringAttr):
            yield symbol.value, op.operation


def standing_in(scope):
    """The operations directly inside the regions of ``scope``, in order."""
    known = _memory.inside
    if known is not None and scope in known:
        return known[scope]
    found = [op for region in scope.operation.regions for block in region for op in block]
    if known is not None:
        known[scope] = found
    return found


class _Memory(threading.local):
    """What a thread knows already; others compile modules of their own meanwhile."""

    def __init__(self):
        # By scope, while a module that nobody changes is verified.
        self.symbols, self.inside = None, None
        self.values, self.checked = {}, set()  # what attributes read as; those found legal
        self.remembers = False


_memory = _Memory()


@contextmanager
def attributes_remembered() -> Iterator[None]:
    """Within it an attribute is decoded, and checked, once for all operations and passes that ask.

    Attributes never change, and what is remembered keeps their context alive. For this thread.
    """
    _memory.remembers = True
    try:
        yield
    finally:
        _memory.remembers = False
        _memory.values.clear()
        _memory.checked.clear()


@contextmanager
def unchanged() -> Iterator[None]:
    """Within it no module changes: what stands in a scope is looked up once. For this thread."""
    _memory.symbols, _memory.inside = {}, {}
    try:
        yield
    finally:
        _memory.symbols = _memory.inside = None


def verify(module: Any) -> None:
    """Verify a module; raises ``ir.MLIRError``."""
    with unchanged():
        module.operation.verify()


class Record(Attr):
    """A dictionary with exactly the keys of ``fields``; absent optional ones read as theirs do."""

    def __init__(self, fields, *, optional=False):
        super().__init__(optional=optional)
        self.fields = fields
        self.stands_alone = all(spec.stands_alone for spec in fields.values())

    def encode(self, value):
        return ir.DictAttr.get(encode_named(value, self.fields))

    def decode(self, attr):
        given = {named.name: named.attr for named in attr}
        for name, spec in self.fields.items():
            if name not in given and not spec.optional:
                raise ValueError(f"no key '{name}'")
        values = {name: decode_named(given.get(name), spec) for name, spec in self.fields.items()}
        return MappingProxyType(values)

    def check(self, op, attr):
        if not isinstance(attr, ir.DictAttr):
            raise VerifyError(f"must be a dictionary, not {attr}")
        check_named(op, {named.name: named.attr for named in attr}, self.fields, "key")


def encode_named(values, declared):
    """Attributes for Python values; optional ones may be left out, None or an empty tuple."""
    unknown = values.keys() - declared.keys()
    if unknown:
        raise TypeError(f"unknown attributes: {', '.join(sorted(unknown))}")
    return {
        name: declared[name].encode(value)
        for name, value in values.items()
        if not declared[name].optional or (value is not None and value != ())
    }


def decode_named(attr, spec):
    """The Python value of an attribute; if it is absent None, or () for an array."""
    if attr is None:
        return () if isinstance(spec, Array) else None
    if not _memory.remembers:
        return spec.decode(attr)
    key = spec, attr
    if key not in _memory.values:
        _memory.values[key] = spec.decode(attr)
    return _memory.values[key]


def check_named(op, given, declared, noun):
    """Check named attributes against their declarations; ``noun`` is what a message calls them."""
    for name, spec in declared.items():
        if name not in given and not spec.optional:
            raise VerifyError(f"needs the {noun} '{name}'")
    for name, attr in given.items():
        if name not in declared:
            raise VerifyError(f"has an unknown {noun} '{name}'")
        spec = declared[name]
        if (spec, attr) in _memory.checked:
            continue
        try:
            spec.check(op, attr)
        except VerifyError as error:
            raise VerifyError(f"{noun} '{name}' {error}") from None
        if _memory.remembers and spec.stands_alone:
            _memory.checked.add((spec, attr))


def attributes(**specs):
    """The attributes of an operation, by name (``ext`` would take an annotation for a field)."""
    return MappingProxyType(specs)
