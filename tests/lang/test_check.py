"""What the checker makes of good specs, against the data that they were written from."""

from __future__ import annotations

from inspect import Parameter, signature
from pathlib import Path

import pytest
from hypothesis import given

from fuscoc.diagnostics import CompileError
from fuscoc.lang.check import check, check_file
from fuscoc.lang.checked import (
    BinaryOp,
    CheckedShuffle,
    Const,
    DenseTarget,
    ExtentRef,
    IndexRef,
    Load,
    PackedTarget,
    Policy,
)
from fuscoc.lang.usage import PARAMETERS
from fuscoc.source import SourceFile
from fuscoc_runtime import Shuffle
from tests.lang.specs import KeyedSpec, TiledSpec, keyed_specs, tiled_specs
from tests.specs import redistribute

EXAMPLES = Path(__file__).parents[2] / "examples"
VARIADIC = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
T, K, N = IndexRef("t"), IndexRef("k"), IndexRef("n")


def checked(text: str, **overrides: int) -> CheckedShuffle:
    (shuffle,) = check(SourceFile("test.fsc", text), overrides)
    return shuffle


def codes(text: str, **overrides: int) -> list[str]:
    with pytest.raises(CompileError) as caught:
        check(SourceFile("test.fsc", text), overrides)
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


def example(name: str, **overrides: int) -> CheckedShuffle:
    return checked((EXAMPLES / name).read_text(), **overrides)


def test_examples_have_no_warnings() -> None:
    for path in EXAMPLES.glob("*.fsc"):
        assert check_file(SourceFile(str(path), path.read_text())).warnings == ()


def test_moe() -> None:
    moe = example("moe.fsc")
    assert moe.constants == (("hidden", 7168), ("experts", 256), ("topk", 8))
    assert moe.extents == ("tokens",)
    assert [(i.name, i.dtype, i.shape, i.role) for i in moe.inputs] == [
        ("topk_idx", "i64", (ExtentRef("tokens"), Const(8)), "route"),
        ("topk_weights", "f32", (ExtentRef("tokens"), Const(8)), "weight"),
    ]
    assert [(i.name, i.extent) for i in moe.domain] == [("t", ExtentRef("tokens")), ("k", Const(8))]
    assert moe.num_source_dims == 1
    assert [(f.name, f.dtype, f.shape) for f in moe.fields] == [("x", "bf16", (7168,))]
    assert moe.source.fields == moe.fields
    assert moe.source.dims == (ExtentRef("tokens"),)
    assert [(s.start, s.length) for s in moe.source.subscripts] == [(T, None)]
    assert isinstance(moe.target, PackedTarget)
    assert moe.target.key == Load("topk_idx", (T, K))
    assert (moe.target.num_keys, moe.target.align, moe.target.capacity) == (256, 128, None)
    assert (moe.target.placement.kind, moe.target.placement.table) == ("block", None)
    assert moe.combine is not None
    assert moe.combine.kind == "sum"
    assert moe.combine.weight is not None
    assert (moe.combine.weight.input, moe.combine.weight.dtype) == ("topk_weights", "f32")
    assert moe.policy == Policy(("node", "rank"), "none", "pairwise", 8 * 2**20, "auto")


def test_redistribute() -> None:
    """What follows from the rank alone: nothing is given with a call."""
    found = example("redistribute.fsc")
    wanted = redistribute()
    assert (found.extents, found.inputs, found.builtins) == ((), (), ("rank", "ranks"))
    assert [(i.name, i.extent) for i in found.domain] == [(i.name, i.extent) for i in wanted.domain]
    assert found.source.dims == wanted.source.dims
    assert isinstance(found.target, DenseTarget)
    assert isinstance(wanted.target, DenseTarget)
    assert (found.target.slot, found.target.rank) == (wanted.target.slot, wanted.target.rank)
    assert found.target.length == wanted.target.length


