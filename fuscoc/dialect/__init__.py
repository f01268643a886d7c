"""The fsc dialect: one module a level, declarations (l0) down to kernels (l3)."""

from typing import Any

from fuscoc.dialect import (
    fused,
    into,
    l0,
    l1,
    l2,
    l3,
    node,
    node_tiles,
    path,
    piece_tiles,
    relation,
)
from fuscoc.dialect.fsc import Fsc
from fuscoc.dialect.mlir import ir

__all__ = [
    "fused",
    "into",
    "kept_context",
    "l0",
    "l1",
    "l2",
    "l3",
    "new_context",
    "node",
    "node_tiles",
    "path",
    "piece_tiles",
    "relation",
]


def new_context() -> Any:
    """A fresh MLIR context that knows every level of the dialect.

    It has no threads: modules are small, and a forked process would have their pool without them.
    """
    context = ir.Context()
    context.enable_multithreading(False)
    with context:
        Fsc.load()
    return context


MOST_USES = 50
_kept: list[Any] = []
"""One context, as often as it may still be used."""


def kept_context() -> Any:
    """The context of one module after the other: to make one takes a third of a compile's time.

    It keeps every attribute that it was ever given, so that there is a new one now and then. For
    one thread at a time.
    """
    if not _kept:
        _kept.extend([new_context()] * MOST_USES)
    return _kept.pop()
