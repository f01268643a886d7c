"""What is said of a trace of the network hop."""

from __future__ import annotations

import pytest

from benchmarks.network_report import idle_part
from fuscoc_runtime.kernels.trace import Span


def span(begin: float, end: float) -> Span:
    return Span(0, "wire 0", "", begin, end)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0.0),
        ([span(1, 3)], 0.0),
        ([span(0, 1), span(3, 4)], 0.5),
        ([span(2, 4), span(0, 3)], 0.0),
        ([span(0, 10), span(2, 3)], 0.0),
        ([span(5, 5)], 0.0),
    ],
)
def test_idle_part(spans: list[Span], expected: float) -> None:
    assert idle_part(spans) == expected
