"""The example shuffles as the checker hands them over, written out by hand.

Tests of the dialect, the passes and the code generator use them, so that a failure there is not
one of the language. Constants are parameters: kernels run on small ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fuscoc.codegen.cuda_kernels import CudaKernels
from fuscoc.codegen.triton_node import NodeKernels
from fuscoc.lang.check import check_file
from fuscoc.lang.checked import (
    BinaryOp,
    Cast,
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
    PackedTarget,
    Placement,
    Policy,
    Scalar,
    Source,
    Subscript,
    Weight,
)
from fuscoc.manifest import CompiledShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile, Span

EXAMPLES = Path(__file__).parent.parent / "examples"
SEVERAL = {"fft_pencil", "ragged_text"}  # have two shuffles
EXAMPLE_NAMES = sorted({each.stem for each in EXAMPLES.glob("*.fsc")} - SEVERAL)
POLICY = Policy(
    dedup=("node", "rank"),
    balance="none",
    schedule="pairwise",
    slice_bytes=8 << 20,
    backend="auto",
)


def example(name: str) -> SourceFile:
    """An example's text, under its base name."""
    return SourceFile(name, (EXAMPLES / name).read_text(encoding="utf-8"))


def repeating() -> CheckedShuffle:
    """``moe`` that sends a segment once for each of its points, as no kernels of one node do."""
    text = example("moe.fsc").text.replace("dedup(node, rank)", "dedup(none)")
    (shuffle,) = check_file(SourceFile("repeating.fsc", text), {}).shuffles
    return shuffle


def checked_example(name: str) -> CheckedShuffle:
    """An example's shuffle as the language gives it."""
    (shuffle,) = check_file(example(f"{name}.fsc"), {}).shuffles
    return shuffle


def cuda_of(checked: CheckedShuffle) -> CudaKernels:
    """The CUDA kernels of a shuffle that has some."""
    found = _tiled(checked).cuda
    assert not isinstance(found, str), found
    return found


def node_of(checked: CheckedShuffle) -> NodeKernels:
    """The Triton kernels inside one node of a shuffle that has some."""
    found = _tiled(checked).node
    assert not isinstance(found, str), found
    return found


def _tiled(checked: CheckedShuffle) -> CompiledShuffle:
    lowered = compile_to_ir(checked, after="choose-tiles")
    return CompiledShuffle(checked, lowered.module, lowered.dumps)


def span_of(source: SourceFile, text: str) -> Span:
    """Where ``text`` first stands in the source."""
    start = source.text.index(text)
    return Span(start, start + len(text))


def moe(
    hidden: int = 7168,
    num_experts: int = 256,
    num_topk: int = 8,
    *,
    align: int = 128,
    capacity: int | None = None,
    placement: Literal["block", "cyclic", "table"] = "block",
    weighted: bool = True,
    policy: Policy = POLICY,
) -> CheckedShuffle:
    """``examples/moe.fsc``."""
    source = example("moe.fsc")

    def at(text: str) -> Span:
        return span_of(source, text)

    token = Field("x", "bf16", (hidden,), at("x : bf16[hidden]"))
    t, k = IndexRef("t"), IndexRef("k")
    shape: tuple[Scalar, ...] = (ExtentRef("tokens"), Const(num_topk))
    inputs = [Input("topk_idx", "i64", shape, "route", at("input topk_idx : int64"))]
    weight = None
    if weighted:
        inputs.append(Input("topk_weights", "f32", shape, "weight", at("input topk_weights")))
        weight = Weight("w", "topk_weights", "f32", at("weight  w(t, k) : f32"))
    if placement == "table":
        keys = (Const(num_experts),)
        inputs.append(Input("owner", "i64", keys, "placement", at("place   e on rank by block")))
    return CheckedShuffle(
        name="moe",
        source_file=source,
        span=Span(source.text.index("shuffle moe"), len(source.text) - 1),
        constants=(("hidden", hidden), ("experts", num_experts), ("topk", num_topk)),
        extents=("tokens",),
        inputs=tuple(inputs),
        domain=(
            DomainIndex("t", ExtentRef("tokens"), at("t : tokens")),
            DomainIndex("k", Const(num_topk), at("k : topk")),
        ),
        num_source_dims=1,
        segment="token",
        fields=(token,),
        source=Source(
            layout="by_token",
            fields=(token,),
            dims=(ExtentRef("tokens"),),
            subscripts=(Subscript(t, None, at("t]           ->")),),
            span=at("by_token[t]           ->"),
        ),
        target=PackedTarget(
            layout="by_expert",
            key=Load("topk_idx", (t, k)),
            placed=Load("topk_idx", (t, k)),
            num_keys=num_experts,
            group=1,
            align=align,
            padding="fewest",
            capacity=capacity,
            compact=False,
            placement=Placement(
                placement,
                "owner" if placement == "table" else None,
                at("place   e on rank by block"),
            ),
            span=at("by_expert[r(t, k), *]"),
        ),
        combine=Combine("sum", weight, at("combine  by_expert[r(t, k), *] -> by_token[t]")),
        policy=policy,
        dispatch_span=at("dispatch by_token[t]           -> by_expert[r(t, k), *]"),
    )


