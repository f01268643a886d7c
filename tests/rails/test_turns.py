"""Words by which ranks tell each other how far they have got in the turns of a combine."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fuscoc_runtime.kernels.loader import Kernel, address, load_kernel
from fuscoc_runtime.manifest.schema import KernelArg, KernelSpec
from fuscoc_runtime.room import MOST_TURNS

TEXT = """
import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

hop_back, back = load("hop_back"), load("combine")


@triton.jit(do_not_specialize=["told", "found"])
def compare(told: tl.int64, found: tl.int64):
    told = told.to(tl.pointer_type(tl.int64))
    one = hop_back.turn_word(tl.load(told), tl.load(told + 1))
    other = hop_back.turn_word(tl.load(told + 2), tl.load(told + 3))
    tl.store(found.to(tl.pointer_type(tl.int32)), back.reached(one, other).to(tl.int32))
"""
MOST_APART = 2**31 // MOST_TURNS - 1
"""Combines by which words can be told apart; none is further ahead of another than one."""


def compare() -> Kernel:
    named = tuple(KernelArg(name, "address", f"value.{name}") for name in ("told", "found"))
    spec = KernelSpec("compare", "compare.py", "compare", named, 4, ())
    return load_kernel(Path("compare.py"), spec, TEXT.encode(), interpreted=True)


KERNEL = compare()
ENDS = [2**25, 2**26, 2**31, 2**32, 0]


def tag(epoch: int, number: int) -> int:
    """A combine with the handle of a dispatch, as kernels number it: int64."""
    word = epoch << 32 | number % 2**32
    return word - (word >> 63 << 64)


@given(
    st.integers(0, 2**32 - 1),
    st.builds(int.__add__, st.sampled_from(ENDS), st.integers(-3, 3)),
    st.one_of(st.integers(-3, 3), st.integers(-MOST_APART, MOST_APART)),
    st.tuples(*[st.integers(0, MOST_TURNS - 1)] * 2),
    st.booleans(),
)
@example(0, 2**25, -1, (0, 0), False)
@example(2**32 - 1, 2**26, -1, (0, MOST_TURNS - 1), False)
def test_which_turn_is_later(
    epoch: int, number: int, ahead: int, turns: tuple[int, int], is_other: bool
) -> None:
    """Of two combines with a handle the one that comes later, or the later turn of one: wherever
    their words change the sign or begin anew. That of another dispatch has told nothing."""
    one, other = turns
    of_one = tag((epoch + is_other) % 2**32, number + ahead)
    told, found = torch.tensor([of_one, one, tag(epoch, number), other]), torch.zeros(1).int()
    KERNEL.launch({"value.told": address(told), "value.found": address(found)}, 1)
    assert bool(found) == (not is_other and (ahead, one) >= (0, other))
