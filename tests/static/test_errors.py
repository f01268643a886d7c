"""Extents, ranks and slots that do not fit the number of ranks are errors before any kernel."""

from __future__ import annotations

import pytest
import torch

from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.sizes import fixed_length
from fuscoc_runtime.errors import (
    DivisorError,
    FuscoRuntimeError,
    IndexOutOfRangeError,
    InexactDivisionError,
    InputError,
    SlotOutOfRangeError,
    SlotOverlapError,
)
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs


def failure(text: str, topology: str, *shape: int, **extents: int) -> FuscoRuntimeError:
    """The error of a dispatch of zeros on every rank."""
    shuffle = LockstepShuffle(specs.artifact(text), topology=Topology.parse(topology))
    parts = [[torch.zeros(shape)] for _ in shuffle.machines]
    with pytest.raises(FuscoRuntimeError) as raised:
        shuffle.dispatch(parts, [extents for _ in parts])
    return raised.value


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(self: Machine, kernel: str, values: object, num_programs: int) -> None:
        raise AssertionError(f"{kernel} was launched")

    monkeypatch.setattr(Machine, "launch", launch)


@pytest.mark.usefixtures("no_kernels")
def test_extents_that_do_not_come_out_even() -> None:
    error = failure(specs.TRANSPOSE, "1x5", 3, 16)
    assert isinstance(error, InexactDivisionError)
    assert str(error) == "[FSR011] 5 does not divide 12, as rank 0 needs it to"
    error = failure(specs.PARTS, "1x4", 3, 2, rows=14)
    assert isinstance(error, InexactDivisionError)
    assert str(error) == "[FSR011] `rows` is 14 on rank 0, which 4 does not divide"


@pytest.mark.usefixtures("no_kernels")
def test_divisors_that_are_not_positive() -> None:
    error = failure(specs.PARTS, "2x2", 1, 2, rows=4)
    assert isinstance(error, DivisorError)
    assert str(error) == "[FSR016] the divisor `rows / 6` is 0 on rank 0: it must be positive"


def test_a_length_that_so_few_ranks_cannot_have() -> None:
    shuffle = specs.artifact("reshard.fsc").shuffle()
    assert fixed_length(shuffle, 2) == fixed_length(shuffle, 3)
    with pytest.raises(DivisorError, match=r"`32 \* \(ranks // 2\)` is 0 on rank 0"):
        fixed_length(shuffle, 1)


@pytest.mark.usefixtures("no_kernels")
def test_builtin_extents_are_not_arguments() -> None:
    error = failure(specs.PARTS, "1x2", 6, 2, rows=12, ranks=2)
    assert isinstance(error, InputError)
    assert error.input == "ranks"


def test_ranks_that_do_not_exist() -> None:
    error = failure(specs.PARTS, "1x2", 12, 2, rows=24)
    assert isinstance(error, IndexOutOfRangeError)
    assert (error.rank, error.value, error.highest) == (1, 2, 1)
    assert error.input == "(rank + 1) % (rows / 6)"


def test_slots_that_do_not_exist() -> None:
    """On four ranks and not on two, or the compiler would have found it."""
    text = specs.TRANSPOSE.replace("[j % (columns / ranks)", "[j % (columns / ranks) + ranks - 2")
    error = failure(text, "1x4", 3, 16)
    assert isinstance(error, SlotOutOfRangeError)
    assert error.length == 48


def test_slots_that_are_taken_twice() -> None:
    """On four ranks and not on two, or the compiler would have found it."""
    text = specs.TRANSPOSE.replace(
        "[j % (columns / ranks)", "[j % (columns / ranks) * ((4 - ranks) / 2)"
    )
    assert isinstance(failure(text, "1x4", 3, 16), SlotOverlapError)
