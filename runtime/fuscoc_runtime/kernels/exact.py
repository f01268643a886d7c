"""Exact conversions between floats for Triton's interpreter.

A kernel has to give the same bits interpreted as on the GPU. The conversions where the interpreter
does not are replaced while a kernel of ours is interpreted; elsewhere Triton stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuscoc_runtime.kernels.bfloat16 import round_to_bfloat16, widen_bfloat16
from fuscoc_runtime.kernels.float8 import FORMATS, narrow_float8, widen_float8


def exact_conversions() -> Iterator[tuple[Any, str, Any]]:
    """An object, a name and the value it is to have: for conversions of bf16 and 8-bit floats."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    cast_impl, fp_to_fp = interpreter_builder.cast_impl, interpreter_builder.create_fp_to_fp

    def cast(src: Any, dst_type: Any) -> Any:
        pair = src.dtype.scalar.name, dst_type.scalar.name
        if pair == ("fp32", "bf16"):
            return TensorHandle(round_to_bfloat16(src.data), tl.bfloat16)
        if pair == ("bf16", "fp32"):
            return TensorHandle(widen_bfloat16(src.data), tl.float32)
        return cast_impl(src, dst_type)

    def convert(src: Any, dst_type: Any, rounding: Any) -> Any:
        given, wanted = src.dtype.scalar, dst_type.scalar
        if given == tl.float32 and wanted.name in FORMATS:
            return TensorHandle(narrow_float8(src.data, wanted.name), wanted)
        if given.name in FORMATS and wanted == tl.float32:
            return TensorHandle(widen_float8(src.data, given.name), wanted)
        return fp_to_fp(src, dst_type, rounding)

    yield interpreter_builder, "cast_impl", cast
    yield interpreter_builder, "create_fp_to_fp", convert
