"""Processes that tests of an adapter share. They take seconds to import their frameworks, which is
done once where these tests are among those that are collected. Frameworks make process groups for
every test, whose threads look around as long as the processes live: so these end with a file."""

from __future__ import annotations

from tests.engine.fixtures import pool_of
from tests.engine.pool import IMPORTED

IMPORTED.append("tests.adapters.imported")


pool = pool_of(4)
