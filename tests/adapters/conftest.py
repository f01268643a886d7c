"""Processes that tests of an adapter share. They take seconds to import their frameworks, which is
done once where these tests are among those that are collected. Frameworks make process groups for
every test, whose threads look around as long as the processes live: so these end with a file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.fixtures import pool_of
from tests.engine.pool import IMPORTED

IMPORTED.append("tests.adapters.imported")


pool = pool_of(4)


# Imported by a worker that runs a test of them, and not by all that collect these.


@pytest.fixture(scope="session")
def megatron_core() -> Any:
    name = "megatron.core"
    return pytest.importorskip(name, reason="megatron-core is not installed", exc_type=ImportError)


@pytest.fixture(scope="session")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")
