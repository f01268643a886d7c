"""Two lists of items in turn, as kernels take them, on the host."""

from __future__ import annotations

import ctypes
import random
import subprocess

import pytest

from fuscoc_runtime.kernels.cuda import INCLUDE
from tests.cuda.host import PRELUDE
from tests.native import cxx

SOURCE = """
#define __noinline__
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((1ull * a * b) >> 32); }
inline int __popc(unsigned of) { return __builtin_popcount(of); }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> T __shfl_up_sync(unsigned, T of, int) { return of; }
#include "boxes.cuh"
extern "C" unsigned place(unsigned first, unsigned second, unsigned number, bool* is_second) {
  *is_second = fuscoc::InTurn(first, second).is_second(number);
  return number;
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("in_turn")
    source, library = folder / "in_turn.cpp", folder / "in_turn.so"
    source.write_text(PRELUDE + SOURCE)
    command = [cxx(), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{INCLUDE}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def taken(place: ctypes.CDLL, first: int, second: int, number: int) -> tuple[bool, int]:
    is_second = ctypes.c_bool()
    item = place.place(first, second, number, ctypes.byref(is_second))
    return is_second.value, item & 0xFFFFFFFF


@pytest.mark.parametrize("most", [4, 30, 400])
def test_both_lists_are_taken_evenly(most: int, place: ctypes.CDLL) -> None:
    """Each item once, in the order of its list, and of neither list earlier than its share."""
    choose = random.Random(most)
    for _ in range(200 if most < 400 else 20):
        first, second = choose.randrange(most), choose.randrange(most)
        seen = [0, 0]
        for number in range(first + second):
            assert abs(seen[1] * (first + second) - number * second) <= first + second
            is_second, item = taken(place, first, second, number)
            assert item == seen[is_second]
            seen[is_second] += 1
        assert seen == [first, second]


def test_long_lists(place: ctypes.CDLL) -> None:
    """Those of 2^30 items lose none at their ends."""
    choose = random.Random(7)
    lengths = [(1, 2**30 - 2), (2**30 - 2, 1), (2**29, 2**29 - 1), (3, 2**30 - 5)]
    for _ in range(2000):
        bits = choose.randrange(1, 30)
        lengths.append((choose.randrange(1, 2**bits), choose.randrange(1, 2 ** (30 - bits))))
    for first, second in lengths:
        ends = {taken(place, first, second, number) for number in (first + second - 1, 0)}
        assert (False, 0) in ends  # what goes to others is first
        is_second, item = taken(place, first, second, first + second - 1)
        assert item == (second if is_second else first) - 1
        other = first + second - 2 - item
        assert other == (first if is_second else second) - 1
