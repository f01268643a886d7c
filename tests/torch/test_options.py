"""Options that make no sense are refused by name, before any rank is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import fuscoc
from fuscoc import fused_shuffle
from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import ClosedError, InputError, OptionError, TopologyError
from tests.engine import specs

ROUTED = specs.routed("f32", keys=4, topk=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_sources": -1}, "`max_sources` is -1; it must be a whole number of 0 or more"),
        ({"max_sources": 8.5}, "`max_sources` is 8.5; it must be a whole number"),
        ({"max_sources": "8"}, "`max_sources` is '8'; it must be a whole number"),
        ({"max_sources": True}, "`max_sources` is True; it must be a whole number"),
        (
            {"max_sources": 2**30},
            "is 1073741824: a rank might need 2147483660 slots; kernels",
        ),
        ({"max_sources": 2**27}, "`capacity` is 268435468, by default all that can be needed; it"),
        ({"max_sources": 2**28, "capacity": 2**27}, "`capacity` is 134217728, by default"),
        ({"capacity": 0}, "`capacity` is 0; it must be a whole number of 1 or more"),
        ({"num_handles": 0}, "`num_handles` is 0; it must be"),
        ({"num_handles": None}, "`num_handles` is None; it must be"),
        ({"num_sms": -1}, "`num_sms` is -1; it must be a whole number of 1 or more, or 'overlap'"),
        ({"slice_bytes": 0}, "`slice_bytes` is 0; it must be"),
        ({"timeout": -1}, "`timeout` is -1; it must be a positive number"),
        ({"timeout": float("nan")}, "`timeout` is nan; it must be a positive number"),
        ({"timeout": 1e300}, "`timeout` is 1e+300; it must be 100000000 seconds or less"),
        ({"nic_bandwidth": 0.0}, "`nic_bandwidth` is 0.0; it must be a positive number"),
        (
            {"topology": (1, 1)},
            "`topology` is (1, 1); it must be a Topology, or text such as '2x4'",
        ),
        ({"pool": 3}, "`pool` is 3; it must be a Pool"),
        ({"device": "tpu0"}, "`device` is tpu0; it must be cpu or cuda"),
        ({"device": "meta"}, "`device` is meta; it must be cpu or cuda"),
    ],
)
def test_an_option_that_makes_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        Shuffle(specs.artifact(ROUTED), **options)
    assert said in str(caught.value)


def test_a_topology_of_several_ranks_without_a_job() -> None:
    with pytest.raises(TopologyError, match="1x2 is not for 1 rank, and this process belongs to"):
        Shuffle(specs.artifact(ROUTED), topology="1x2")


def test_a_group_of_a_job_that_has_ended() -> None:
    """Its rank would else be taken for a job of one."""
    with pytest.raises(ClosedError, match="the process group is closed"):
        Shuffle(specs.artifact(ROUTED), group=dist.ProcessGroup(0, 2))


@pytest.mark.parametrize("value", ["64", 64.0, None, [64], True])
def test_constants_are_whole_numbers(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the constant `hidden` is .*, no whole number"):
        fuscoc.compile("examples/moe.fsc", tmp_path / "moe", hidden=value)
    assert not (tmp_path / "moe").exists()


def test_constants_may_be_those_of_numpy(tmp_path: Path) -> None:
    artifact = fuscoc.compile("examples/moe.fsc", tmp_path / "moe", hidden=np.int64(64))
    assert Shuffle(artifact).spec.declared.constants["hidden"] == 64


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


@pytest.mark.parametrize(
    ("of_spec", "max_sources", "capacity", "slots"),
    [
        ("exact", 3, None, 3 * 2 + 4 * 3),
        ("exact", 1, None, 2 + 2 * 3),  # two points are of two keys at most, so much for padding
        ("exact", 3, 10**6, 3 * 2 + 4 * 3),
        ("exact", 3, 8, 8),
        ("max 12", 3, None, 12),
        ("max 12", 3, 16, 16),
    ],
)
def test_the_capacity_is_the_users_or_the_specs_or_what_is_always_enough(
    of_spec: str, max_sources: int, capacity: int | None, slots: int
) -> None:
    text = specs.routed("f32", keys=4, topk=2, capacity=f"capacity {of_spec}")
    given = {"x": torch.zeros(1, 24), "idx": torch.tensor([[0, 3]]), "weights": torch.ones(1, 2)}
    with Shuffle(specs.artifact(text), max_sources=max_sources, capacity=capacity) as shuffle:
        rows, handle = shuffle.dispatch(**given)
        assert len(rows) == handle.num_slots == slots


def test_an_engine_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by whoever looks for a fault. On the CPU there is no choice."""
    monkeypatch.setenv("FUSCOC_ENGINE", "triton")
    with pytest.raises(OptionError, match="`FUSCOC_ENGINE` is `triton`; it must be general"):
        Shuffle(specs.artifact(ROUTED))
    for named in ("general", ""):
        monkeypatch.setenv("FUSCOC_ENGINE", named)
        with Shuffle(specs.artifact(ROUTED)) as shuffle:
            assert isinstance(shuffle.engine, ProcessEngine)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_a_default_device_is_the_programs(options: dict[str, Any]) -> None:
    """Its own tensors are not there, and need not be: here nothing could compute."""
    artifact = specs.artifact(specs.routed("f32", hidden=4, keys=4, topk=2))
    x, weights = torch.rand(5, 4, requires_grad=True), torch.rand(5, 2)
    idx = torch.tensor([[0, 3]] * 5)
    torch.set_default_device("meta")
    try:
        shuffle = Shuffle(artifact, **options)
        rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        y = shuffle.combine(rows, handle)
        y.sum().backward(torch.ones((), device="cpu"))
        with torch.no_grad():
            rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
            again = shuffle.combine(rows, handle)
    finally:
        torch.set_default_device(None)
    assert torch.equal(y, again)
    torch.testing.assert_close(y, x * weights.sum(1, keepdim=True))
    torch.testing.assert_close(x.grad, weights.sum(1, keepdim=True).expand(5, 4))
