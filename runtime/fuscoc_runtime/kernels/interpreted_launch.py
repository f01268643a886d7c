"""Launches of interpreted kernels that take numbers, as all of an artifact do.

Triton looks through a function's signature, its annotations and all arguments at every launch, for
tensors that would have to come from a GPU and go back: longer than many a kernel of ours runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fuscoc_runtime.kernels.handles import Change, making


def launches() -> Iterator[Change]:
    """How a kernel is run: at once where it takes whole numbers and constants, in their order, and
    has a line of programs; else as Triton does."""
    from triton import language as tl
    from triton.runtime import interpreter

    theirs, builder, as_tensor = (
        interpreter.InterpretedFunction.run, interpreter.interpreter_builder, making()
    )  # fmt: skip
    kinds = [
        (range(-(1 << bits - 1), 1 << bits - 1), np.dtype(f"int{bits}"), kind)
        for bits, kind in ((32, tl.int32), (64, tl.int64))
    ]
    constants: dict[Any, list[bool]] = {}

    def number(given: Any) -> Any:
        """As Triton takes it; None if it is no whole number, or one that no signed type holds."""
        if type(given) is int:
            for held, dtype, kind in kinds:
                if given in held:
                    return as_tensor(np.array([given], dtype), kind, kind, False)
        return None

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        if self.fn not in constants:
            named = interpreter.GridExecutor(self.fn, self.arg_names, grid).constexprs
            constants[self.fn] = [name in named for name in self.arg_names]
        are_constant = constants[self.fn]
        values = [
            each if is_constant else number(each)
            for each, is_constant in zip(args, are_constant, strict=False)
        ]
        if (
            warmup
            or self.pre_run_hooks
            or type(grid) is not tuple
            or len(grid) != 1
            or len(args) != len(are_constant)
            or not options.keys().isdisjoint(self.arg_names)
            or any(each is None for each in values)
        ):
            theirs(self, *args, grid=grid, warmup=warmup, **options)
            return
        function = self.rewrite()
        builder.set_grid_dim(*grid, 1, 1)
        try:
            for program in range(*grid):
                builder.set_grid_idx(program, 0, 0)
                function(*values)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    yield interpreter.InterpretedFunction, "run", run
