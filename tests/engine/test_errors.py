"""Whatever is wrong with one rank's arguments, all ranks raise it, in the spec's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine import dispatch as dispatch_module
from fuscoc_runtime.engine.dispatch import Dispatched
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.errors import (
    CapacityError,
    FuscoRuntimeError,
    IndexOutOfRangeError,
    InexactDivisionError,
    InputError,
    PreparationError,
    ProtocolError,
    SlotOutOfRangeError,
    SlotOverlapError,
)
from fuscoc_runtime.face.lockstep import LockstepShuffle
from tests.engine import specs
from tests.engine.lockstep import dispatch, inputs_of, launches_by_list, lockstep

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
        (
            replace("x", torch.zeros(4, 24).to_sparse()),
            "x",
            "is torch.sparse_coo; it must be torch.strided",
        ),
        (replace("tokens", 2**63), "tokens", "is 9223372036854775808; an extent is a whole"),
        (remove("idx"), "idx", "is missing"),
        (remove("x"), "x", "is missing"),
        (
            replace("topk_idx", torch.zeros(4, 3)),
            "topk_idx",
            "is no argument of this call, which takes x, idx, tokens, weights",
        ),
        (replace("tokens", 5), "x", "has the shape [4, 24]; the spec says [tokens, 24] = [5, 24]"),
        (replace("tokens", -1), "tokens", "is -1; an extent is a whole number"),
        (replace("tokens", True), "tokens", "is True; an extent is a whole number"),
        (replace("tokens", np.int64(5)), "x", "the spec says [tokens, 24] = [5, 24]"),
    ],
)
def test_arguments(change: Callable[[Named], None], name: str, problem: str) -> None:
    error = failure(lockstep(ROUTED, "1x4"), change)
    assert isinstance(error, InputError)
    assert (error.input, error.rank) == (name, 1)
    assert problem in error.problem


def test_what_was_right_before_hides_nothing() -> None:
    """Arguments of the same forms are not looked at again, but others are."""
    shuffle = lockstep(ROUTED, "1x4")
    for tokens in (4, 6, 4):
        done = dispatch(shuffle, generate(shuffle.spec, shuffle.topology, tokens, 0))
        assert done[0].handle.extents["tokens"] == tokens
    for change in (
        replace("x", torch.zeros(4, 24, dtype=torch.float16)),
        replace("idx", torch.zeros(6, 3, dtype=torch.int64)),
        replace("tokens", 6),
        remove("idx"),
    ):
        assert isinstance(failure(shuffle, change), InputError)


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


def test_inexact_division_in_a_layout() -> None:
    """No index has this extent; that what a view reads exists follows from its division."""
    text = """
    shuffle halves {
      index n : images  index i : height(n)  index s : length
      segment item { x : i32 }
      layout rows[n, y] of i32 dense(height(n) / 2)
      layout slots[s] of item
      view doubled[n, i] = rows[n, i / 2]
      route where(n) -> (rank, slot) = input places : int64[2]
      dispatch doubled[n, i] -> slots[where(n).slot + i] on where(n).rank
    }"""

    def change(named: Named) -> None:
        named |= {"images": 2, "height": torch.tensor([2, 3]), "places": torch.zeros(2, 2).long()}

    error = failure(lockstep(text, "1x2"), change)
    assert isinstance(error, InexactDivisionError)
    assert str(error).endswith("`height[n]` is 3 at n = 1 on rank 1, which 2 does not divide")


def test_negative_size() -> None:
    error = failure(lockstep(specs.patches(), "1x4"), poke("width", 0, -2))
    assert isinstance(error, InputError)
    assert (error.input, error.problem) == ("width", "has a negative size")


@pytest.mark.parametrize(("height", "width"), [(2**32, 2**32), (2**33, 2**31), (2**62, 2)])
def test_sizes_beyond_all_integers(height: int, width: int) -> None:
    """Height times width is 0 to a kernel."""

    def change(named: Named) -> None:
        poke("height", 0, height)(named)
        poke("width", 0, width)(named)

    error = failure(lockstep(specs.patches(), "1x4"), change)
    assert isinstance(error, InputError)
    assert error.input == "height[n] * width[n]"
    assert error.problem == f"is {height * width} at n = 0: more than kernels can count"


@pytest.mark.parametrize(
    ("indices", "at", "what", "value"),
    [
        ("index i : min(height(n), more(n))", "i", "height[n]", 2**61),
        ("index i : max(more(n) - height(n), 0)", "i", "more[n] - height[n]", -(2**61)),
        (
            "index i : height(n)  index j : height(n)  index k : more(n)",
            "i, j, k", "height[n] * height[n]", 2**80,
        ),
    ],
)  # fmt: skip
def test_what_is_beyond_all_integers_but_no_size(
    indices: str, at: str, what: str, value: int
) -> None:
    """Of what leads to a size that is small, that is named which kernels cannot count."""
    text = f"""
    shuffle sized {{
      index n : images  {indices}  index s : length
      segment item {{ x : i32 }}
      layout rows[n, {at}] of item
      layout slots[s] of item
      route where(n) -> (rank, slot) = input places : int64[2]
      dispatch rows[n, {at}] -> slots[where(n).slot + i] on where(n).rank
    }}"""
    height = 2**40 if value > 2**61 else abs(value)

    def change(named: Named) -> None:
        named |= {"images": 2, "height": torch.tensor([1, height]), "more": torch.tensor([1, 0])}
        named["places"] = torch.zeros(2, 2).long()

    error = failure(lockstep(text, "1x2"), change)
    assert isinstance(error, InputError)
    assert error.input == what
    assert error.problem == f"is {value} at n = 1: more than kernels can count"


def test_whatever_stops_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a code of its own it is raised on all ranks all the same."""

    def fail(*_: Any) -> None:
        raise MemoryError("1 TB")

    monkeypatch.setattr(dispatch_module, "evaluate_relation", fail)
    error = failure(lockstep(ROUTED, "1x2"), lambda named: None)
    assert isinstance(error, PreparationError)
    assert (error.rank, error.problem) == (0, "MemoryError: 1 TB")
    assert isinstance(error.__cause__, MemoryError)


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
    with pytest.raises(InputError, match="`x` on rank 0 is a dict; pass what it holds by name"):
        shuffle.dispatch([[{"x": x, "idx": idx}]], [{}])


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


