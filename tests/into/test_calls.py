"""What a call may give as its memory, and gradients through it, on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fuscoc
from fuscoc_runtime import Shuffle, fused_shuffle
from fuscoc_runtime.engine import row_kernels
from fuscoc_runtime.engine.node import into_repeats
from fuscoc_runtime.engine.row_kernels import accumulate_rows
from fuscoc_runtime.errors import InputError, PlaceOverlapError, PlaceRangeError
from fuscoc_runtime.face import calls, into
from fuscoc_runtime.kernels.launches import start
from tests.engine.fixtures import noted_turns

ROWS = """
shuffle rows {
  index t : rows
  index s : slots
  index i : entries
  segment row { x : f32[2, 3] }
  layout  given[t]    of row
  layout  arrived[s]  of row
  layout  memory[i, y] of f32[3]  dense(2)
  view    entry[i] = memory[i, 0 .. 2]
  route   to(t) -> slot  = input slot_idx : int64
  route   at(s) -> i = input place_idx : int64
  dispatch given[t] -> arrived[to(t)] on rank  into entry[at(s)]
  combine  reverse
}
"""


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shuffle]:
    with Shuffle(fuscoc.compile(ROWS, tmp_path_factory.mktemp("rows") / "rows")) as opened:
        yield opened


def tables() -> dict[str, Tensor]:
    """Row 0 goes to entry 3, row 1 to slot 2, which is kept nowhere; slot 1 stays empty."""
    return {"slot_idx": torch.tensor([0, 2]), "place_idx": torch.tensor([3, 0, -1])}


def test_slices_of_larger_tensors(shuffle: Shuffle) -> None:
    """Rows lie where the slice does, and nothing beside it changes."""
    whole, x = torch.zeros(3, 5, 2, 3), torch.rand(2, 2, 3)
    memory, _ = shuffle.dispatch(x, **tables(), memory=whole[1])
    wanted = torch.zeros(3, 5, 2, 3)
    wanted[1, 3] = x[0]
    assert torch.equal(whole, wanted)
    assert memory.data_ptr() == whole[1].data_ptr()


def refused(shuffle: Shuffle, x: Tensor, memory: Any, **others: Any) -> str:
    with pytest.raises(InputError) as caught:
        shuffle.dispatch(x, **tables(), memory=memory, **others)
    return caught.value.message


def test_memory_that_is_none(shuffle: Shuffle) -> None:
    x, good = torch.rand(2, 2, 3), torch.zeros(5, 2, 3)
    assert "must be a tensor" in refused(shuffle, x, None)
    assert "is torch.float64; the spec says torch.float32" in refused(shuffle, x, good.double())
    assert "the spec says [entries, 2, 3]" in refused(shuffle, x, good[:, :1])
    assert "is not contiguous" in refused(shuffle, x, torch.zeros(5, 3, 2).mT)
    assert "must be a dict of `x`" in refused(shuffle, x, {"y": good})
    assert "no argument of this call" in refused(shuffle, x, good, others=1)
    with pytest.raises(InputError, match="`memory` on rank 0 is missing"):
        shuffle.dispatch(x, **tables())
    with pytest.raises(InputError, match="`place_idx` on rank 0 is missing"):
        shuffle.dispatch(x, slot_idx=tables()["slot_idx"], memory=good)
    assert not good.any()


def test_memory_that_a_call_reads(shuffle: Shuffle) -> None:
    whole = torch.rand(6, 2, 3)
    assert "shares memory with a source" in refused(shuffle, whole[:2], whole[1:])
    shuffle.dispatch(whole[:2], **tables(), memory=whole[2:])  # side by side is not the same


def test_memory_of_two_fields(tmp_path: Path) -> None:
    """One may not be the other's: of two rows in one place the later one would be left."""
    text = ROWS.replace("x : f32[2, 3] }", "x : f32[2, 3], z : f32[2, 3] }")
    text = text.replace("segment row", "segment part { x : f32[3], z : f32[3] }\n  segment row")
    text = text.replace("of f32[3]", "of part")
    with Shuffle(fuscoc.compile(text, tmp_path / "two")) as shuffle:
        whole, x, z = torch.zeros(9, 2, 3), torch.rand(2, 2, 3), torch.rand(2, 2, 3)
        with pytest.raises(InputError, match="shares memory with"):
            shuffle.dispatch(x=x, z=z, **tables(), memory={"x": whole[:5], "z": whole[4:]})
        assert not whole.any()
        memory = {"x": whole[:4], "z": whole[4:8]}  # side by side
        shuffle.dispatch(x=x, z=z, **tables(), memory=memory)
    assert torch.equal(whole[[3, 7]], torch.stack([x[0], z[0]]))


