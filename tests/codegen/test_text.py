"""The printed text: goldens of the examples, its form, its names, its parentheses."""

from __future__ import annotations

import ast
import inspect
import keyword
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.codegen.arguments import RESERVED
from fuscoc.codegen.triton import triton_module
from fuscoc.codegen.triton_expressions import MAX_COLUMNS, expression, wrapped
from fuscoc.dialect.mlir import arith, ir
from fuscoc.lang.check import check_file
from fuscoc.lang.checked import CheckedShuffle, Load
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from tests.codegen.memory import int64s
from tests.codegen.specs import SPECS, built_from, built_of
from tests.dialect.support import check_golden, fresh_context
from tests.drawn import at_night
from tests.specs import moe, moe_fp8, rebalanced, redistribute, vit_patches

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = {
    "moe": moe(),
    "moe_fp8": moe_fp8(),
    "moe_rebalanced": moe(policy=rebalanced()),
    "redistribute": redistribute(),
    "vit_patches": vit_patches(),
}


def text_of(checked: CheckedShuffle) -> str:
    return triton_module(compile_to_ir(checked).module, checked.source_file)


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name: str) -> None:
    check_golden(GOLDEN / f"{name}.py", text_of(EXAMPLES[name]))


@pytest.mark.parametrize("name", SPECS)
def test_form(name: str) -> None:
    text = text_of(SPECS[name]())
    assert text == text_of(SPECS[name]())
    code = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert max(map(len, code)) <= MAX_COLUMNS
    assert text.endswith("\n")
    assert not any(line.endswith(" ") for line in text.splitlines())
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "tl"
    }
    # Builtins only: Triton's own jit functions would keep the mode that they were defined in.
    assert called <= {
        *("arange", "atomic_add", "atomic_cas", "debug_barrier", "full", "load", "minimum"),
        *("multiple_of", "num_programs", "pointer_type", "program_id", "store", "where"),
    }


@pytest.mark.parametrize("name", SPECS)
def test_a_barrier_stands_between_stores_and_signals(name: str) -> None:
    """Whether or not Triton adds one itself; ``test_compile`` counts them in the PTX."""
    kernels = text_of(SPECS[name]()).split("@triton.jit")
    signalling = [kernel for kernel in kernels if "release" in kernel]
    assert len(signalling) == (6 if name == "moe_rebalanced" else 4)
    for kernel in signalling:
        stored, barrier, released = map(
            kernel.rindex, ("tl.store(", "tl.debug_barrier()", "release")
        )
        assert stored < barrier < released


def test_kernels_name_the_lines_they_come_from() -> None:
    text = text_of(moe())
    lines = moe().source_file.text.splitlines()
    (dispatch,) = [i for i, line in enumerate(lines, 1) if line.strip().startswith("dispatch")]
    assert f"# moe.fsc:{dispatch}: dispatch by_token[t] -> by_expert[r(t, k), *]" in text
    assert "``moe`` in moe.fsc" in text


def test_all_that_runs_is_in_the_text_of_the_module() -> None:
    """Parsed IR has neither names nor lines; its kernels do the same."""
    checked = SPECS["vit"]()
    lowered = compile_to_ir(checked)
    with fresh_context():
        parsed = ir.Module.parse(str(lowered.module))
    for module in (lowered.module, parsed):
        kernels = built_from(checked, module).kernels
        slots = int64s([0, 0])
        kernels.launch(
            "vit_patches_relation",
            num_points=2,
            num_ranks=2,
            width=int64s([4]),
            packing=int64s([1, 5]),
            outer=int64s([0, 0]),
            point_offset=int64s([0, 2]),
            cell_offset=int64s([0]),
            **{name: int64s([0, 0]) for name in ("source", "src_offset", "src_stride0", "rank")},
            slot=slots,
        )
        assert slots.tolist() == [5, 6]
        source, row = np.arange(24, dtype=np.uint8), np.zeros(12, np.uint8)
        kernels.launch(
            "vit_patches_pack",
            num_descriptors=1,
            src_offset=int64s([2]),
            src_stride0=int64s([4]),
            dst_row=int64s([0]),
            pixels_src=source,
            pixels_dst=row,
        )
        assert row.tolist() == [*range(6, 12), *range(18, 24)]


