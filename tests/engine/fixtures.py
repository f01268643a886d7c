"""What tests of several rooms are set up with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fuscoc_runtime.engine.streams import CallOrder
from tests.engine.pool import Pool


def pool_of(num_ranks: int) -> Any:
    """A fixture: processes that the tests of a module share, started by the first of them."""

    @pytest.fixture(scope="module")
    def pool() -> Iterator[Pool]:
        processes = Pool(num_ranks)
        yield processes
        processes.close()

    return pool


def noted_turns(monkeypatch: pytest.MonkeyPatch) -> list[CallOrder]:
    """Whose turns of calls are under way from now on, the innermost last."""
    under_way: list[CallOrder] = []

    @contextmanager
    def turn(order: CallOrder) -> Iterator[None]:
        under_way.append(order)
        yield
        under_way.pop()

    monkeypatch.setattr(CallOrder, "turn", turn)
    return under_way
