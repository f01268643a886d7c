"""Complex numbers at the edge: pairs of reals inside, views of the same memory.

What moves, and sums with real weights, treat the parts alike, so nothing behind the face knows of
complex numbers; autograd sees the views and does what it does for any of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fuscoc_runtime.manifest.declared import FieldSpec


def as_reals(
    specs: Sequence[FieldSpec], fields: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call, by position and by name, whose complex fields are pairs of reals.

    What is complex and should not be stays so, for the checks of arguments to tell.
    """
    complex_names = {spec.name for spec in specs if spec.is_complex}
    positional = [
        _real(value) if position < len(specs) and specs[position].is_complex else value
        for position, value in enumerate(fields)
    ]
    by_name = {
        name: _real(value) if name in complex_names else value for name, value in named.items()
    }
    return positional, by_name


def rows_as_reals(
    specs: Sequence[FieldSpec], rows: Tensor | Mapping[str, Tensor]
) -> Tensor | Mapping[str, Tensor]:
    """The rows of a combine: one tensor, or several by name."""
    if isinstance(rows, Mapping):
        return as_reals(specs, (), rows)[1]
    (real,), _ = as_reals(specs, (rows,), {})
    return cast(Tensor, real)


def as_complex(specs: Sequence[FieldSpec], fields: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Results by name, with complex numbers where the spec has them."""
    complex_names = {spec.name for spec in specs if spec.is_complex}
    if not complex_names:
        return fields
    return {
        name: torch.view_as_complex(each) if name in complex_names else each
        for name, each in fields.items()
    }


def _real(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value
