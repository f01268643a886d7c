"""What ``describe`` says of a spec is what the compiler writes, and what the spec declares."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from rich.console import Console

import fuscoc
from fuscoc.testing import Spec, load_spec, run_tests, specs
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import plan_all
from fuscoc_runtime.scalar import Extent
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.testing.copy_shape import copy_shape, expected_runs, is_ragged

EXAMPLES = Path(__file__).parents[2] / "examples"


def compare(spec: Spec, artifact: Path) -> None:
    manifest = load_artifact(artifact).shuffle(spec.shuffle.name)
    assert manifest.declared == spec.shuffle.declared
    assert manifest.program == spec.shuffle.program
    assert manifest.into == spec.shuffle.into
    check_program(manifest)


def check_program(shuffle: ShuffleSpec) -> None:
    """What is executed, against what is declared, which no pass has touched."""
    declared, program = shuffle.declared, shuffle.program
    source = declared.source
    runs = tuple(expected_runs(field, source) for field in source.fields)
    assert tuple(map(copy_shape, program.runs)) == runs
    strides = {dim.src_stride for dim in runs[0].run_dims if isinstance(dim.src_stride, str)}
    assert len(program.relation.addresses) == 1 + len(strides)
    assert (program.relation.extents_kernel is not None) == is_ragged(declared)
    assert program.extents == declared.extents
    assert program.inputs == tuple(i.name for i in declared.inputs if i.role != "weight")
    fan_out = [index.extent for index in declared.fan_out]
    assert program.fanout == math.prod(each for each in fan_out if isinstance(each, int))
    others = [each for each in fan_out if not isinstance(each, int)]
    assert others == [Extent("ranks")] * program.every_rank
    assert program.target.kind == declared.target.kind
    if program.target.kind == "packed":
        for field in fields(program.target):
            assert getattr(program.target, field.name) == getattr(declared.target, field.name)
    weight = declared.combine and declared.combine.weight
    assert program.weight == (FieldSpec(weight.input, weight.dtype, ()) if weight else None)
    assert (program.combine is None) == (declared.combine is None)
    arriving = {field.name: field.shape for field in declared.fields}
    assert {field.name: field.shape for field in program.buffers["target"]} == arriving


@given(specs())
@settings(max_examples=at_night(30))
def test_generated_specs(tmp_path_factory: pytest.TempPathFactory, spec: Spec) -> None:
    compare(spec, fuscoc.compile(spec.text, tmp_path_factory.mktemp("artifact") / "generated"))


@pytest.mark.parametrize("name", ["moe", "vit_patches"])
def test_examples(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / f"{name}.fsc"
    compare(load_spec(path), fuscoc.compile(path, tmp_path / name))


STATIC = """
shuffle heads {
  const tokens = 12, heads = 12
  index t : tokens / ranks
  index h : heads
  segment head { x : bf16[3] }
  layout by_token[t, h] of head
  layout by_head[q, g] of head dense(tokens, heads / ranks)
  dispatch by_token[t, h] -> by_head[rank * (tokens / ranks) + t, h % (heads / ranks)]
    on h / (heads / ranks)
  combine reverse
}
"""


def test_relations_without_data(tmp_path: Path) -> None:
    path = tmp_path / "heads.fsc"
    path.write_text(STATIC)
    assert run_tests(path, examples=20, seed=1, console=Console(quiet=True)).passed


def test_one_of_several_shuffles() -> None:
    text = STATIC + STATIC.replace("shuffle heads", "shuffle again")
    assert load_spec(text, "again").shuffle.name == "again"
    with pytest.raises(ValueError, match="heads, again: which of them"):
        load_spec(text)
    with pytest.raises(ValueError, match="there is no `other`"):
        load_spec(text, "other")
    assert json.dumps(dict(load_spec(text, "again", tokens=24).shuffle.declared.constants)) == (
        '{"tokens": 24, "heads": 12}'
    )


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"schedule": "nope"}, "`schedule` is 'nope', and must be one of pairwise, spread-out,"),
        ({"forwarder": None}, "`forwarder` is None, and must be one of static, greedy, lpt,"),
        ({"slice_bytes": 0}, "`slice_bytes` is 0, and must be a number of bytes from 1 on"),
        ({"after": ()}, "`after` is no rule of the network hop; there are forwarder, schedule,"),
    ],
)
def test_rules_have_to_exist(rules: dict[str, Any], says: str) -> None:
    spec = load_spec(EXAMPLES / "moe.fsc")
    with pytest.raises(OptionError, match=re.escape(says)):
        spec.with_rules(**rules)


def test_stages_have_to_exist() -> None:
    spec = load_spec(EXAMPLES / "moe.fsc")
    with pytest.raises(OptionError, match="`schedule` is 'nope'"):
        plan_all(spec.shuffle, Topology(1, 1), [], schedule="nope")
