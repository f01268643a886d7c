"""Frozen dataclasses -> JSON values, the inverse of ``decode``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fuscoc_runtime.scalar import BinaryOp, Extent, Index, Inside, Load


def encode(value: Any) -> Any:
    """``value``, a dataclass of the schema or a part of one, as JSON can hold it."""
    match value:
        case Index(name):
            return {"index": name}
        case Extent(name):
            return {"extent": name}
        case Load(name, at):
            return {"load": name, "at": encode(at)}
        case BinaryOp(op, lhs, rhs):
            return {"op": op, "args": [encode(lhs), encode(rhs)]}
        case Inside(inner, limit):
            return {"inside": encode(inner), "limit": encode(limit)}
        case Mapping():
            return {key: encode(item) for key, item in value.items()}
        case tuple():
            return [encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {each.name: encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value
