"""CheckedShuffle -> L0: the text of both examples, with every location."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuscoc.dialect.builder import build_module
from fuscoc.dialect.l0 import Dispatch, Shuffle
from fuscoc.dialect.mlir import ir
from fuscoc.lang.checked import CheckedShuffle, ExtentRef, Scalar
from fuscoc.pipeline import compile_to_ir
from tests import specs
from tests.dialect.support import check_golden, fresh_context, round_trips

GOLDEN = Path(__file__).parent / "golden"
SPECS = {
    "moe": specs.moe(),
    "moe_table": specs.moe(
        placement="table", capacity=4096, weighted=False, policy=replace(specs.POLICY, dedup=())
    ),
    "redistribute": specs.redistribute(),
    "vit_patches": specs.vit_patches(),
    "vit_patches_nchw": specs.vit_patches(channels_first=True),
}


def built(checked: CheckedShuffle) -> str:
    with fresh_context():
        module = build_module(checked)
        module.operation.verify()
        return str(module.operation.get_asm(enable_debug_info=True, pretty_debug_info=True))


@pytest.mark.parametrize("name", SPECS)
def test_golden(name: str) -> None:
    check_golden(GOLDEN / f"{name}.mlir", built(SPECS[name]))


@pytest.mark.parametrize("name", SPECS)
def test_round_trip(name: str) -> None:
    with fresh_context():
        text = str(build_module(SPECS[name]))
    assert round_trips(text)


def operations(op: Any) -> list[Any]:
    """``op`` and everything inside it."""
    inside = [inner for region in op.regions for block in region for inner in block]
    return [op, *(found for inner in inside for found in operations(inner.operation))]


@pytest.mark.parametrize("name", SPECS)
def test_every_operation_points_into_the_spec(name: str) -> None:
    checked = SPECS[name]
    lines = checked.source_file.text.split("\n")
    with fresh_context():
        for op in operations(build_module(checked).operation):
            location = op.location
            assert isinstance(location, ir.FileLineColLoc)
            assert location.filename == checked.source_file.path
            first = lines[location.start_line - 1][location.start_col - 1 :]
            assert re.match(r"[a-z]", first), f"{op.name} at '{first}'"


def test_locations_cover_their_text() -> None:
    checked = specs.vit_patches()
    with fresh_context():
        module = build_module(checked)
        dispatch = next(op for op in module.body if isinstance(op, Dispatch))
        location = dispatch.location
        line = checked.source_file.line_text(location.start_line)
    covered = line[location.start_col - 1 : location.end_col - 1]
    assert covered == "dispatch patches[n, i, j] -> sequence"


def test_paths_do_not_reach_the_ir() -> None:
    checked = specs.moe()
    elsewhere = replace(checked.source_file, path="/somewhere/else/moe.fsc")
    assert built(replace(checked, source_file=elsewhere)) == built(checked)


@pytest.mark.parametrize("name", ["token", "by_token", "by_expert", "tokens", "topk_idx"])
def test_a_shuffle_may_have_the_name_of_what_it_contains(name: str) -> None:
    checked = replace(SPECS["moe"], name=name)
    assert round_trips(compile_to_ir(checked).dumps["L3"])


@pytest.mark.parametrize("name", ["moe_dispatch", "moe_pack", "by_expert_place", "moe"])
def test_an_extent_may_have_the_name_of_what_fuscoc_makes(name: str) -> None:
    checked = SPECS["moe_table"]
    tokens = checked.domain[0].extent
    dumps = compile_to_ir(_rename(checked, tokens, ExtentRef(name))).dumps
    assert round_trips(dumps["L3"])
    assert f"@spec.{name}}}" in dumps["L0"]


def _rename(checked: CheckedShuffle, old: Scalar, new: ExtentRef) -> CheckedShuffle:
    domain = tuple(
        replace(index, extent=new) if index.extent == old else index for index in checked.domain
    )
    source = replace(checked.source, dims=(new,))
    return replace(checked, extents=(new.name,), domain=domain, source=source)


def test_one_scalar_is_lowered_once() -> None:
    with fresh_context():
        module = build_module(specs.vit_patches())
        shuffle = next(op for op in module.body if isinstance(op, Shuffle))
        seen = [
            (op.read("input"), tuple(map(str, op.operands)))
            for block in shuffle.relation
            for op in block
            if op.operation.name == "fsc.lookup"
        ]
    assert len(seen) == len(set(seen))
