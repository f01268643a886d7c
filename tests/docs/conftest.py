"""Where the commands and the code of the docs run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import fuscoc  # noqa: F401  # the fixture
from tests.docs.pages import ROOT


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the docs name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "build" / "failures").mkdir(parents=True)
    (tmp_path / "build" / "failures" / "rows.rows.execution.npz").touch()
    for name in ("moe", "my", "reshard", "rows"):
        (tmp_path / f"{name}.fsc").write_text((ROOT / "examples" / "moe.fsc").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path
