"""What a spec declares, as a manifest spells it (``docs/abi.md``): relation and shapes.

It comes from the checked shuffle, not from the lowered IR: a reference that interprets it shares
nothing with what is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuscoc.lang.agreed import agreed_extents
from fuscoc.lang.checked import (
    BinaryOp,
    CheckedShuffle,
    Combine,
    ComputedNumbers,
    Const,
    DenseTarget,
    ExtentRef,
    Field,
    GivenNumbers,
    IndexRef,
    Inside,
    Into,
    Load,
    Numbers,
    PackedTarget,
    Scalar,
)
from fuscoc.lang.padding import PADDINGS


def declared_json(checked: CheckedShuffle) -> dict[str, Any]:
    """The section ``declared`` of a shuffle's manifest."""
    source = checked.source
    return {
        "constants": dict(checked.constants),
        "extents": list(checked.extents),
        "inputs": [
            {
                "name": given.name,
                "dtype": given.dtype,
                "shape": _scalars(given.shape),
                "role": given.role,
            }
            for given in checked.inputs
        ],
        "domain": [
            {"name": index.name, "extent": scalar_json(index.extent)} for index in checked.domain
        ],
        "num_source_dims": checked.num_source_dims,
        "segment": checked.segment,
        "fields": _fields(checked.fields),
        "source": {
            "layout": source.layout,
            "fields": _fields(source.fields),
            "dims": _scalars(source.dims),
            "subscripts": [
                {"start": scalar_json(subscript.start), "length": subscript.length}
                for subscript in source.subscripts
            ],
            "order": list(source.order),
        },
        "target": _target(checked.target),
        "casts": [
            {
                "field": cast.field,
                "scales": cast.scales,
                "block": cast.block,
                "normalise": cast.normalise
                and {
                    "shifts": numbers_json(cast.normalise.shifts),
                    "factors": numbers_json(cast.normalise.factors),
                    "channels": cast.normalise.channels,
                },
            }
            for cast in checked.casts
        ],
        "combine": _combine(checked.combine),
        "dropping": _scalars(checked.dropping),
        "bounds": [
            {"value": scalar_json(bound.value), "limit": scalar_json(bound.limit)}
            for bound in checked.bounds
        ],
    }


def declared_into_json(into: Into) -> dict[str, Any]:
    """What the spec declares of memory of the caller's, in the section ``into``."""
    return {
        "dims": _scalars(into.dims),
        "fields": _fields(into.fields),
        "declared": declared_json(into.parts),
    }


def _target(target: PackedTarget | DenseTarget) -> dict[str, Any]:
    if isinstance(target, DenseTarget):
        return {
            "kind": "dense",
            "layout": target.layout,
            "slot": scalar_json(target.slot),
            "rank": scalar_json(target.rank),
            "length": scalar_json(target.length),
            "agreed": list(agreed_extents(target)),
        }
    return {
        "kind": "packed",
        "layout": target.layout,
        "key": scalar_json(target.key),
        "placed": scalar_json(target.placed),
        "num_keys": target.num_keys,
        "group": target.group,
        "align": target.align,
        "padding": target.padding,
        "most_padding": PADDINGS[target.padding](target.align),
        "capacity": target.capacity,
        "compact": target.compact,
        "distinct": target.distinct,
        "placement": {"kind": target.placement.kind, "table": target.placement.table},
        "agreed": list(agreed_extents(target)),
    }


def _combine(combine: Combine | None) -> dict[str, Any] | None:
    if combine is None:
        return None
    weight = combine.weight
    return {
        "kind": combine.kind,
        "weight": weight and {"name": weight.name, "input": weight.input, "dtype": weight.dtype},
    }


def _fields(fields: Iterable[Field]) -> list[dict[str, Any]]:
    return [
        {
            "name": field.name,
            "dtype": field.dtype,
            "shape": list(field.shape),
            "is_complex": field.is_complex,
        }
        for field in fields
    ]


def numbers_json(numbers: Numbers) -> Any:
    """Numbers of a cast as JSON: a list, or an object that says what to read or compute."""
    match numbers:
        case GivenNumbers(name):
            return {"kind": "given", "input": name}
        case ComputedNumbers(op, lhs, rhs):
            sides = {"lhs": numbers_json(lhs), "rhs": numbers_json(rhs)}
            return {"kind": "computed", "op": op, **sides}
    return list(numbers)


def _scalars(scalars: Iterable[Scalar]) -> list[Any]:
    return [scalar_json(scalar) for scalar in scalars]


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
        case Inside(inner, limit):
            return {"inside": scalar_json(inner), "limit": scalar_json(limit)}
