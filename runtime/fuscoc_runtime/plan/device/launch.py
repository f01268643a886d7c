"""Launch the planner's kernels: addresses and counts, then what is fixed when one is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fuscoc_runtime.kernels.loader import device_module, launching
from fuscoc_runtime.kernels.machine_code import MachineCode

WORD_BYTES = 8

_codes: dict[tuple[Any, ...], MachineCode] = {}  # by kernel, constants and device


def launch(
    module: str,
    name: str,
    device: torch.device,
    num_programs: int,
    arguments: tuple[int, ...],
    constants: tuple[int, ...],
    num_warps: int = 4,
) -> None:
    """Enqueue ``name`` of ``kernels/device`` on ``device``, the current one, or interpret it on the
    CPU."""
    prepare(module, name, device, num_programs, arguments, constants, num_warps)()


def prepare(
    module: str,
    name: str,
    device: torch.device,
    num_programs: int,
    arguments: tuple[int, ...],
    constants: tuple[int, ...],
    num_warps: int = 4,
) -> Callable[[], None]:
    """Do all of ``launch`` that can fail; the result does the rest.

    The machine code is launched as it is: the arguments are int64, and nothing is specialised for
    their values.
    """
    if not num_programs:
        return lambda: None
    if device.type != "cuda":
        return lambda: _interpret(module, name, num_programs, (*arguments, *constants))
    key = name, constants, torch.cuda.current_device()
    code = _codes.get(key)
    if code is None:
        function = getattr(device_module(module, interpreted=False), name)
        with launching(interpreted=False):
            made = function.warmup(*arguments, *constants, grid=(1,), num_warps=num_warps)
        code = _codes[key] = MachineCode(made, len(arguments))
    return partial(code.start, arguments, num_programs)


def _interpret(module: str, name: str, num_programs: int, arguments: tuple[int, ...]) -> None:
    function = getattr(device_module(module, interpreted=True), name)
    with launching(interpreted=True):
        function[(num_programs,)](*arguments)


def power_of_two(size: int, least: int = 1) -> int:
    """The lowest power of two that is neither below ``size`` nor below ``least``."""
    return max(least, 1 << (size - 1).bit_length() if size > 1 else 1)


def blocks(size: int, block: int) -> int:
    """Blocks that ``size`` elements take."""
    return -(-size // block)
