"""Serialisation: what is saved comes back equal."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuscoc.testing.facts import PlanFacts
from fuscoc.testing.violations import PlanViolation


def check_round_trip(facts: PlanFacts) -> None:
    """``Plan.load`` returns what ``Plan.save`` wrote, array by array."""
    plan: Any = facts.plan
    with tempfile.TemporaryDirectory(prefix="fuscoc-plan-") as directory:
        path = Path(directory) / "plan.npz"
        plan.save(path)
        loaded = type(plan).load(path)
    different = difference(plan, loaded, "plan")
    if different is not None:
        raise PlanViolation("check_round_trip", f"{different} changes when the plan is saved")


def difference(one: Any, other: Any, path: str) -> str | None:
    """Where two values built of dataclasses, mappings, sequences and arrays first differ."""
    if type(one) is not type(other):
        return path
    if isinstance(one, np.ndarray):
        return None if one.dtype == other.dtype and np.array_equal(one, other) else path
    if is_dataclass(one):
        parts = ((f".{f.name}", getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
        return _first(parts, path)
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return path
        return _first(((f"[{key!r}]", one[key], other[key]) for key in one), path)
    if isinstance(one, list | tuple) and one and is_dataclass(one[0]):
        if len(one) != len(other):
            return path
        pairs = enumerate(zip(one, other, strict=True))
        return _first(((f"[{i}]", a, b) for i, (a, b) in pairs), path)
    return None if one == other else path


def _first(parts: Any, path: str) -> str | None:
    found = (difference(one, other, path + step) for step, one, other in parts)
    return next((each for each in found if each is not None), None)
