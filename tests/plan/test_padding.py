"""How many slots keys take: one rule for integers, arrays and tensors, against counting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.lang.padding import PADDINGS as WORDS
from fuscoc.source import SourceFile
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.padding import PADDINGS, blocks, most_slots
from tests.engine import specs


def target(align: int) -> PackedSlots:
    """Of the shuffle of ``specs.routed``."""
    artifact: Artifact = specs.artifact(specs.routed("f32", align=align))
    found = artifact.shuffle(None).program.target
    assert isinstance(found, PackedSlots)
    return found


def checked(text: str) -> CheckedShuffle:
    [found] = check(SourceFile("spec.fsc", text))
    return found


FOUR = target(4)


def test_every_word_has_a_rule() -> None:
    assert WORDS.keys() == PADDINGS.keys()


@given(st.integers(1, 300), st.lists(st.integers(0, 2000), min_size=1))
def test_fewest(align: int, points: list[int]) -> None:
    """As many blocks as have a first slot below the number of points."""
    wanted = [len(range(0, each, align)) for each in points]
    aligned = replace(FOUR, align=align, most_padding=WORDS["fewest"](align))
    assert [blocks(aligned, each) for each in points] == wanted
    assert blocks(aligned, np.array(points)).tolist() == wanted
    assert blocks(aligned, torch.tensor(points)).tolist() == wanted
    slots = sum(wanted) * align
    assert slots <= most_slots(aligned, sum(points), len(points))


@pytest.mark.parametrize(("points", "keys", "most"), [(10, 3, 19), (2, 5, 8), (0, 7, 0)])
def test_the_bound_is_reached(points: int, keys: int, most: int) -> None:
    """One point more than fills blocks in every key, as far as there are points."""
    assert most_slots(FOUR, points, keys) == most


def test_the_rule_may_be_named() -> None:
    said = checked(specs.routed(align=16).replace("align 16", "align fewest(4 * 4)"))
    plain = checked(specs.routed(align=16))
    assert (said.target.align, said.target.padding) == (16, "fewest")
    assert plain.target.padding == "fewest"


def test_a_rule_that_the_runtime_does_not_know() -> None:
    with pytest.raises(ValueError, match="'twice' is none of 'fewest'"):
        replace(FOUR, padding="twice")
