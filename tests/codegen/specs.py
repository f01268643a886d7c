"""Checked shuffles that between them need every form of kernel, and their kernels, loaded once."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuscoc.codegen.triton import triton_module
from fuscoc.lang.checked import (
    BinaryOp,
    CheckedShuffle,
    Combine,
    Const,
    DenseTarget,
    DomainIndex,
    ExtentRef,
    Field,
    IndexRef,
    Input,
    Load,
    Source,
    Subscript,
)
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile, Span
from tests.codegen.memory import Kernels
from tests.specs import POLICY, moe, rebalanced, vit_patches

SOURCE = SourceFile("blocks.fsc", "shuffle blocks { }\n")
SPAN = Span(0, 6)


def blocks(
    fields: Sequence[tuple[str, str, tuple[int, ...]]],
    lengths: Sequence[int] = (1,),
    dims: Sequence[int] = (),
    combine: str | None = "copy",
) -> CheckedShuffle:
    """Blocks of ``lengths`` cells out of an array [num * lengths[0], *dims], row by row of blocks.

    ``fields`` gives name, dtype and cell shape. Point i goes to slot table[i, 1] of rank
    table[i, 0].
    """
    i = IndexRef("i")
    size = (ExtentRef("num"), Const(2))
    starts = [BinaryOp("*", i, Const(lengths[0])), *[Const(0) for _ in dims]]
    runs = [length for length in lengths if length > 1]
    return CheckedShuffle(
        name="blocks",
        source_file=SOURCE,
        span=SPAN,
        constants=(),
        extents=("num", "length"),
        inputs=(Input("table", "i64", size, "route", SPAN),),
        domain=(DomainIndex("i", ExtentRef("num"), SPAN),),
        num_source_dims=1,
        segment="block",
        fields=tuple(Field(name, dtype, (*runs, *cell), SPAN) for name, dtype, cell in fields),
        source=Source(
            layout="cells",
            fields=tuple(Field(name, dtype, cell, SPAN) for name, dtype, cell in fields),
            dims=(BinaryOp("*", ExtentRef("num"), Const(lengths[0])), *map(Const, dims)),
            subscripts=tuple(
                Subscript(start, length if length > 1 else None, SPAN)
                for start, length in zip(starts, lengths, strict=True)
            ),
            span=SPAN,
        ),
        target=DenseTarget(
            layout="places",
            slot=Load("table", (i, Const(1))),
            rank=Load("table", (i, Const(0))),
            length=ExtentRef("length"),
            span=SPAN,
        ),
        combine=None if combine is None else Combine(combine, None, SPAN),  # type: ignore[arg-type]
        policy=POLICY,
        dispatch_span=SPAN,
    )


ITEM_BYTES = {
    "u8": 1,
    "f8e4m3": 1,
    "i16": 2,
    "f16": 2,
    "bf16": 2,
    "i32": 4,
    "f32": 4,
    "i64": 8,
    "f64": 8,
}

THREE_FIELDS = (("payload", "f8e4m3", (80,)), ("scale", "f32", (5,)), ("idx", "i32", ()))

SPECS = {
    "moe": lambda: moe(hidden=24, num_experts=12, num_topk=3),
    "moe_odd": lambda: moe(hidden=13, num_experts=12, num_topk=3, weighted=False),
    "moe_long": lambda: moe(hidden=(1 << 14) + 104, num_experts=4, num_topk=2),
    "moe_rebalanced": lambda: moe(24, 12, 3, policy=rebalanced()),
    "vit": lambda: vit_patches(p=2, c=3),
    "vit_nchw": lambda: vit_patches(p=4, c=3, channels_first=True),
    "three_fields": lambda: blocks(THREE_FIELDS),
    "tiles": lambda: blocks((("x", "f32", (2,)), ("y", "u8", ())), (2, 3, 4), (5, 10)),
    "wide_tiles": lambda: blocks((("x", "i16", (4,)),), (3, 4), (20,)),
    "long": lambda: blocks((("x", "u8", (70001,)),)),
    **{
        f"sum_{dtype}": lambda dtype=dtype: blocks((("x", dtype, (21,)),), combine="sum")
        for dtype in ("f16", "bf16", "f32", "f64")
    },
    "sum_tiles": lambda: blocks((("x", "f32", ()), ("y", "f64", (2,))), (2, 3), (5,), "sum"),
}


@dataclass(frozen=True)
class Built:
    """A shuffle's kernels, and the copy shapes of its fields."""

    name: str
    kernels: Kernels
    path: Path
    runs: tuple[dict[str, Any], ...]


@cache
def built(name: str) -> Built:
    """The spec of that name, compiled."""
    return built_of(SPECS[name]())


def built_of(checked: CheckedShuffle) -> Built:
    """A shuffle's kernels."""
    return built_from(checked, compile_to_ir(checked).module)


def built_from(checked: CheckedShuffle, module: Any) -> Built:
    """The kernels of a module at L3; they are real files, as Triton reads their source."""
    handle, path = tempfile.mkstemp(prefix=f"{checked.name}_", suffix=".py", dir=scratch())
    with open(handle, "w", encoding="utf-8") as file:
        file.write(triton_module(module, checked.source_file))
    with module.context:
        shuffle = next(op for op in module.body if op.operation.name == "fsc.shuffle")
        return Built(checked.name, Kernels(Path(path)), Path(path), shuffle.read("runs"))


@cache
def scratch() -> Path:
    path = Path(tempfile.mkdtemp(prefix="fuscoc-kernels-"))
    atexit.register(shutil.rmtree, path)
    return path
