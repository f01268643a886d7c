"""Options that make no sense are refused by name, before any rank is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fuscoc
from fuscoc import fused_shuffle
from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import InputError, OptionError
from tests.engine import specs

ROUTED = specs.routed("f32", keys=4, topk=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_sources": -1}, "`max_sources` is -1; it must be a whole number of 0 or more"),
        ({"max_sources": 8.5}, "`max_sources` is 8.5; it must be a whole number"),
        ({"max_sources": "8"}, "`max_sources` is '8'; it must be a whole number"),
        ({"max_sources": True}, "`max_sources` is True; it must be a whole number"),
        ({"capacity": 0}, "`capacity` is 0; it must be a whole number of 1 or more"),
        ({"num_handles": 0}, "`num_handles` is 0; it must be"),
        ({"num_handles": None}, "`num_handles` is None; it must be"),
        ({"num_sms": -1}, "`num_sms` is -1; it must be"),
        ({"num_programs": 0}, "`num_programs` is 0; it must be"),
        ({"slice_bytes": 0}, "`slice_bytes` is 0; it must be"),
        ({"timeout": -1}, "`timeout` is -1; it must be a positive number"),
        ({"timeout": float("nan")}, "`timeout` is nan; it must be a positive number"),
        ({"nic_bandwidth": 0.0}, "`nic_bandwidth` is 0.0; it must be a positive number"),
        ({"device": "tpu0"}, "`device` is tpu0; it must be cpu or cuda"),
        ({"device": "meta"}, "`device` is meta; it must be cpu or cuda"),
    ],
)
def test_an_option_that_makes_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        Shuffle(specs.artifact(ROUTED), **options)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["64", 64.0, None, [64]])
def test_constants_are_whole_numbers(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the constant `hidden` is .*, no whole number"):
        fuscoc.compile("examples/moe.fsc", tmp_path / "moe", hidden=value)
    assert not (tmp_path / "moe").exists()


def test_constants_may_be_those_of_numpy(tmp_path: Path) -> None:
    artifact = fuscoc.compile("examples/moe.fsc", tmp_path / "moe", hidden=np.int64(64))
    assert Shuffle(artifact).spec.constants["hidden"] == 64


def test_the_decorator_needs_a_spec() -> None:
    with pytest.raises(TypeError, match="fused_shuffle takes a spec first"):
        fused_shuffle(lambda rows: rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_combine_needs_rows(options: dict[str, int]) -> None:
    with Shuffle(specs.artifact(ROUTED), **options) as shuffle:
        given = {"x": torch.zeros(5, 24), "idx": torch.zeros(5, 2, dtype=torch.int64)}
        _, handle = shuffle.dispatch(**given, weights=torch.ones(5, 2))
        with pytest.raises(InputError, match="is a NoneType; it must be a tensor"):
            shuffle.combine(None, handle)  # type: ignore[arg-type]
