"""Processes that all tests of adapters share. They take seconds to import their frameworks, which
is done once where these tests are among those that are collected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.pool import IMPORTED, Pool

IMPORTED.append("tests.adapters.imported")


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()
