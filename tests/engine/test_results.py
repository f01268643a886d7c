"""Where results lie that peers may store into: what PyTorch's allocator has free decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuscoc_runtime.comm.results import LEAST_BYTES, PooledResults

MIB = 1 << 20
STREAM = 7


class Allocator:
    """One segment on the host: a test says its blocks, its stream, and which MiB is next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = torch.zeros(16 * MIB, dtype=torch.uint8)
        self.begin, self.stream, self.captures = self.memory.data_ptr(), STREAM, False
        self.blocks, self.next, self.is_active = [("inactive", 16)], 0, False
        empty = torch.empty

        @contextmanager
        def use(pool: object) -> Iterator[None]:
            self.is_active = True
            yield
            self.is_active = False

        def make(*sizes: Any, **options: Any) -> Tensor:
            if not self.is_active:
                return empty(*sizes, **options)
            return self.memory[self.next * MIB :][: sizes[0]]

        def snapshot(pool: object) -> list[dict[str, Any]]:
            blocks = [{"state": state, "size": size * MIB} for state, size in self.blocks]
            other = {
                "address": 1,
                "stream": STREAM,
                "blocks": [{"state": "inactive", "size": 1 << 40}],
            }
            return [other, {"address": self.begin, "stream": self.stream, "blocks": blocks}]

        monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captures)
        current = SimpleNamespace(cuda_stream=STREAM)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
        monkeypatch.setattr(torch, "empty", make)
        segment = range(self.begin, self.begin + 16 * MIB)
        self.results = PooledResults(SimpleNamespace(id=(0, 1)), segment, [self.begin], None)  # type: ignore[arg-type]

    def offset(self, mebibytes: float) -> int:
        """Of a result of so many MiB."""
        made = self.results.empty(
            torch.Size([int(mebibytes * MIB) // 8, 4]), torch.bfloat16, torch.device("cpu")
        )
        assert made.shape == (int(mebibytes * MIB) // 8, 4)
        assert made.dtype == torch.bfloat16
        assert not made._is_view()
        return self.results.offset(made)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    return Allocator(monkeypatch)


def test_where_there_is_room(allocator: Allocator) -> None:
    assert allocator.offset(16) == 0
    allocator.blocks, allocator.next = [("active_allocated", 4), ("inactive", 12)], 4
    assert allocator.offset(12) == 4 * MIB
    assert allocator.offset(0.5) == 4 * MIB


@pytest.mark.parametrize(
    "blocks",
    [
        [("active_allocated", 16)],
        [("active_pending_free", 16)],  # another stream still reads it
        [("inactive", 7), ("active_allocated", 2), ("inactive", 7)],
    ],
)
def test_where_there_is_none(blocks: list[tuple[str, int]], allocator: Allocator) -> None:
    allocator.blocks = blocks
    assert allocator.offset(8) == -1


def test_small_results_take_what_the_pool_gives_at_least(allocator: Allocator) -> None:
    allocator.blocks = [("inactive", LEAST_BYTES // MIB - 1), ("active_allocated", 15)]
    assert allocator.offset(0.25) == -1


def test_other_streams_and_captures(allocator: Allocator) -> None:
    allocator.captures = True
    assert allocator.offset(8) == -1
    allocator.captures, allocator.stream = False, STREAM + 1
    assert allocator.offset(8) == -1


def test_empty_results_lie_anywhere(allocator: Allocator) -> None:
    allocator.captures = True
    assert allocator.offset(0) == 0


def test_a_pool_that_allocates_more_is_given_up(allocator: Allocator) -> None:
    """As an allocator may that is told not to split large blocks."""
    kept, allocator.memory = allocator.memory, torch.zeros(16 * MIB, dtype=torch.uint8)
    assert allocator.offset(8) == -1
    allocator.memory = kept
    assert allocator.offset(8) == -1
