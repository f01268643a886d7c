"""What a call that repeats another one takes of the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import fuscoc
from benchmarks import scale_fixed
from benchmarks.moe_cases import spec
from benchmarks.scale_fixed import MODEL, Opened

FUNCTIONS, FUNCTIONS_BACK = 15, 10
"""Of Python, of a dispatch and of a combine. Those of one are code and data that a host which has
run other code in between has to fetch."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    artifact = tmp_path_factory.mktemp("host") / "moe"
    fuscoc.compile(spec(MODEL, "triton"), artifact)
    return Opened(artifact, 2 * scale_fixed.RANKS_PER_NODE)


def called(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What it returns, and the functions that it runs through."""
    names: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = call()
    finally:
        sys.setprofile(before)
    return found, names


def test_calls_run_through_few_functions(opened: Opened) -> None:
    opened.combine(*opened.dispatch())
    found, names = called(opened.dispatch)
    assert len(names) <= FUNCTIONS, names
    _, names = called(lambda: opened.combine(*found))
    assert len(names) <= FUNCTIONS_BACK, names


def test_all_is_handed_over(opened: Opened) -> None:
    """In a group of sends and receives each way, and a kernel before and behind it."""
    assert opened.posted() == 2
    before = scale_fixed.counts()
    opened.combine(*opened.dispatch())
    found = scale_fixed.counts() - before
    assert found["group_start"] == found["group_end"] == 2
    assert found["launch"] == 6
