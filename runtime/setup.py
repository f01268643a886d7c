"""What is written in C, compiled for a wheel; all else stands in ``pyproject.toml``.

The libraries are loaded by ``ctypes``, so a wheel serves every Python of its platform.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from fuscoc_runtime.native import ALL, BuildError  # noqa: E402

LIBRARIES = {str(each.built_in.relative_to(HERE).with_suffix("")): each for each in ALL}
OLDEST_GLIBC = 17
"""Of tags in use."""


class BuildLibraries(build_ext):
    """As at first use: by the same command, with the same name."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.editable_mode:  # sources that change: what they were compiled to would be left over
            self.extensions = []

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname}.so"

    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.get_ext_fullpath(ext.name)).parent
        folder.mkdir(parents=True, exist_ok=True)
        try:
            LIBRARIES[ext.name].compile_into(folder)
        except BuildError as error:
            raise CompileError(str(error)) from error


class TaggedWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """For every Python, and every C library that has what the libraries take of it."""
        platform = super().get_tag()[2]
        found = re.compile(rb"GLIBC_2\.(\d+)").findall
        taken = [
            int(each)
            for path in Path(self.bdist_dir).rglob("*.so")
            for each in found(path.read_bytes())
        ]
        if taken:
            oldest = max(OLDEST_GLIBC, *taken)
            platform = re.sub("^linux", f"manylinux_2_{oldest}", platform)
        return "py3", "none", platform


setup(
    ext_modules=[Extension(name, []) for name in LIBRARIES],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": TaggedWheel},
)
