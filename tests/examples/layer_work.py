"""The example's layer on one rank, against the same layer without any shuffle."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.moe_reference import actual, differences, reference
from examples.moe_layer import Sizes, build
from examples.moe_plain import PlainShuffle
from fuscoc_runtime.shuffle import Shuffle

SIZES = Sizes(hidden=16, experts=12, topk=2, width=24)


def wrong(group: Any, artifact: str, tolerance: float) -> list[str]:
    """Results and gradients that are off, with fuscoc and in plain torch."""
    shuffles = (Shuffle(artifact, group=group), PlainShuffle(SIZES.experts))
    layer = build(SIZES, None, torch.float32, torch.device("cpu"))
    x, gradient = torch.randn(2, 11, SIZES.hidden)
    expected = reference(layer, x, gradient)
    found = []
    for shuffle in shuffles:
        layer.shuffle = shuffle
        found += differences(actual(layer, x, gradient), expected, tolerance)
    return found
