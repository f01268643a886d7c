"""JSON -> frozen dataclasses, following their annotations; nothing missing, nothing extra."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fuscoc_runtime import scalar

T = TypeVar("T")


class DecodeError(ValueError):
    """The JSON does not follow the schema; the message begins with the path to the value."""


def decode(cls: type[T], value: Any) -> T:
    """Read ``value``, parsed JSON, as the dataclass ``cls``."""
    decoded: T = _decode(cls, value, "")
    return decoded


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind == scalar.Scalar:
        try:
            return scalar.parse(value)
        except ValueError as error:
            raise _mismatch(path, str(error)) from error
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    if origin in (Union, types.UnionType):
        return _decode(_choose(args, value, path), value, path)
    if origin is Literal:
        if value not in args:
            raise _mismatch(path, f"{value!r} is none of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        items = _expect(list, value, path)
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if origin is Mapping:
        items = _expect(dict, value, path)
        return {key: _decode(args[1], item, f"{path}.{key}") for key, item in items.items()}
    return _expect(kind, value, path)


def _decode_dataclass(cls: Any, value: Any, path: str) -> Any:
    _expect(dict, value, path)
    hints = _hints(cls)
    unknown = sorted(value.keys() - hints.keys())
    if unknown:
        raise _mismatch(path, f"unknown key `{unknown[0]}`")
    required = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - value.keys())
    if missing:
        raise _mismatch(path, f"missing key `{missing[0]}`")
    decoded = {key: _decode(hints[key], item, f"{path}.{key}") for key, item in value.items()}
    try:
        return cls(**decoded)
    except ValueError as error:
        raise _mismatch(path, str(error)) from error


def _choose(alternatives: tuple[Any, ...], value: Any, path: str) -> Any:
    """The alternative of a union that ``value`` is: by type, or by a dataclass's literal tags."""
    for kind in alternatives:
        if get_origin(kind) is Literal:
            chosen = isinstance(value, str)
        elif get_origin(kind) is tuple:
            chosen = isinstance(value, list)
        elif dataclasses.is_dataclass(kind):
            chosen = _has_tags(kind, value)
        else:
            chosen = type(value) is kind
        if chosen:
            return kind
    raise _mismatch(path, f"unexpected {_shorten(value)}")


def _has_tags(cls: Any, value: Any) -> bool:
    """Whether ``value`` has the one possible value of every single-valued literal of ``cls``."""
    choices = {name: get_args(h) for name, h in _hints(cls).items() if get_origin(h) is Literal}
    tags = {name: args[0] for name, args in choices.items() if len(args) == 1}
    return isinstance(value, dict) and all(value.get(name) == tag for name, tag in tags.items())


def _expect(kind: Any, value: Any, path: str) -> Any:
    if type(value) is not kind:
        raise _mismatch(path, f"expected {kind.__name__}, found {_shorten(value)}")
    return value


def _mismatch(path: str, problem: str) -> DecodeError:
    return DecodeError(f"{path.lstrip('.') or 'top level'}: {problem}")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)
