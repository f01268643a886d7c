"""Where results lie that peers may store into: what PyTorch's allocator has free decides."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuscoc_runtime.comm.results import PooledResults

PART = 8 << 20
STREAM = 7


class Allocator:
    """Two parts of a segment on the host, and others elsewhere; a test says which comes next, and
    what the allocator tells of its blocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = torch.zeros(4 * PART, dtype=torch.uint8)
        self.begin, self.stream, self.captures = self.memory.data_ptr(), STREAM, False
        self.next, self.blocks, self.is_asked, looks = [0, 1], ["inactive"], False, list[int]()
        self.looks, empty = looks, torch.empty

        @contextmanager
        def use(pool: object) -> Iterator[None]:
            self.is_asked = True
            yield
            self.is_asked = False

        def make(*sizes: Any, **options: Any) -> Tensor:
            if not self.is_asked:
                return empty(*sizes, **options)
            at = self.begin + self.next.pop(0) * PART
            return torch.frombuffer((ctypes.c_uint8 * PART).from_address(at), dtype=torch.uint8)

        def snapshot(pool: object) -> list[dict[str, Any]]:
            looks.append(1)
            blocks = [{"state": state, "size": PART} for state in self.blocks]
            other = {
                "address": self.begin + 2 * PART,
                "blocks": [{"state": "inactive", "size": PART}],
            }
            return [other, {"address": self.begin, "blocks": blocks}]

        monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captures)
        current = SimpleNamespace
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: current(cuda_stream=self.stream))
        monkeypatch.setattr(torch, "empty", make)
        pool: Any = SimpleNamespace(id=(0, 1))
        segment = range(self.begin, self.begin + 2 * PART)
        self.results = PooledResults(pool, segment, [self.begin], None)

    def result(self, nbytes: int = PART) -> Tensor:
        shape = torch.Size([nbytes // 8, 4])
        made = self.results.empty(shape, torch.bfloat16, torch.device("cpu"))
        assert made.shape == shape
        assert made.dtype == torch.bfloat16
        assert not made._is_view()
        return made

    def part(self, result: Tensor) -> int:
        """Of a result, -1 if it lies elsewhere."""
        offset = self.results.offset(result)
        return offset // PART


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    return Allocator(monkeypatch)


def test_parts_are_lent_until_nothing_keeps_them(allocator: Allocator) -> None:
    first, second = allocator.result(), allocator.result(PART // 2)
    assert [allocator.part(each) for each in (first, second)] == [0, 1]
    assert allocator.part(allocator.result()) == -1  # while both are kept
    view = first[3:]
    del first
    assert allocator.part(allocator.result()) == -1  # a view keeps it, too
    del view
    allocator.next = [0]
    again = allocator.result()
    assert allocator.part(again) == 0
    assert not allocator.looks
    del second


def test_what_does_not_fit_in(allocator: Allocator) -> None:
    assert allocator.part(allocator.result(PART + 8)) == -1


def test_other_streams_and_captures(allocator: Allocator) -> None:
    allocator.captures = True
    assert allocator.part(allocator.result()) == -1
    allocator.captures, allocator.stream = False, STREAM + 1
    assert allocator.part(allocator.result()) == -1


def test_empty_results_lie_anywhere(allocator: Allocator) -> None:
    empty = [allocator.result(0) for _ in range(3)]
    assert [allocator.results.offset(each) for each in empty] == [0, 0, 0]
    assert allocator.part(allocator.result()) == 0  # they take no part


def test_a_part_that_another_stream_still_reads(allocator: Allocator) -> None:
    """Then the pool gives other memory, and is looked at from then on."""
    allocator.next, allocator.blocks = [2], ["active_pending_free", "active_allocated"]
    assert allocator.part(allocator.result()) == -1
    assert allocator.part(allocator.result()) == -1
    assert len(allocator.looks) == 1
    allocator.next, allocator.blocks = [0], ["inactive", "active_allocated"]
    assert allocator.part(allocator.result()) == 0


def test_a_pool_that_allocates_more_is_given_up(allocator: Allocator) -> None:
    """As one may that is told to leave large blocks alone."""
    allocator.next = [2, 3, 0]
    assert [allocator.part(allocator.result()) for _ in range(3)] == [-1, -1, -1]
    assert allocator.next == [0]
