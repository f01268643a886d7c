"""What ``describe`` says of a spec is what the compiler writes into the manifest."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from rich.console import Console

import fuscoc
from fuscoc.testing import Spec, load_spec, run_tests, specs
from fuscoc_runtime.artifact import load_artifact
from fuscoc_runtime.schema import ShuffleSpec

EXAMPLES = Path(__file__).parents[2] / "examples"


def compare(spec: Spec, artifact: Path) -> None:
    manifest = load_artifact(artifact).shuffle(spec.shuffle.name)
    for field in fields(ShuffleSpec):
        wanted, found = getattr(spec.shuffle, field.name), getattr(manifest, field.name)
        if field.name == "runs":
            found = tuple(replace(each, unit_bytes=1, copy_dtype="i8") for each in found)
        if field.name not in COMPILED:
            assert found == wanted, field.name


@given(specs())
@settings(max_examples=30)
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
