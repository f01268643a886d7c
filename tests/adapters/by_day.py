"""Which models of transformers the suite runs, and which only `make nightly` does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.transformers_models import ARCHITECTURES

IN_SUITE = "GptOss"
"""Biases, transposed weights, an activation of its own."""


def nightly_but(*by_day: str) -> list[Any]:
    """All architectures, of which only some run by day."""
    return [
        name if name in by_day else pytest.param(name, marks=pytest.mark.nightly)
        for name in ARCHITECTURES
    ]