def test_slots_of_several_dimensions_are_row_major() -> None:
    text = """
    shuffle grid {
      index t : tokens
      index h : 8
      segment one { x : f32 }
      layout source[t, h] of one
      layout target[a, b, c] of one dense(tokens, 2, 4)
      route to(t) -> (rank, row) = input to : int64[2]
      dispatch source[t, h] -> target[to(t).row, h / 4 % 2, h % 4] on to(t).rank
    }"""
    target = checked(text).target
    assert isinstance(target, DenseTarget)
    row, h = Load("to", (T, Const(1))), IndexRef("h")
    middle = BinaryOp("%", BinaryOp("/", h, Const(4)), Const(2))
    slot = BinaryOp("+", BinaryOp("*", row, Const(2)), middle)
    assert target.slot == BinaryOp("+", BinaryOp("*", slot, Const(4)), BinaryOp("%", h, Const(4)))
    tokens = ExtentRef("tokens")
    assert target.length == BinaryOp("*", BinaryOp("*", tokens, Const(2)), Const(4))


def test_vit_patches() -> None:
    vit = example("vit_patches.fsc")
    height, width = Load("height", (N,)), Load("width", (N,))
    assert vit.extents == ("images", "length")
    assert [(i.name, i.dtype, i.shape, i.role) for i in vit.inputs] == [
        ("height", "i64", (ExtentRef("images"),), "extent"),
        ("width", "i64", (ExtentRef("images"),), "extent"),
        ("packing", "i64", (ExtentRef("images"), Const(2)), "route"),
    ]
    assert [index.extent for index in vit.domain] == [
        ExtentRef("images"),
        BinaryOp("/", height, Const(14)),
        BinaryOp("/", width, Const(14)),
    ]
    assert vit.num_source_dims == 3
    assert [(f.name, f.dtype, f.shape) for f in vit.fields] == [("pixels", "u8", (14, 14, 3))]
    assert [(f.name, f.dtype, f.shape) for f in vit.source.fields] == [("pixels", "u8", (3,))]
    assert vit.source.dims == (ExtentRef("images"), height, width)
    assert [(s.start, s.length) for s in vit.source.subscripts] == [
        (N, None),
        (BinaryOp("*", IndexRef("i"), Const(14)), 14),
        (BinaryOp("*", IndexRef("j"), Const(14)), 14),
    ]
    offset = Load("packing", (N, Const(1)))
    row = BinaryOp("/", BinaryOp("*", IndexRef("i"), width), Const(14))
    assert isinstance(vit.target, DenseTarget)
    assert vit.target.slot == BinaryOp("+", BinaryOp("+", offset, row), IndexRef("j"))
    assert vit.target.rank == Load("packing", (N, Const(0)))
    assert vit.target.length == ExtentRef("length")
    assert vit.combine is not None
    assert (vit.combine.kind, vit.combine.weight) == ("copy", None)


@given(keyed_specs)
def test_keyed_spec_means_what_it_was_written_from(spec: KeyedSpec) -> None:
    shuffle = checked(spec.text)
    outer = [f"o{i}" for i in range(spec.num_outer)]
    assert [index.name for index in shuffle.domain] == [*outer, "k"]
    assert shuffle.domain[-1].extent == Const(spec.fan_out)
    assert shuffle.num_source_dims == spec.num_outer
    assert shuffle.extents == tuple(f"extent_{name}" for name in outer)
    assert [(f.dtype, list(f.shape)) for f in shuffle.fields] == spec.fields
    assert shuffle.source.fields == shuffle.fields
    target = shuffle.target
    assert isinstance(target, PackedTarget)
    assert target.key == Load("keys", tuple(IndexRef(index.name) for index in shuffle.domain))
    assert target.num_keys == spec.num_keys
    assert (target.align, target.capacity) == (spec.align or 1, spec.capacity)
    assert target.placement.kind == spec.placement
    tables = [i.shape for i in shuffle.inputs if i.role == "placement"]
    assert tables == ([(Const(spec.num_keys),)] if spec.placement == "table" else [])


