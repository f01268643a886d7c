"""The fsc dialect: one module a level, declarations (l0) down to kernels (l3)."""

from typing import Any

from fuscoc.dialect import fused, into, l0, l1, l2, l3, node, node_tiles, path, relation
from fuscoc.dialect.fsc import Fsc
from fuscoc.dialect.mlir import ir

__all__ = [
    "fused",
    "into",
    "l0",
    "l1",
    "l2",
    "l3",
    "new_context",
    "node",
    "node_tiles",
    "path",
    "relation",
]


def new_context() -> Any:
    """A fresh MLIR context that knows every level of the dialect."""
    context = ir.Context()
    with context:
        Fsc.load()
    return context
