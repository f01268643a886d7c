"""fsc.combine and the path of its dispatch -> the path of the combine, every hop turned around.

A copy from one row to many transposes to a reduction of many rows to one; what was fanned out last
is reduced first. Weights apply to the rows that are still one a point.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.l0 import Combine
from fuscoc.dialect.l1 import Collect, Hop
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.path import Path


def run(module: Any) -> None:
    for combine in ops_of(module, Combine):
        dispatched = ops_of(module, Path)
        if not dispatched:
            raise PassError(combine, "has no dispatch to turn around")
        _transpose(combine, *dispatched)
        combine.operation.erase()


def _transpose(combine: Any, dispatch: Any) -> None:
    weight = combine.read("weight")
    with combine.location, ir.InsertionPoint(combine):
        path = Path.build(
            direction="combine",
        )
        with ir.InsertionPoint(path.body.blocks.append()):
            for hop in reversed(ops_of(dispatch, Hop)):
                Collect.build(
                    scope=hop.read("scope"),
                    src=hop.read("dst"),
                    dst=hop.read("src"),
                    kind=combine.read("kind"),
                    weight=weight if hop.read("scope") == "local" else None,
                )
