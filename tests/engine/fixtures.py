"""Fixtures that tests of several rooms have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.pool import Pool


def pool_of(num_ranks: int) -> Any:
    """A fixture: processes that the tests of a module share, started by the first of them."""

    @pytest.fixture(scope="module")
    def pool() -> Iterator[Pool]:
        processes = Pool(num_ranks)
        yield processes
        processes.close()

    return pool
