"""Numbers that a call gives a cast: what kernels compute with, made of them on their device.

They are those of the rank that sends, and no other rank knows them. Every operation is one of
torch's own in f64, so nothing is contracted, and bits depend on no device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

from fuscoc_runtime.manifest.declared import (
    ComputedNumbers,
    GivenNumbers,
    NormaliseSpec,
    Numbers,
)
from fuscoc_runtime.manifest.schema import ShuffleSpec

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
}


def cast_numbers(shuffle: ShuffleSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By field, f32 [2, channels]: the shifts and the factors of casts that compute with inputs."""
    found = {}
    shapes = {each.name: each.shape for each in shuffle.program.buffers.get("numbers", ())}
    for each in shuffle.declared.casts:
        line = each.normalise
        if line is not None and line.is_given:
            parts = [evaluate(part, inputs) for part in (line.shifts, line.factors)]
            made = parts[0].new_empty(shapes[each.field], dtype=torch.float32)
            for row, part in zip(made.unbind(), parts, strict=True):
                row.copy_(part)
            found[each.field] = made
    return found


def factors(line: NormaliseSpec, inputs: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """What elements are multiplied by, f32, where ``like`` is: one factor for all channels, or one
    for each."""
    if line.is_given:
        return evaluate(line.factors, inputs).float()
    return _constants(cast(tuple[float, ...], line.factors), like, torch.float32)


def evaluate(numbers: Numbers, inputs: Mapping[str, Tensor]) -> Tensor:
    """Numbers of a cast, f64: one for all channels, or one for each."""
    match numbers:
        case GivenNumbers(input=name):
            return inputs[name].double()
        case ComputedNumbers(op=op, lhs=lhs, rhs=rhs):
            return OPERATIONS[op](evaluate(lhs, inputs), evaluate(rhs, inputs))
    return _constants(numbers, next(iter(inputs.values())), torch.float64)


def _constants(numbers: tuple[float, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Not a tensor of the host's numbers: to bring one, the host would wait for the GPU."""
    made = [like.new_full((), each, dtype=dtype) for each in numbers]
    return made[0] if len(made) == 1 else torch.stack(made)
