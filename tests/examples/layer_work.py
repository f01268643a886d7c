"""The example's layer on one rank, against the same layer without any shuffle."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.moe_reference import actual, differences, reference
from examples.moe_layer import Sizes, build
from examples.moe_plain import PlainShuffle
from fuscoc_runtime.face.shuffle import Shuffle

SIZES = Sizes(hidden=16, experts=12, topk=2, width=24)


TOLERANCE = 1e-6


def wrong(group: Any, artifact: str, factor: float) -> list[str]:
    """Results and gradients that are not ``factor`` times the reference's, with fuscoc and in plain
    torch."""
    shuffles = (Shuffle(artifact, group=group), PlainShuffle(SIZES.experts))
    layer = build(SIZES, None, torch.float32, torch.device("cpu"))
    x, gradient = torch.randn(2, 11, SIZES.hidden)
    expected = {name: factor * each for name, each in reference(layer, x, gradient).items()}
    found = []
    for shuffle in shuffles:
        layer.shuffle = shuffle
        found += differences(actual(layer, x, gradient), expected, TOLERANCE)
    return found
