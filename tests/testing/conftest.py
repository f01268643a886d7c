"""No test asserts wall time, not even through hypothesis' default deadline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no-deadline")


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Plans are thousands of tiny tensors: a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
