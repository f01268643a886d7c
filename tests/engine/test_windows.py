"""Windows are kept by name, and grow ahead of need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuscoc_runtime.comm.requests import Window, Windows
from fuscoc_runtime.comm.windows import WindowPool, private_window
from fuscoc_runtime.engine.buffers import get_windows, held_windows


def test_windows_grow_by_a_quarter_at_least() -> None:
    asked: list[int] = []

    def allocate(nbytes: int) -> Window:
        asked.append(nbytes)
        return private_window(nbytes, torch.device("cpu"))

    pool = WindowPool(allocate)
    first = pool.get({"b": 100, "a": 7})
    assert asked == [7, 100]  # by name, so that all ranks ask in the same order
    assert pool.get({"b": 60})["b"] is first["b"]
    assert pool.get({"b": 101, "a": 7})["a"] is first["a"]
    assert asked == [7, 100, 125]
    pool.get({"b": 1000})
    assert asked == [7, 100, 125, 1000]
    assert pool.num_bytes == 1007
    pool.clear()
    assert pool.num_bytes == 0


def test_an_outgrown_window_is_let_go_before_a_larger_one_is_asked_for() -> None:
    small, large = (private_window(size, torch.device("cpu")) for size in (8, 16))
    machine: Any = SimpleNamespace(windows={"target.x": small, "signals": small})
    needed = Windows({"target.x": 9, "signals": 8})
    assert held_windows(machine, needed) is None
    asking = get_windows(machine, needed)
    assert next(asking) is needed
    assert machine.windows == {"signals": small}
    with pytest.raises(StopIteration):
        asking.send({"target.x": large, "signals": small})
    assert held_windows(machine, needed) == {"target.x": large, "signals": small}
