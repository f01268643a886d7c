"""The host's own compiler, for tests that run generated text."""

from __future__ import annotations

import shutil

import pytest


def cxx() -> str:
    """The C++ compiler; skips where there is none."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: install g++ or clang, as `c++`")
    return compiler
