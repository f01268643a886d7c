"""Which shuffles have CUDA kernels, and what is known of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from fuscoc.artifact import MANIFEST
from fuscoc.codegen.cuda_kernels import cuda_kernels
from fuscoc.codegen.cuda_tiles import TARGETS
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.node_shuffle import node_shuffle
from fuscoc.dialect.mlir import ir
from fuscoc.lang.check import check
from fuscoc.lang.checked import (
    BinaryOp,
    CheckedShuffle,
    Const,
    DenseTarget,
    IndexRef,
    PackedTarget,
)
from fuscoc.manifest import CompiledShuffle
from fuscoc.pipeline import compile_to_ir, parse_module
from fuscoc.source import SourceFile
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.schema import Manifest
from tests.artifact.test_manifest import compiled
from tests.cuda.dense_cases import PARTS_OF_LINES
from tests.specs import EXAMPLE_NAMES, checked_example, cuda_of, moe


def shuffle_of(checked: CheckedShuffle) -> CudaShuffle:
    return node_shuffle(compile_to_ir(checked, after="choose-tiles").module)


def text_of(checked: CheckedShuffle) -> str:
    return cuda_of(checked).variants[0].source.text


@pytest.mark.parametrize("name", ["moe", "fft_transpose", "ulysses", "vit_patches"])
def test_the_relation_is_that_of_the_fused_operations(name: str) -> None:
    """Points are those of the shuffle, which other kernels are made of; pieces are printed."""
    text = compile_to_ir(checked_example(name), after="choose-tiles").text
    for op in ("fsc.shuffle", "fsc.node_points"):
        with pytest.raises(ir.MLIRError, match="evaluates another relation than its shuffle"):
            kernels_of(with_another_constant(text, op))
    if name != "moe":
        assert kernels_of(with_another_constant(text, "fsc.node_pieces")) != kernels_of(text)


def with_another_constant(text: str, op: str) -> str:
    """A module where the last region of an operation has another first constant above 1."""
    begin = text.index(f'"{op}"')
    if op != "fsc.node_pieces":
        begin = text.index("}, {", begin)
    found = re.search(r"arith\.constant (\d{2,}|[2-9]) : i64", text[begin:])
    assert found is not None
    at = begin + found.start(1)
    return text[:at] + str(int(found[1]) + 1) + text[begin + found.end(1) :]


def kernels_of(text: str) -> list[str]:
    found = cuda_kernels(parse_module(text), ())
    assert found is not None
    return [variant.source.text for variant in found.variants]


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_results_are_placed(name: str) -> None:
    """Unless segments lie one behind the other."""
    checked = checked_example(name)
    (spec,) = decode(Manifest, json.loads(compiled(checked)[MANIFEST])).shuffles
    if checked.reply is not None:
        assert spec.cuda is None
        assert spec.node is not None
        assert not spec.node.places_results
        return
    placed = isinstance(checked.target, DenseTarget)  # those of the packed examples do
    assert shuffle_of(checked).is_placed == placed
    assert spec.node is not None
    assert spec.node.places_results == placed
    computes = any(cast.normalise is not None for cast in checked.casts)
    assert (spec.cuda is None) == computes
    assert spec.cuda is None or spec.cuda.places_results == placed


def test_moe() -> None:
    shuffle = shuffle_of(moe())
    assert [given.name for given in shuffle.inputs] == ["topk_idx"]
    assert (shuffle.combine, shuffle.weighted, shuffle.fanout) == ("sum", True, 8)
    kernels = cuda_of(moe())
    assert [variant.file for variant in kernels.variants] == [
        "kernels/moe.cu",
        "kernels/moe.sm_80.cu",
    ]
    for variant, target in zip(kernels.variants, TARGETS, strict=True):
        launches = variant.source.launches
        kernels_of = ("plan", "dispatch", "staged", "refuse", "combine")
        assert set(launches) == {f"moe_{kernel}" for kernel in kernels_of}
        assert all(launch.shared_bytes <= target.shared_bytes for launch in launches.values())


@pytest.mark.parametrize(
    ("arch", "serving"),
    [
        ("sm_75", None),
        ("sm_80", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_90", "sm_90"),
        ("sm_100", "sm_90"),
    ],
)
def test_variant_of_a_gpu(arch: str, serving: str | None) -> None:
    variant = cuda_of(moe()).variant(arch)
    assert (variant and variant.target.arch) == serving


def test_the_header_shows_the_spec() -> None:
    head = text_of(moe()).split("#include")[0]
    assert "// moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)" in head
    assert "// moe.fsc:14: place e on rank by block" in head
    elsewhere = replace(moe().source_file, path="/some/where/moe.fsc")
    assert text_of(replace(moe(), source_file=elsewhere)) == text_of(moe())


def test_segments_that_lie_behind_others_have_places() -> None:
    (subscript,) = moe().source.subscripts
    behind = replace(subscript, start=BinaryOp("+", IndexRef("t"), Const(1)))
    moved = replace(moe(), source=replace(moe().source, subscripts=(behind,)))
    assert shuffle_of(moved).is_placed
    text = text_of(moved)
    assert "place[0] = (t_ + i64(1));" in text
    assert "combine<Shape::Source, InPlace>" in text
    assert "moe_staged" not in text, "planning says where rows lie"


def test_a_copy_moves_bits() -> None:
    checked = moe(num_topk=1)
    assert checked.combine is not None
    copied = replace(checked, combine=replace(checked.combine, kind="copy", weight=None))
    assert shuffle_of(copied).combine == "copy"
    assert "using Element = Raw;" in text_of(copied)
    assert "moe_combine" in cuda_of(copied).variants[0].source.launches


def test_a_compact_target() -> None:
    target = moe().target
    assert isinstance(target, PackedTarget)
    compact = replace(moe(), target=replace(target, compact=True))
    text = text_of(compact)
    assert "dispatch<CompactDispatch<Shape, Relation>>" in text
    assert "static constexpr bool compact = true;" in text
    expanded = cuda_of(moe()).variants[0].source.launches
    planning = cuda_of(compact).variants[0].source.launches["moe_plan"]
    assert planning.shared_bytes > expanded["moe_plan"].shared_bytes


def test_a_maximum() -> None:
    weighted = moe().combine
    assert weighted is not None
    largest = replace(moe(), combine=replace(weighted, kind="max", weight=None))
    assert "using Element = Largest<Bf16>;" in text_of(largest)


def test_several_source_dimensions() -> None:
    spec = """shuffle grid {
      index b : batch
      index t : tokens
      index e : 4
      segment token { x : bf16[8] }
      layout  rows[b, t] of token
      layout  by_key[e, s] of token packed(s)
      place   e on rank by cyclic
      route   r(b, t) -> e = input key : int32
      dispatch rows[b, t] -> by_key[r(b, t), *]
    }
    """
    (checked,) = check(SourceFile("grid.fsc", spec))
    shuffle = shuffle_of(checked)
    assert shuffle.extents == ("batch", "tokens")
    assert [field.elems for field in shuffle.fields] == [8]
    _, cell = text_of(checked).split("i64 source_cell(i64 source) const {")
    assert "const auto value_ = (b_ * call.extents[1]) + t_;\n    return value_;" in cell


@pytest.mark.parametrize(
    ("part", "word", "carries"),
    [(256, 16, True), (272, 16, True), (258, 16, False), (257, 8, False)],
)
def test_words_are_as_wide_as_where_segments_begin(part: int, word: int, carries: bool) -> None:
    """Cells have 8 bytes, and segments begin with every ``part``th of them."""
    spec = PARTS_OF_LINES.replace("part = 256", f"part = {part}")
    (checked,) = check(SourceFile("parts_of_lines.fsc", spec))
    (field,) = shuffle_of(checked).leaving
    assert field.begin_bytes == part * 8
    text = text_of(checked)
    assert f"unit_bytes(int field) {{ return {word}; }}" in text
    assert ("carried_bytes = 0" not in text) == carries
    assert ("tile_bytes = 0" in text) == (word == 16)


def test_backend_triton_writes_no_cuda() -> None:
    checked = moe(policy=replace(moe().policy, backend="triton"))
    lowered = compile_to_ir(checked)
    assert CompiledShuffle(checked, lowered.module, lowered.dumps).cuda == (
        "the spec says `backend triton`"
    )
