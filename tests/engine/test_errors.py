"""Whatever is wrong with one rank's arguments, all ranks raise it, in the spec's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine.lockstep import LockstepShuffle
from fuscoc_runtime.errors import (
    CapacityError,
    FuscoRuntimeError,
    IndexOutOfRangeError,
    InexactDivisionError,
    InputError,
    SlotOutOfRangeError,
    SlotOverlapError,
)
from tests.engine import specs
from tests.engine.lockstep import inputs_of, lockstep

Named = dict[str, Any]


def failure(
    shuffle: LockstepShuffle, change: Callable[[Named], None], tokens: int = 4
) -> FuscoRuntimeError:
    """The error of a dispatch in which ``change`` was made to rank 1's arguments."""
    ranks = generate(shuffle.spec, shuffle.topology, tokens, 0)
    named = [{**data.source, **inputs_of(shuffle.spec, data, weights=False)} for data in ranks]
    change(named[1])
    with pytest.raises(FuscoRuntimeError) as raised:
        shuffle.dispatch([[] for _ in ranks], named)
    return raised.value


def replace(name: str, value: Any) -> Callable[[Named], None]:
    def change(named: Named) -> None:
        named[name] = value

    return change


def remove(name: str) -> Callable[[Named], None]:
    return lambda named: named.pop(name)


def poke(name: str, at: Any, value: int) -> Callable[[Named], None]:
    def change(named: Named) -> None:
        named[name] = named[name].clone()
        named[name][at] = value

    return change


ROUTED = specs.routed("f32")


@pytest.mark.parametrize(
    ("change", "name", "problem"),
    [
        (
            replace("x", torch.zeros(4, 23)),
            "x",
            "has the shape [4, 23]; the spec says [tokens, 24] = [4, 24]",
        ),
        (replace("x", torch.zeros(96)), "x", "has the shape [96]; the spec says [tokens, 24]"),
        (
            replace("x", torch.zeros(4, 24, dtype=torch.float16)),
            "x",
            "is torch.float16; the spec says torch.float32",
        ),
        (replace("x", torch.zeros(4, 24, device="meta")), "x", "is on meta; this rank computes"),
        (
            replace("idx", torch.zeros(3, 3, dtype=torch.int64)),
            "idx",
            "has the shape [3, 3]; the spec says [tokens, 3] = [4, 3]",
        ),
        (replace("idx", [[0, 1, 2]] * 4), "idx", "is a list; it must be a tensor"),
        (remove("idx"), "idx", "is missing"),
        (remove("x"), "x", "is missing"),
        (
            replace("topk_idx", torch.zeros(4, 3)),
            "topk_idx",
            "is no argument of this call, which takes x, idx, tokens",
        ),
        (replace("tokens", 5), "x", "has the shape [4, 24]; the spec says [tokens, 24] = [5, 24]"),
        (replace("tokens", -1), "tokens", "is -1; an extent is a whole number"),
    ],
)
def test_arguments(change: Callable[[Named], None], name: str, problem: str) -> None:
    error = failure(lockstep(ROUTED, "1x4"), change)
    assert isinstance(error, InputError)
    assert (error.input, error.rank) == (name, 1)
    assert problem in error.problem


@pytest.mark.parametrize("key", [12, -2, 2**40])
def test_bad_key(key: int) -> None:
    error = failure(lockstep(ROUTED, "2x2"), poke("idx", (2, 1), key))
    assert isinstance(error, IndexOutOfRangeError)
    assert str(error).endswith(f"`idx[2, 1]` on rank 1 is {key}; it must be between -1 and 11")


def test_bad_rank() -> None:
    error = failure(lockstep(specs.MOVED, "2x2"), poke("table", (3, 0), 4))
    assert isinstance(error, IndexOutOfRangeError)
    assert (error.input, error.position, error.value, error.highest) == ("table", (3, 0), 4, 3)


def test_slot_beyond_the_target() -> None:
    def change(named: Named) -> None:
        poke("table", (0, 0), 1)(named)
        poke("table", (0, 1), 1000)(named)

    error = failure(lockstep(specs.MOVED, "2x2"), change)
    assert isinstance(error, SlotOutOfRangeError)
    assert (error.rank, error.slot, error.source) == (1, 1000, (1, 0))