def moe_fp8(hidden: int = 7168, block: int = 128, **options: Any) -> CheckedShuffle:
    """``moe`` whose rows arrive in fp8 with scales, as in ``examples/moe_fp8.fsc``."""
    wide = moe(hidden, **options)
    span = wide.dispatch_span
    x = Field("x", "f8e4m3", (hidden,), span)
    scales = Field("scales", "f32", (hidden // block,), span)
    return replace(wide, fields=(x, scales), casts=(Cast("x", "scales", block, span),))


def rebalanced() -> Policy:
    """Ranks of a node send rows for one another."""
    return replace(POLICY, balance="rebalance")


def vit_patches(
    p: int = 14, c: int = 3, *, channels_first: bool = False, policy: Policy = POLICY
) -> CheckedShuffle:
    """``examples/vit_patches.fsc``; with ``channels_first`` the pictures are NCHW."""
    source = example("vit_patches.fsc")

    def at(text: str) -> Span:
        return span_of(source, text)

    n, i, j = IndexRef("n"), IndexRef("i"), IndexRef("j")
    height, width = Load("height", (n,)), Load("width", (n,))
    rows = Subscript(BinaryOp("*", i, Const(p)), p, at("i*p .. i*p+p"))
    cols = Subscript(BinaryOp("*", j, Const(p)), p, at("j*p .. j*p+p"))
    image = Subscript(n, None, at("n, i*p"))
    view = at("pictures[n, i*p .. i*p+p, j*p .. j*p+p]")
    pixel_span = at("u8[c]")
    no_dims: tuple[int, ...] = ()
    if channels_first:
        channels = Subscript(Const(0), c, view)
        dims: tuple[Scalar, ...] = (ExtentRef("images"), Const(c), height, width)
        subscripts: tuple[Subscript, ...] = (image, channels, rows, cols)
        shape, cell = (c, p, p), no_dims
    else:
        dims = (ExtentRef("images"), height, width)
        subscripts, shape, cell = (image, rows, cols), (p, p, c), (c,)
    patch_row = BinaryOp("/", BinaryOp("*", i, width), Const(p))
    start = Load("packing", (n, Const(1)))
    images = (ExtentRef("images"),)
    return CheckedShuffle(
        name="vit_patches",
        source_file=source,
        span=Span(source.text.index("shuffle vit_patches"), len(source.text) - 1),
        constants=(("p", p), ("c", c)),
        extents=("images", "length"),
        inputs=(
            Input("height", "i64", images, "extent", at("height(n)")),
            Input("width", "i64", images, "extent", at("width(n)")),
            Input("packing", "i64", (*images, Const(2)), "route", at("input packing : int64[2]")),
        ),
        domain=(
            DomainIndex("n", ExtentRef("images"), at("n : images")),
            DomainIndex("i", BinaryOp("/", height, Const(p)), at("i : height(n) / p")),
            DomainIndex("j", BinaryOp("/", width, Const(p)), at("j : width(n) / p")),
        ),
        num_source_dims=3,
        segment="patch",
        fields=(Field("pixels", "u8", shape, at("pixels : u8[p, p, c]")),),
        source=Source(
            layout="pictures",
            fields=(Field("pixels", "u8", cell, pixel_span),),
            dims=dims,
            subscripts=subscripts,
            span=view,
        ),
        target=DenseTarget(
            layout="sequence",
            slot=BinaryOp("+", BinaryOp("+", start, patch_row), j),
            rank=Load("packing", (n, Const(0))),
            length=ExtentRef("length"),
            span=at("sequence[where(n).offset + i * width(n) / p + j]"),
        ),
        combine=Combine("copy", None, at("combine  reverse")),
        policy=policy,
        dispatch_span=at("dispatch patches[n, i, j] -> sequence"),
    )


def redistribute(rows: int = 8192, columns: int = 1024) -> CheckedShuffle:
    """``examples/redistribute.fsc``."""
    source = example("redistribute.fsc")

    def at(text: str) -> Span:
        return span_of(source, text)

    rank, ranks, i = ExtentRef("rank"), ExtentRef("ranks"), IndexRef("i")
    share = BinaryOp("/", Const(rows), ranks)
    row = BinaryOp("+", BinaryOp("*", rank, share), i)
    field = Field("x", "f32", (columns,), at("x : f32[columns]"))
    return CheckedShuffle(
        name="redistribute",
        source_file=source,
        span=Span(source.text.index("shuffle redistribute"), len(source.text) - 1),
        constants=(("rows", rows), ("columns", columns)),
        extents=(),
        inputs=(),
        domain=(DomainIndex("i", share, at("i : rows / ranks")),),
        num_source_dims=1,
        segment="row",
        fields=(field,),
        source=Source(
            layout="block",
            fields=(field,),
            dims=(share,),
            subscripts=(Subscript(i, None, at("i] ->")),),
            span=at("block[i] ->"),
        ),
        target=DenseTarget(
            layout="cyclic",
            slot=BinaryOp("/", row, ranks),
            rank=BinaryOp("%", row, ranks),
            length=share,
            span=at("cyclic[(rank * (rows / ranks) + i) / ranks]"),
        ),
        combine=Combine("copy", None, at("combine  reverse")),
        policy=POLICY,
        dispatch_span=at("dispatch block[i]"),
        builtins=("rank", "ranks"),
    )
