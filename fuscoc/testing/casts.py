"""Casts of drawn specs: what the fields of a source become on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from fuscoc.lang.dtypes import NARROW

CASTABLE = ("bf16", "f16", "f32", "f8e4m3", "f8e5m2")


@dataclass(frozen=True)
class FieldText:
    """A field as a spec declares it."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        dims = f"[{', '.join(map(str, self.shape))}]" if self.shape else ""
        return f"{self.name} : {self.dtype}{dims}"


@dataclass(frozen=True)
class Cast:
    """The fields before and after a cast, and the clause that asks for it; empty if none is."""

    leaving: tuple[FieldText, ...]
    arriving: tuple[FieldText, ...]
    clause: str


@st.composite
def casts(draw: st.DrawFn, fields: Sequence[FieldText], *, may_apply: bool) -> Cast:
    """Some of the fields as other types, with or without scales; shrinks to none.

    ``may_apply``: the source may have scales, which are fields of its own.
    """
    leaving, arriving, items = list(fields), list(fields), []
    for position, field in enumerate(fields):
        dtype = draw(st.sampled_from(("", *CASTABLE))) if field.dtype in CASTABLE else ""
        if dtype in ("", field.dtype):
            continue
        arriving[position] = FieldText(field.name, dtype, field.shape)
        ends = [arriving] if dtype in NARROW else []
        ends += [leaving] if field.dtype in NARROW and may_apply else []
        scaled = draw(st.sampled_from([None, *ends]))
        if scaled is None:
            items.append(field.name)
            continue
        # One for the segment, or one for each of its elements.
        shape = draw(st.sampled_from([(), field.shape]))
        scaled.append(FieldText(f"{field.name}_scales", "f32", shape))
        items.append(f"{field.name} by {field.name}_scales")
    clause = f"cast({', '.join(items)})" if items else ""
    return Cast(tuple(leaving), tuple(arriving), clause)