def test_parameters(shuffle: Shuffle) -> None:
    """As for any change in place, autograd must not look."""
    parameter = torch.nn.Parameter(torch.zeros(5, 2, 3))
    assert "is a leaf that requires grad" in refused(shuffle, torch.rand(2, 2, 3), parameter)
    for mode in (torch.no_grad, torch.inference_mode):
        x = torch.rand(2, 2, 3)
        with mode():
            shuffle.dispatch(x, **tables(), memory=parameter)
        assert torch.equal(parameter[3], x[0])


def test_a_place_behind_the_end(shuffle: Shuffle) -> None:
    memory = torch.zeros(3, 2, 3)
    with pytest.raises(PlaceRangeError, match=r"`place_idx\[s\]` leads out of `memory` for 1 rows"):
        shuffle.dispatch(torch.rand(2, 2, 3), **tables(), memory=memory)
    assert not memory.any()


def test_gradients(shuffle: Shuffle) -> None:
    """As torch has them for the same written as an assignment."""
    x, memory = torch.rand(2, 2, 3, requires_grad=True), torch.rand(5, 2, 3, requires_grad=True)
    weights = torch.rand(5, 2, 3)

    def assigned() -> Tensor:
        result = memory * 1
        result[3] = x[0]
        return result

    def put() -> Tensor:
        result, _ = shuffle.dispatch(x, **tables(), memory=memory * 1)
        return result

    found, wanted = (
        torch.autograd.grad((call() * weights).sum(), (x, memory)) for call in (put, assigned)
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    before = memory.detach().clone()
    version = before._version
    shuffle.dispatch(x.detach(), **tables(), memory=before)
    assert before._version > version  # autograd notices what it has saved


def test_rows_are_added_in_the_order_of_their_slots(tmp_path: Path) -> None:
    """Memory of 16 bits is rounded once, f64 is summed in f64; gradients are those of torch."""
    text = ROWS.replace("into entry[at(s)]", "into entry[at(s)] reduce sum")
    x = torch.rand(4, 2, 3)
    slots, places = torch.tensor([3, 0, 2, 1]), torch.tensor([2, 2, -1, 2])
    for kind, dtype in (("bf16", torch.bfloat16), ("f64", torch.float64)):
        artifact = fuscoc.compile(text.replace("f32", kind), tmp_path / kind)
        with Shuffle(artifact) as adding:
            given = x.to(dtype).requires_grad_()
            memory = torch.rand(5, 2, 3).to(dtype).requires_grad_()
            found, _ = adding.dispatch(given, slot_idx=slots, place_idx=places, memory=memory * 1)
            wide = torch.promote_types(dtype, torch.float32)
            wanted = memory.detach().to(wide)
            for row in (1, 3, 0):  # slots 0, 1 and 3
                wanted[2] += given[row].detach().to(wide)
            assert torch.equal(found, wanted.to(dtype))
            upstream = torch.rand(5, 2, 3).to(dtype)
            of_rows, of_memory = torch.autograd.grad(found, (given, memory), upstream)
            assert torch.equal(of_memory, upstream)
            expected = torch.where(torch.tensor([1, 1, 0, 1]).bool()[:, None, None], upstream[2], 0)
            assert torch.equal(of_rows, expected)


def test_calls_that_repeat_earlier_ones(tmp_path: Path) -> None:
    """Of one form, which are not checked anew: other rows, tables, memory and empty slots; and
    what forms do not tell."""
    text = ROWS.replace("into entry[at(s)]", "into entry[at(s)] reduce sum")
    whole, wanted = torch.zeros(12, 2, 3), torch.zeros(12, 2, 3)
    artifact = fuscoc.compile(text, tmp_path / "rows")
    with Shuffle(artifact, max_sources=2, capacity=3) as adding:
        for slots, places, first in (
            ([0, 2], [3, 0, 3], 0),
            ([0, 2], [3, 0, 3], 0),
            ([2, 1], [4, 1, 4], 6),
            ([1, -1], [0, 0, 0], 6),
        ):
            x, memory = torch.rand(2, 2, 3), whole[first : first + 6]
            for row, slot in zip(x, slots, strict=True):
                if slot >= 0:
                    wanted[first + places[slot]] += row
            given = {"slot_idx": torch.tensor(slots), "place_idx": torch.tensor(places)}
            version = whole._version
            changed, _ = adding.dispatch(x, **given, memory=memory)
            assert changed.data_ptr() == memory.data_ptr()
            assert whole._version > version
            assert torch.equal(whole, wanted)
        with pytest.raises(InputError, match="shares memory with a source"):
            adding.dispatch(whole[2:4], **given, memory=whole[:6])
        outside = {**given, "place_idx": torch.tensor([6, 0, -1])}
        adding.dispatch(x, **outside, memory=whole[:6])
        wanted[0] += x[0]
        assert torch.equal(whole, wanted)
        with pytest.raises(PlaceRangeError, match="for 1 rows"):
            adding.check()


def test_copies_that_repeat_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of rows that are put: two slots of one place, and one that does not exist, too."""
    whole_calls = list[Any]()

    def noted(*arguments: Any) -> Any:
        whole_calls.append(arguments)
        return into.put(*arguments)

    monkeypatch.setattr(calls, "put", noted)
    memory, wanted = torch.zeros(6, 2, 3), torch.zeros(6, 2, 3)
    with Shuffle(fuscoc.compile(ROWS, tmp_path / "rows"), max_sources=2, capacity=3) as putting:
        for slots, places in (
            ([0, 2], [3, 0, 4]),
            ([0, 2], [1, 0, 5]),
            ([2, 1], [-1, 4, 2]),
            ([1, -1], [5, 0, 3]),
            ([2, 0], [1, 2, 1]),  # slot 0 has it
            ([2, 0], [6, 2, 3]),
        ):
            x = torch.rand(2, 2, 3)
            for row, slot in zip(x, slots, strict=True):
                if slot >= 0 and places[slot] in range(6) and places[slot] not in places[:slot]:
                    wanted[places[slot]] = row
            given = {"slot_idx": torch.tensor(slots), "place_idx": torch.tensor(places)}
            version = memory._version
            changed, _ = putting.dispatch(x, **given, memory=memory)
            assert changed.data_ptr() == memory.data_ptr()
            assert memory._version > version
            assert torch.equal(memory, wanted)
            if places[0] == 6:
                with pytest.raises(PlaceRangeError, match="for 1 rows"):
                    putting.check()
            elif places[2] == places[0]:
                with pytest.raises(PlaceOverlapError, match="1 of them"):
                    putting.check()
            else:
                putting.check()
    assert len(whole_calls) == 1


@pytest.mark.parametrize("reduces", ["", " reduce sum"])
def test_repeats_launch_what_the_first_call_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reduces: str
) -> None:
    """A graph that captures one could not load other kernels, or the same for other types."""
    launched = set[tuple[Any, ...]]()

    def noted(function: Any, arguments: Sequence[Any], *rest: int, **named: int) -> None:
        kinds = [getattr(each, "dtype", each) for each in arguments]
        launched.add((function, *kinds, *rest, *named.items()))
        start(function, arguments, *rest, **named)

    monkeypatch.setattr(row_kernels, "start", noted)
    text = ROWS.replace("into entry[at(s)]", f"into entry[at(s)]{reduces}")
    memory = torch.zeros(6, 2, 3)
    with Shuffle(fuscoc.compile(text, tmp_path / "rows"), max_sources=2, capacity=3) as putting:
        putting.dispatch(torch.rand(2, 2, 3), **tables(), memory=memory)
        found, before = putting.stats(), launched.copy()
        assert found is not None
        assert found.into is not None
        assert found.into.rows == 1
        putting.dispatch(torch.rand(2, 2, 3), **tables(), memory=memory)
    assert launched == before


@pytest.mark.parametrize("sizes", [{}, {"max_sources": 2, "capacity": 3}])
def test_rows_are_added_in_the_turn_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    """For the next one, on whatever stream, puts its own where they are."""
    text = ROWS.replace("into entry[at(s)]", "into entry[at(s)] reduce sum")
    turns, found = noted_turns(monkeypatch), list[bool]()

    def noted(rows: Tensor, index: Tensor, memory: Tensor) -> None:
        if (index >= 0).any():
            found.append(len(turns) == 1)
        accumulate_rows(rows, index, memory)

    for module in (into, into_repeats):
        monkeypatch.setattr(module, "accumulate_rows", noted)
    with Shuffle(fuscoc.compile(text, tmp_path / "rows"), **sizes) as adding:
        for _ in range(2):
            adding.dispatch(torch.rand(2, 2, 3), **tables(), memory=torch.zeros(5, 2, 3))
    assert found == [True, True]


def test_memory_in_a_decorated_function(tmp_path: Path) -> None:
    artifact = fuscoc.compile(ROWS, tmp_path / "rows")

    @fused_shuffle(artifact)
    def kept(memory: Tensor, *, handle: Any) -> Tensor:
        return memory[3].expand(handle.num_slots, 2, 3)

    memory, x = torch.zeros(5, 2, 3), torch.rand(2, 2, 3)
    back = kept(x, **tables(), memory=memory)
    assert torch.equal(back, x[:1].expand(2, 2, 3))
    kept.shuffle().close()


def test_compiled_functions_say_that_they_cannot(shuffle: Shuffle) -> None:
    memory, x = torch.zeros(5, 2, 3), torch.rand(2, 2, 3)

    @torch.compile(backend="eager", fullgraph=True)
    def call(x: Tensor) -> Tensor:
        result: Tensor = shuffle.dispatch(x, **tables(), memory=memory)[0]
        return result

    with pytest.raises(Exception, match="is changed in place: call this uncompiled"):
        call(x)
