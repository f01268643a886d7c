"""JSON -> frozen dataclasses, following their annotations; nothing missing, nothing extra."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fuscoc_runtime import scalar

T = TypeVar("T")
Decoder = Callable[[Any], Any]
"""Makes of parsed JSON what it is read as, or raises ``_Mismatch``."""


class DecodeError(ValueError):
    """The JSON does not follow the schema; the message begins with the path to the value."""


def decode(cls: type[T], value: Any) -> T:
    """Read ``value``, parsed JSON, as the dataclass ``cls``."""
    kind: Any = cls
    try:
        decoded: T = _decoder(kind)(value)
    except _Mismatch as found:
        raise DecodeError(f"{found.path.lstrip('.') or 'top level'}: {found.problem}") from found
    return decoded


class _Mismatch(Exception):
    """A value that is something else; the path to it is put together on the way out."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem, self.path = problem, ""


@cache
def _decoder(kind: Any) -> Decoder:
    """What reads values of a kind: its annotation is taken apart once."""
    origin, args = get_origin(kind), get_args(kind)
    if kind == scalar.Scalar:
        return _scalar
    if dataclasses.is_dataclass(kind):
        return partial(_dataclass, kind)
    if origin in (Union, types.UnionType):
        return partial(_one_of, [(_test(each), _decoder(each)) for each in args])
    if origin is Literal:
        return partial(_literal, args)
    if origin is tuple:
        return partial(_items, _decoder(args[0]))
    if origin is Mapping:
        return partial(_values, _decoder(args[1]))
    return partial(_expect, kind)


def _scalar(value: Any) -> Any:
    try:
        return scalar.parse(value)
    except ValueError as error:
        raise _Mismatch(str(error)) from error


def _literal(allowed: tuple[Any, ...], value: Any) -> Any:
    if value not in allowed:
        raise _Mismatch(f"{value!r} is none of {', '.join(map(repr, allowed))}")
    return value


def _items(decode_item: Decoder, value: Any) -> tuple[Any, ...]:
    _expect(list, value)
    return tuple(_inside("[{}]", at, decode_item, item) for at, item in enumerate(value))


def _values(decode_value: Decoder, value: Any) -> dict[str, Any]:
    _expect(dict, value)
    return {key: _inside(".{}", key, decode_value, item) for key, item in value.items()}


def _inside(step: str, key: str | int, decode_value: Decoder, value: Any) -> Any:
    try:
        return decode_value(value)
    except _Mismatch as found:
        found.path = step.format(key) + found.path
        raise


def _dataclass(cls: Any, value: Any) -> Any:
    _expect(dict, value)
    decoders, required = _fields(cls)
    unknown = sorted(value.keys() - decoders.keys())
    if unknown:
        raise _Mismatch(f"unknown key `{unknown[0]}`")
    missing = sorted(required - value.keys())
    if missing:
        raise _Mismatch(f"missing key `{missing[0]}`")
    decoded = {key: _inside(".{}", key, decoders[key], item) for key, item in value.items()}
    try:
        return cls(**decoded)
    except ValueError as error:
        raise _Mismatch(str(error)) from error


@cache
def _fields(cls: Any) -> tuple[dict[str, Decoder], set[str]]:
    """What reads the fields of a dataclass, and those that have to be there."""
    required = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    return {name: _decoder(hint) for name, hint in _hints(cls).items()}, required


def _one_of(alternatives: list[tuple[Callable[[Any], bool], Decoder]], value: Any) -> Any:
    for is_meant, decode_value in alternatives:
        if is_meant(value):
            return decode_value(value)
    raise _Mismatch(f"unexpected {_shorten(value)}")


def _test(kind: Any) -> Callable[[Any], bool]:
    """Whether a value is meant to be this one of a union: by its type, or by the one possible value
    of every single-valued literal of a dataclass."""
    if dataclasses.is_dataclass(kind):
        tags = _tags(kind).items()
        return lambda value: (
            isinstance(value, dict) and all(value.get(name) == tag for name, tag in tags)
        )
    expected = {Literal: str, tuple: list}.get(get_origin(kind), kind)
    return lambda value: type(value) is expected


def _tags(cls: Any) -> dict[str, Any]:
    choices = {name: get_args(h) for name, h in _hints(cls).items() if get_origin(h) is Literal}
    return {name: args[0] for name, args in choices.items() if len(args) == 1}


def _expect(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise _Mismatch(f"expected {kind.__name__}, found {_shorten(value)}")
    return value


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)