def renamed(new: str) -> CheckedShuffle:
    """The moe shuffle with another name for its routing input."""
    checked = moe(hidden=8, num_experts=4, num_topk=1)
    (route, *rest) = checked.inputs
    key = checked.target.key  # type: ignore[union-attr]
    assert isinstance(key, Load)
    return replace(
        checked,
        inputs=(replace(route, name=new), *rest),
        target=replace(checked.target, key=replace(key, input=new)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "name", ["rank", "source", "key", "tl", "triton", "range", "lambda", "num_points", "lane", "t"]
)
def test_inputs_may_have_any_name(name: str) -> None:
    built = built_of(renamed(name))
    parameters = built.kernels.module.moe_relation.arg_names
    own = "num_points num_ranks key_to_rank source src_offset rank key"
    (given,) = set(parameters) - set(own.split())
    assert given.rstrip("_") == name
    found = {column: int64s([-9, -9]) for column in ("source", "src_offset", "rank", "key")}
    built.kernels.launch(
        "moe_relation",
        num_points=2,
        num_ranks=2,
        key_to_rank=int64s([0, 0, 1, 1]),
        **{given: int64s([3, 0])},
        **found,
    )
    assert found["rank"].tolist() == [1, 0]


NASTY = (
    *keyword.kwlist,
    *("tl", "triton", "range", "grid", "warmup", "debug", "options", "params", "backend"),
    *("num_warps", "specialize_impl", "print", "int", "i", "at", "src", "count", "live"),
    *("lane", "point", "key", "x", "x_src", "x_sum", "x_1", "num_peers", "abort", "late", "polls"),
    *("in_vain", "stop"),
    *("weights", "__debug__", "_", "__init__", "triton_", "None_"),
)


def nasty(names: Sequence[str], packed: bool) -> CheckedShuffle:
    """A shuffle whose indices, extents, fields and input have these names."""
    a, b, s, extent, x, y, given, *_ = names
    text = (
        f"shuffle {given} {{ index {a} : {extent}  index {b} : 2  "
        f"segment each {{ {x} : f32[2], {y} : i64 }}  layout source[{a}] of each  "
    )
    if packed:
        text += (
            f"index keys : 4  layout target[keys, {s}] of each packed({s})  "
            f"place keys on rank by block  route where({a}, {b}) -> keys = input {given} : i64  "
            f"dispatch source[{a}] -> target[where({a}, {b}), *] }}"
        )
    else:
        text += (
            f"index {s} : number  layout target[{s}] of each  "
            f"route where({a}) -> (rank_, slot) = input {given} : i64[2]  "
            f"dispatch source[{a}] -> target[where({a}).slot] on where({a}).rank_  "
            f"combine reverse }}"
        )
    return check_file(SourceFile("nasty.fsc", text)).shuffles[0]


@settings(max_examples=at_night(30))
@given(
    names=st.lists(st.sampled_from(NASTY), min_size=7, max_size=7, unique=True),
    packed=st.booleans(),
)
def test_any_name_gives_python(names: list[str], packed: bool) -> None:
    text = text_of(nasty(names, packed))
    compile(text, "nasty.py", "exec")  # parses, and assigns nothing that Python forbids
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            assigned = {
                node.id
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            assert not (assigned | {each.arg for each in function.args.args}) & RESERVED


@pytest.mark.parametrize("rotation", range(0, 70, 7))
def test_kernels_run_under_any_name(rotation: int) -> None:
    names = [*NASTY[rotation:], *NASTY[:rotation]][:7]
    checked = nasty(names, packed=True)
    kernels = built_of(checked).kernels
    name = f"{checked.name}_relation"
    own = "num_points num_ranks key_to_rank source src_offset rank key"
    (given,) = set(getattr(kernels.module, name).arg_names) - set(own.split())
    found = {column: int64s([-9] * 4) for column in ("source", "src_offset", "rank", "key")}
    kernels.launch(
        name,
        num_points=4,
        num_ranks=2,
        key_to_rank=int64s([0, 0, 1, 1]),
        **{given: int64s([3, 0, -1, 2])},
        **found,
    )
    assert found["source"].tolist() == [0, 0, 1, 1]
    assert found["rank"].tolist() == [1, 0, -1, 1]


def test_reserved_are_the_names_that_triton_launches_with() -> None:
    launch = inspect.signature(triton.runtime.JITFunction.run).parameters.values()
    assert {each.name for each in launch if each.kind != each.VAR_KEYWORD} - {"args"} <= RESERVED
    assigned = re.findall(r'kwargs\["(\w+)"\] =', inspect.getsource(triton.runtime.JITFunction.run))
    assert "debug" in assigned
    assert set(assigned) <= RESERVED


OPERATIONS = {
    "Add": arith.addi,
    "Sub": arith.subi,
    "Mult": arith.muli,
    "FloorDiv": arith.divsi,
    "Mod": arith.remsi,
}
TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.tuples(st.sampled_from(list(OPERATIONS)), inner, inner),
    max_leaves=12,
)


@given(tree=TREES)
def test_parentheses(tree: Any) -> None:
    """Python reads the printed arithmetic as the tree that it is."""

    def build(tree: Any) -> Any:
        if isinstance(tree, int):
            return arith.constant(ir.IntegerType.get_signless(64), tree)
        return OPERATIONS[tree[0]](build(tree[1]), build(tree[2]))

    def parsed(node: Any) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        return type(node.op).__name__, parsed(node.left), parsed(node.right)

    with fresh_context():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            value = build(tree)

        def text(value: Any) -> Any:
            return expression(value.owner.opview, text)

        printed = text(value).text
    assert parsed(ast.parse(printed, mode="eval").body) == tree


def test_long_calls_are_wrapped() -> None:
    mask = "f(1, 2)" + " & live" * 12
    assert wrapped("", f"x = tl.load(a + (b, c)[0], mask={mask}, other=0)") == [
        "x = tl.load(",
        "    a + (b, c)[0],",
        f"    mask={mask},",
        "    other=0,",
        ")",
    ]


@pytest.mark.parametrize("long", ["x = (a{0}) * (b{0})", "x = f(a{0}) + f(b{0})", "x = (a{0})"])
def test_long_arithmetic_is_not(long: str) -> None:
    """A comma in its parentheses would make tuples of them."""
    text = long.format(" + t" * 25)
    assert wrapped("    ", text) == [f"    {text}"]
