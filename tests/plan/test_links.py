"""What crosses the network, in bytes."""

from __future__ import annotations

import pytest

from fuscoc_runtime.plan.links import network_row_bytes, segment_bytes
from tests.engine import specs


@pytest.mark.parametrize(
    ("text", "there", "back"),
    [
        (specs.routed("bf16", hidden=24), 48, 48),
        (specs.routed("f16", hidden=24), 48, 96),  # partial sums may be beyond f16
        (specs.routed("f32", hidden=24), 96, 96),
        (specs.FIELDS, 40, 0),
        (specs.MOVED, 26, 26),
    ],
    ids=["bf16", "f16", "f32", "no combine", "copies"],
)
def test_rows_are_as_long_as_in_the_direction_that_has_more(
    text: str, there: int, back: int
) -> None:
    program = specs.artifact(text).shuffle().program
    assert segment_bytes(program) == there
    assert network_row_bytes(program) == max(there, back)
