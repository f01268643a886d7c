"""Regions as lowered -> the same regions with constants folded and every value computed once.

MLIR's own canonicalize and cse do the work; they also drop what coalescing left unused.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.mlir import run_upstream


def run(module: Any) -> None:
    run_upstream("canonicalize,cse", module)
