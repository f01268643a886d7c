"""The element types of fields and inputs, and the other names they go by."""

from __future__ import annotations

from collections.abc import Sequence

ITEM_BYTES: dict[str, int] = {
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "u8": 1,
}

# A complex number is a pair of reals to all that comes after the language.
COMPLEX: dict[str, str] = {"c64": "f32", "c128": "f64"}
TYPES = (*ITEM_BYTES, *COMPLEX)

# The names that PyTorch uses mean the same types.
ALIASES: dict[str, str] = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "complex64": "c64",
    "complex128": "c128",
}

# What other languages and libraries call them, or something like them.
MEANT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["f8", "fp8", "float8"], ("f8e4m3", "f8e5m2")),
    **dict.fromkeys(["e4m3", "float8_e4m3", "fp8_e4m3"], ("f8e4m3",)),
    **dict.fromkeys(["e5m2", "fp8_e5m2"], ("f8e5m2",)),
    **dict.fromkeys(["fp16", "half"], ("f16",)),
    **dict.fromkeys(["fp32", "float"], ("f32",)),
    **dict.fromkeys(["fp64", "double"], ("f64",)),
    **dict.fromkeys(["byte", "uint8_t"], ("u8",)),
    **dict.fromkeys(["int", "int32_t"], ("i32",)),
    **dict.fromkeys(["cfloat", "complex"], ("c64",)),
    **dict.fromkeys(["cdouble"], ("c128",)),
    **dict.fromkeys(["long", "int64_t"], ("i64",)),
}

NAMES = frozenset(TYPES) | frozenset(ALIASES)
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8"})
NARROW = frozenset({"f8e4m3", "f8e5m2"})
SUMMABLE = frozenset({"bf16", "f16", "f32", "f64"})
ROUTES = frozenset({"i32", "i64"})


def normal(name: str) -> str | None:
    """The one name that later rooms know the type by; None if there is no such type."""
    name = ALIASES.get(name, name)
    return name if name in TYPES else None


def spelled(dtype: str, shape: Sequence[int], is_complex: bool) -> str:
    """A type as a spec has it."""
    if is_complex:
        dtype = next(name for name, real in COMPLEX.items() if real == dtype)
        shape = shape[:-1]
    return f"{dtype}[{', '.join(map(str, shape))}]" if shape else dtype


def meant(name: str) -> str | None:
    """The element types that a name of another language may stand for, in words."""
    return " or ".join(f"`{each}`" for each in MEANT[name]) if name in MEANT else None