@given(tiled_specs)
def test_tiled_spec_means_what_it_was_written_from(spec: TiledSpec) -> None:
    shuffle = checked(spec.text)
    assert shuffle.fields[0].shape == (*spec.tile, spec.channels)
    assert shuffle.source.fields[0].shape == (spec.channels,)
    assert shuffle.source.fields[0].name == "pixels"
    assert [s.length for s in shuffle.source.subscripts] == [None, *spec.tile]
    roles = [i.role for i in shuffle.inputs]
    assert roles == (["route"] if spec.constant_image else ["extent", "extent", "route"])
    assert shuffle.inputs[-1].dtype == "i32"
    assert isinstance(shuffle.target, DenseTarget)
    assert shuffle.target.length == Const(4096)
    assert shuffle.combine is not None
    assert shuffle.combine.kind == "copy"


PLAIN = """
shuffle plain {{
  index t : tokens
  segment item {{ x : {dtype}[8] }}
  layout source[t] of item
  layout target[s] of item dense(length{clauses})
  route to(t) -> (rank, slot) = input to : int64[2]
  dispatch source[t] -> target[to(t).slot] on to(t).rank {options}
  {combine}
}}
"""


def plain(**parts: str) -> str:
    return PLAIN.format(**({"dtype": "f32", "clauses": "", "options": "", "combine": ""} | parts))


def test_run_time_extents_are_introduced_by_indices_alone() -> None:
    assert codes(plain()) == ["FSC011"]  # `length` is no index's extent
    text = plain().replace("dense(length)", "").replace("index t", "index s : length index t")
    assert checked(text).extents == ("length", "tokens")


def fixed(**parts: str) -> str:
    return plain(**parts).replace("dense(length)", "dense(64)")


def test_an_input_may_be_called_like_its_route() -> None:
    assert [i.name for i in checked(fixed()).inputs] == ["to"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", Policy(("node", "rank"), "none", "pairwise", 8 * 2**20, "auto")),
        ("dedup(none)", Policy((), "none", "pairwise", 8 * 2**20, "auto")),
        ("dedup(rank)", Policy(("rank",), "none", "pairwise", 8 * 2**20, "auto")),
        (
            "slice 3*64 KiB dedup(rank, node) balance auto schedule auto backend auto",
            Policy(("node", "rank"), "auto", "auto", 3 * 64 * 2**10, "auto"),
        ),
        ("balance static", Policy(("node", "rank"), "static", "pairwise", 8 * 2**20, "auto")),
        ("balance split", Policy(("node", "rank"), "split", "pairwise", 8 * 2**20, "auto")),
    ],
)
def test_options(options: str, expected: Policy) -> None:
    assert checked(fixed(options=options)).policy == expected


@pytest.mark.parametrize("alias", ["bf16", "bfloat16"])
def test_element_types_are_normalised(alias: str) -> None:
    assert checked(fixed(dtype=alias)).fields[0].dtype == "bf16"


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        ("combine reverse", "copy"),
        ("combine target[to(t).slot] -> source[t]", "copy"),
        ("combine reverse reduce sum", "sum"),
        ("combine target[ to(t) . slot ] -> source[t] reduce sum", "sum"),
    ],
)
def test_ways_to_say_combine(combine: str, expected: str) -> None:
    checked_combine = checked(fixed(combine=combine)).combine
    assert checked_combine is not None
    assert (checked_combine.kind, checked_combine.weight) == (expected, None)


def test_fan_out_follows_the_order_of_declaration() -> None:
    text = """
    shuffle fan {
      index b : 2   index a : 3   index t : tokens   index e : 4
      segment item { x : f32 }
      layout source[t] of item
      layout target[e, s] of item packed(s)
      place e on rank by cyclic
      route r(a, t, b) -> e = input keys : i32
      dispatch source[t] -> target[r(a, t, b), *]
    }"""
    assert [index.name for index in checked(text).domain] == ["t", "b", "a"]


