"""Scalars as a manifest spells them (``docs/abi.md``)."""

from __future__ import annotations

from typing import Any

from fuscoc.lang.checked import BinaryOp, Const, ExtentRef, IndexRef, Load, Scalar


def scalar_json(scalar: Scalar) -> Any:
    """A scalar as JSON: an integer, or an object that says what to look up or compute."""
    match scalar:
        case Const(value):
            return value
        case IndexRef(name):
            return {"index": name}
        case ExtentRef(name):
            return {"extent": name}
        case Load(name, at):
            return {"load": name, "at": [scalar_json(each) for each in at]}
        case BinaryOp(op, lhs, rhs):
            return {"op": op, "args": [scalar_json(lhs), scalar_json(rhs)]}
