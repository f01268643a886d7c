"""Windows are kept by name, and grow ahead of need."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import ref

import pytest
import torch

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.comm.windows import WindowPool, fitting, private_window
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import round_trip


def test_windows_grow_by_a_quarter_at_least() -> None:
    asked: list[int] = []

    def allocate(nbytes: int) -> Window:
        asked.append(nbytes)
        return private_window(nbytes, torch.device("cpu"), 0)

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


def test_windows_fit_or_are_not_there() -> None:
    small, large = (private_window(size, torch.device("cpu"), 0) for size in (8, 16))
    held = {"target.x": large, "signals": small}
    assert fitting(held, {"target.x": 16, "signals": 0}) == held
    assert fitting(held, {"signals": 8}) == {"signals": small}
    assert fitting(held, {"target.x": 16, "signals": 9}) is None
    assert fitting(held, {"carried.x": 0}) is None
    assert fitting(held, {}) == {}


def test_who_looks_at_windows_gets_none_of_those_to_come() -> None:
    pool = WindowPool(lambda nbytes: private_window(nbytes, torch.device("cpu"), 0))
    first = pool.get({"a": 4})
    before = pool.held
    grown = pool.get({"a": 5, "b": 1})
    assert before == first
    assert pool.held == grown


def test_a_window_is_forgotten_before_a_larger_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both at once might not fit: no call under way holds the old one."""
    shuffle = LockstepShuffle(specs.artifact(specs.routed("f32")), topology=Topology(2, 1))
    outgrown: list[bool] = []
    get = WindowPool.get

    def watched(self: WindowPool, nbytes: Mapping[str, int]) -> dict[str, Window]:
        allocate, old = self._allocate, {name: ref(each) for name, each in self.held.items()}
        for name, size in nbytes.items():

            def checked(grown: int, name: str = name) -> Window:
                outgrown.append(name in old)
                assert name not in old or old[name]() is None, f"somebody holds {name}"
                return allocate(grown)

            self._allocate = checked
            get(self, {name: size})
        self._allocate = allocate
        return get(self, nbytes)

    monkeypatch.setattr(WindowPool, "get", watched)
    for tokens in (3, 40):
        round_trip(shuffle, generate(shuffle.spec, shuffle.topology, tokens, 1))
    assert sum(outgrown) >= 2 * 2  # the target and the staging rows of both ranks
