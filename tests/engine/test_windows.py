"""Windows are kept by name, and grow ahead of need."""

from __future__ import annotations

import torch

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.comm.windows import WindowPool, private_window


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
