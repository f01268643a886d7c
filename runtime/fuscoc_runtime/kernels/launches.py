"""Launches of Triton functions that take tensors, by the driver's own call once they are known.

Triton looks anew each time for what it has compiled, in Python. Here a launch is found by what its
code follows from: types of its arguments, whether addresses and numbers are multiples of 16,
numbers that are 1, and constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.kernels.loader import launching
from fuscoc_runtime.kernels.machine_code import MachineCode
from fuscoc_runtime.kernels.triton_driver import compiling

_known: dict[tuple[Any, ...], tuple[MachineCode, tuple[int, ...]]] = {}


def start(function: Any, arguments: Sequence[Any], num_programs: int, num_warps: int = 4) -> None:
    """Launch a function with all ``arguments``, constants too: on the current stream of their GPU,
    which is the current one, or here and now by the interpreter, where tensors are of the CPU.

    Tensors outlive what is enqueued, and one of them comes first.
    """
    if arguments[0].device.type == "cpu":
        with launching(interpreted=True):
            function[(num_programs,)](*arguments, num_warps=num_warps)
        return
    key: list[Any] = [function, num_warps, torch._C._cuda_getDevice()]
    values = []
    for argument, is_constant in zip(arguments, _constants(function), strict=True):
        value = argument
        if is_constant or argument is None:
            key.append(argument)
        elif isinstance(argument, Tensor):
            value = argument.data_ptr()
            key += argument.dtype, value % 16 == 0
        else:
            key += argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
        values.append(value)
    form = tuple(key)
    known = _known.get(form)
    if known is None:
        known = _known[form] = _compiled(function, arguments, num_warps)
    code, positions = known
    code.start([values[position] for position in positions], num_programs)


@cache
def _constants(function: Any) -> tuple[bool, ...]:
    """Which parameters are constants of the code."""
    return tuple(each.is_constexpr for each in function.params)


def _compiled(
    function: Any, arguments: Sequence[Any], num_warps: int
) -> tuple[MachineCode, tuple[int, ...]]:
    """The code, and which of the arguments it takes: none that it has built in."""
    with launching(interpreted=False), compiling():
        made = function.warmup(*arguments, grid=(1,), num_warps=num_warps)
    kinds = enumerate(made.src.signature.values())
    positions = tuple(position for position, kind in kinds if kind != "constexpr")
    return MachineCode.compiled(made, len(positions)), positions
