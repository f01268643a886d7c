"""The page about PyTorch: its blocks run in order, as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path / "cache"))
    assert len(BLOCKS) == PAGE.count("```python") > 5
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/pytorch.md", "exec"), names)
    assert names["hidden_states"].grad is not None
    assert names["up"].grad is not None


def test_the_snippet_of_the_readme_is_the_tested_one() -> None:
    """``test_decorator.test_the_snippet`` runs these lines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tested = (Path(__file__).parent / "test_decorator.py").read_text(encoding="utf-8")
    [snippet] = re.findall(
        r"^@fused_shuffle\(\"examples/moe.fsc\", group=ep_group\).*?topk_weights=topk_weights\)$",
        readme,
        re.MULTILINE | re.DOTALL,
    )
    lines = [line.split("#")[0].strip() for line in snippet.splitlines() if line.strip()]
    run = [line.split("#")[0].strip() for line in tested.splitlines()]
    for line in lines:
        assert line in run