def test_overlapping_slots() -> None:
    def change(named: Named) -> None:
        named["table"] = torch.tensor([[2, 0], [2, 0], [-1, 0], [-1, 0]])

    error = failure(lockstep(specs.MOVED, "1x4"), change)
    assert isinstance(error, SlotOverlapError)
    assert (error.rank, error.slot) == (2, 0)


def test_inexact_division() -> None:
    error = failure(lockstep(specs.patches(), "2x2"), poke("height", 2, 5))
    assert isinstance(error, InexactDivisionError)
    assert str(error).endswith("`height[n]` is 5 at n = 2 on rank 1, which 2 does not divide")


def test_negative_size() -> None:
    error = failure(lockstep(specs.patches(), "1x4"), poke("width", 0, -2))
    assert isinstance(error, InputError)
    assert (error.input, error.problem) == ("width", "has a negative size")


def test_cells_that_do_not_add_up() -> None:
    error = failure(
        lockstep(specs.patches(), "1x4"), replace("pixels", torch.zeros(7, 3, dtype=torch.uint8))
    )
    assert isinstance(error, InputError)
    assert error.problem.startswith("has 7 cells; its sizes add up to")


def test_extent_in_no_shape() -> None:
    error = failure(lockstep(specs.MOVED, "1x4"), remove("length"))
    assert isinstance(error, InputError)
    assert (error.input, error.problem) == ("length", "is in no tensor's shape: pass it by name")


def test_capacity() -> None:
    shuffle = lockstep(specs.routed("f32", capacity="capacity max 8"), "1x4")
    error = failure(shuffle, lambda named: None, tokens=16)
    assert isinstance(error, CapacityError)
    assert error.capacity == 8


def test_an_error_does_no_harm() -> None:
    """The ranks stay in step: the next dispatch works."""
    shuffle = lockstep(ROUTED, "2x2")
    failure(shuffle, remove("idx"))
    ranks = generate(shuffle.spec, shuffle.topology, 4, 0)
    named = [inputs_of(shuffle.spec, data, weights=False) for data in ranks]
    assert len(shuffle.dispatch([[data.source["x"]] for data in ranks], named)) == 4


def test_positional_arguments() -> None:
    shuffle = lockstep(ROUTED, "1x1")
    x, idx = torch.zeros(1, 24), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(InputError, match="only source fields go by position"):
        shuffle.dispatch([[x, idx]], [{}])
    with pytest.raises(InputError, match="given by position and by name"):
        shuffle.dispatch([[x]], [{"x": x, "idx": idx}])


def test_combine_arguments() -> None:
    shuffle = lockstep(ROUTED, "1x1")
    x, idx = torch.zeros(1, 24), torch.tensor([[0, 1, 2]])
    [dispatched] = shuffle.dispatch([[x]], [{"idx": idx}])
    rows, handle = dispatched.rows["x"], dispatched.handle
    weights = torch.ones(1, 3)
    with pytest.raises(InputError, match=r"`weights` on rank 0 is missing"):
        shuffle.combine([rows], [handle], [{}])
    with pytest.raises(InputError, match=r"shape \[1, 2\]; the spec says \[tokens, 3\]"):
        shuffle.combine([rows], [handle], [{"weights": weights[:, :2]}])
    with pytest.raises(InputError, match=r"shape \[11, 24\]; the spec says \[12, 24\]"):
        shuffle.combine([rows[1:]], [handle], [{"weights": weights}])
    with pytest.raises(InputError, match=r"`y` on rank 0 is no argument"):
        shuffle.combine([{"y": rows}], [handle], [{"weights": weights}])
    shuffle.combine([rows], [handle], [{"weights": weights}])


def test_no_combine() -> None:
    shuffle = lockstep(specs.FIELDS, "1x1")
    [data] = generate(shuffle.spec, shuffle.topology, 2, 0)
    named = inputs_of(shuffle.spec, data, weights=False)
    [dispatched] = shuffle.dispatch([list(data.source.values())], [named])
    with pytest.raises(InputError, match="`fields` on rank 0 has no combine"):
        shuffle.combine([dispatched.rows], [dispatched.handle], [{}])