def two_dispatches(shuffle: LockstepShuffle) -> tuple[list[Dispatched], list[Dispatched], Any]:
    """The same data twice, and its weights."""
    ranks = generate(shuffle.spec, shuffle.topology, 4, 0)
    weights = [inputs_of(shuffle.spec, data, weights=True) for data in ranks]
    return dispatch(shuffle, ranks), dispatch(shuffle, ranks), weights


def test_handles_of_different_dispatches() -> None:
    shuffle = lockstep(ROUTED, "1x2")
    first, second, weights = two_dispatches(shuffle)
    rows = [each.rows["x"].clone() for each in second]
    for one, other in ((first, second), (second, first)):
        with pytest.raises(InputError, match="`handle` on rank 1 is of dispatch") as raised:
            shuffle.combine(rows, [one[0].handle, other[1].handle], weights)
        assert str(one[0].handle.number) in raised.value.problem
    shuffle.combine(rows, [each.handle for each in first], weights)


def test_a_dispatch_by_handles_of_different_dispatches() -> None:
    shuffle = lockstep(ROUTED, "1x2")
    first, second, _ = two_dispatches(shuffle)
    sources = [torch.zeros(each.handle.source_shapes["x"]) for each in first]
    handles = first[0].handle, second[1].handle
    calls = zip(shuffle.machines, sources, handles, strict=True)
    with pytest.raises(InputError, match="`handle` on rank 1 is of dispatch"):
        shuffle._run(
            [dispatch_module.dispatch(machine, [x], {}, handle) for machine, x, handle in calls]
        )


def test_a_dispatch_by_what_is_no_handle() -> None:
    """All ranks hear of it: none waits for the one that has nothing to go by."""
    shuffle = lockstep(ROUTED, "1x2")
    first, _, _ = two_dispatches(shuffle)
    sources = [torch.zeros(each.handle.source_shapes["x"]) for each in first]
    calls = zip(shuffle.machines, sources, (first[0].handle, "earlier"), strict=True)
    with pytest.raises(InputError, match="`handle` on rank 1 is a str; it must be what this"):
        shuffle._run(
            [dispatch_module.dispatch(machine, [x], {}, handle) for machine, x, handle in calls]  # type: ignore[arg-type]
        )


def test_a_handle_of_another_shuffle() -> None:
    shuffle, other = lockstep(ROUTED, "1x2"), lockstep(specs.routed("f32", hidden=48), "1x2")
    _, mine, weights = two_dispatches(shuffle)
    _, foreign, _ = two_dispatches(other)
    rows = [each.rows["x"] for each in mine]
    for bad, problem in ((foreign[1].handle, "is of another shuffle"), (None, "is None")):
        with pytest.raises(InputError, match=f"`handle` on rank 1 {problem}"):
            shuffle.combine(rows, [mine[0].handle, bad], weights)  # type: ignore[list-item]


def test_rows_that_a_later_dispatch_has_overwritten() -> None:
    shuffle = lockstep(ROUTED, "1x2")
    first, second, weights = two_dispatches(shuffle)
    handles = [each.handle for each in first]
    kept = [each.rows["x"].clone() for each in first]
    stale = [first[0].rows["x"], kept[1]]
    with pytest.raises(InputError, match=r"`x` on rank 0 is what dispatch \d+ returned"):
        shuffle.combine(stale, handles, weights)
    shuffle.combine(kept, handles, weights)
    shuffle.combine([each.rows["x"] for each in second], [each.handle for each in second], weights)


def test_a_dispatch_that_failed_overwrites_nothing() -> None:
    shuffle = lockstep(ROUTED, "1x2")
    _, last, weights = two_dispatches(shuffle)
    failure(shuffle, remove("idx"))
    shuffle.combine([each.rows["x"] for each in last], [each.handle for each in last], weights)


def test_a_signal_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """In lockstep nobody waits for it: it is a mistake of fuscoc's own."""
    shuffle = lockstep.__wrapped__(ROUTED, "1x2")  # not one for other tests: its ranks lose step
    steps = launches_by_list(shuffle.spec)
    launch = Machine.launch

    def all_but_one(machine: Machine, kernel: str, *arguments: Any) -> None:
        if machine is not shuffle.machines[1] or kernel != steps["direct"].kernel:
            launch(machine, kernel, *arguments)

    monkeypatch.setattr(Machine, "launch", all_but_one)
    with pytest.raises(ProtocolError, match=r"rank 0 was not signalled: .*'direct', peer=1"):
        dispatch(shuffle, generate(shuffle.spec, shuffle.topology, 4, 0))


def test_no_combine() -> None:
    shuffle = lockstep(specs.FIELDS, "1x1")
    [data] = generate(shuffle.spec, shuffle.topology, 2, 0)
    named = inputs_of(shuffle.spec, data, weights=False)
    [dispatched] = shuffle.dispatch([list(data.source.values())], [named])
    with pytest.raises(InputError, match="`fields` on rank 0 has no combine"):
        shuffle.combine([dispatched.rows], [dispatched.handle], [{}])
