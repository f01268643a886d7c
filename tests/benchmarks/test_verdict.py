"""How a benchmark ends."""

from __future__ import annotations

import pytest

from benchmarks.verdict import exit_if_wrong


def test_a_wrong_contender_fails_the_run() -> None:
    right = {"contender": "naive", "routing": "uniform", "num_tokens": 64, "wrong": []}
    exit_if_wrong([right])
    wrong = {**right, "contender": "fuscoc", "wrong": ["2 rows are wrong", "combine is off"]}
    with pytest.raises(SystemExit) as ended:
        exit_if_wrong([right, wrong])
    said = str(ended.value)
    assert said.count("fuscoc (uniform, 64 tokens)") == 2
    assert "2 rows are wrong" in said
    assert "naive" not in said