def test_an_expression_is_a_number_of_any_index() -> None:
    """Where a plain index would have to be the one that was declared."""
    text = """
    shuffle numbers {
      index n : images   index i : 4   index m : images   index q : 4
      segment row { x : u8[2, 8] }
      layout image[n, y, x] of u8 dense(8, 8)
      view rows[m, q] = image[m + 0, 2*q .. 2*q + 2, 0 .. 8]
      layout target[s, i] of row dense(64, 4)
      route to(n, i) -> (rank, slot) = input to : int64[2]
      dispatch rows[m, q] -> target[to(m + 0, q + 0).slot, q + 0] on to(m + 0, 3 - q).rank
    }"""
    shuffle = checked(text)
    assert [index.name for index in shuffle.domain] == ["m", "q"]
    starts = [subscript.start for subscript in shuffle.source.subscripts]
    m = BinaryOp("+", IndexRef("m"), Const(0))
    assert starts == [m, BinaryOp("*", Const(2), IndexRef("q")), Const(0)]
    assert codes(text.replace("image[m + 0", "image[m")) == ["FSC041"]
    assert codes(text.replace("to(m + 0, q + 0)", "to(m + 0, q)")) == ["FSC041"]
    assert codes(text.replace("q + 0] on", "q] on")) == ["FSC041"]


def test_dimensions_that_a_layout_names_take_any_index() -> None:
    """So a transpose can be said."""
    text = """
    shuffle transpose {
      index t : 8   index h : 8
      segment one { x : f32 }
      layout source[t, h] of one
      layout target[x, y] of one dense(8, 8)
      dispatch source[t, h] -> target[h, t] on rank
    }"""
    target = checked(text).target
    assert isinstance(target, DenseTarget)
    row = BinaryOp("*", IndexRef("h"), Const(8))
    assert target.slot == BinaryOp("+", row, IndexRef("t"))


def test_the_index_of_the_keys_fans_out_unless_a_route_gives_it() -> None:
    text = """
    shuffle all {
      index t : tokens   index e : 8
      segment one { x : f32 }
      layout source[t] of one
      layout target[e, s] of one packed(s)
      place e on rank by block
      ROUTE
      dispatch source[t] -> target[e, *]
    }"""
    shuffle = checked(text.replace("ROUTE", ""))
    assert [index.name for index in shuffle.domain] == ["t", "e"]
    assert codes(text.replace("ROUTE", "route r(t) -> e = input keys : int64")) == ["FSC041"]


def test_overrides_replace_constants_before_they_are_used() -> None:
    moe = example("moe.fsc", hidden=64, topk=3)
    assert dict(moe.constants) == {"hidden": 64, "experts": 256, "topk": 3}
    assert moe.fields[0].shape == (64,)
    assert moe.domain[1].extent == Const(3)


def test_an_override_names_a_constant() -> None:
    assert codes((EXAMPLES / "moe.fsc").read_text(), hiden=64) == ["FSC014"]


def test_several_shuffles_in_one_file() -> None:
    text = fixed() + fixed().replace("shuffle plain", "shuffle other")
    names = [shuffle.name for shuffle in check(SourceFile("two.fsc", text))]
    assert names == ["plain", "other"]
    assert codes(fixed() + fixed()) == ["FSC010"]


def test_errors_of_all_shuffles_are_reported() -> None:
    bad = fixed(options="balance nothing")
    text = bad + bad.replace("shuffle plain", "shuffle other")
    assert codes(text) == ["FSC055", "FSC055"]


def test_keywords_that_start_no_declaration_are_names_too() -> None:
    text = """
    shuffle exact {
      const max = 4, cyclic = 2, on = 3
      index table : tokens   index by : max * cyclic + on - 1
      segment of { input : f32[cyclic], packed : i8[on] }
      layout dense[table] of of
      layout align[by, slice] of of packed(slice) align max
      place by on rank by block
      route reverse(table) -> by = input sum : int64
      dispatch dense[table] -> align[reverse(table), *]
    }"""
    assert checked(text).target.layout == "align"


def test_parameters_of_the_runtime_are_known() -> None:
    for call, names in PARAMETERS.items():
        found = signature(getattr(Shuffle, call)).parameters.values()
        assert names == {each.name for each in found if each.kind not in VARIADIC}
