"""Exact conversions between floats for Triton's interpreter.

A kernel has to give the same bits interpreted as on the GPU. The conversions where the interpreter
does not are replaced while a kernel of ours is interpreted; elsewhere Triton stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fuscoc_runtime.kernels.bfloat16 import round_to_bfloat16, widen_bfloat16
from fuscoc_runtime.kernels.float8 import FORMATS, narrow_float8, widen_float8


@contextmanager
def exact_conversions() -> Iterator[None]:
    """Replace the interpreter's conversions of bf16 and 8-bit floats for the enclosed launch."""
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast_impl, fp_to_fp = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

    def cast(builder: Any, src: Any, dst_type: Any) -> Any:
        pair = (src.dtype.scalar, dst_type.scalar)
        if pair == (tl.float32, tl.bfloat16):
            return TensorHandle(round_to_bfloat16(src.data), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return TensorHandle(widen_bfloat16(src.data), tl.float32)
        return cast_impl(builder, src, dst_type)

    def convert(builder: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        given, wanted = src.dtype.scalar, dst_type.scalar
        if given == tl.float32 and wanted.name in FORMATS:
            return TensorHandle(narrow_float8(src.data, wanted.name), wanted)
        if given.name in FORMATS and wanted == tl.float32:
            return TensorHandle(widen_float8(src.data, given.name), wanted)
        return fp_to_fp(builder, src, dst_type, rounding)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp = cast, convert
    try:
        yield
    finally:
        InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp = cast_impl, fp_to_fp
