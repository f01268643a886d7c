from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cuda.dense_cases import compile_cases


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles the cases of dense_cases.py that are asked for; the folder of all of them."""
    folder = tmp_path_factory.mktemp("dense")

    def compiled(*names: str) -> Path:
        for name in names:
            if not (folder / name).exists():
                compile_cases(folder, only=name)
        return folder

    return compiled
