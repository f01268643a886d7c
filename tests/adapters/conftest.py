"""Processes that all tests of adapters share: frameworks take seconds to import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.pool import Pool


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()
