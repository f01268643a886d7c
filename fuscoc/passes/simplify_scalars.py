"""Regions as lowered -> the same regions with constants folded and every value computed once.

MLIR's own canonicalize and cse do the work; they also drop what coalescing left unused.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.mlir import PassManager


def run(module: Any) -> None:
    PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
