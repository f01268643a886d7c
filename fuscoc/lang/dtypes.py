"""The element types of fields and inputs, and the other names they go by."""

from __future__ import annotations

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
}

NAMES = frozenset(ITEM_BYTES) | frozenset(ALIASES)
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8"})
NARROW = frozenset({"f8e4m3", "f8e5m2"})
SUMMABLE = frozenset({"bf16", "f16", "f32", "f64"})
ROUTES = frozenset({"i32", "i64"})


def normal(name: str) -> str | None:
    """The one name that later rooms know the type by; None if there is no such type."""
    name = ALIASES.get(name, name)
    return name if name in ITEM_BYTES else None
