"""What is written in C, as libraries: those of a wheel, else compiled at first use.

A wheel has a library beside its sources; one that is compiled at first use is kept in
``files.cache_folder``. Either is named by what it was made of, so none is loaded for other sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuscoc_runtime.ccompiler import BuildError, compiler_command
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.trust import UntrustedError, check_own, own_folder

_log = logging.getLogger("fuscoc.runtime")

# Without contraction: ranks choose by times that they predict, and have to predict the same.
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")
LIBRARIES = ("-lm",)


@dataclass(frozen=True)
class NativeLibrary:
    """C files that become one library; ``headers`` are what they include."""

    name: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...] = ()

    def load(self) -> ctypes.CDLL:
        """The library, into this process.

        Raises BuildError as ``build`` does, and if what it makes cannot be loaded.
        """
        if self.built_in.exists():
            try:
                return ctypes.CDLL(str(self.built_in))
            except OSError as error:  # of another C library, or damaged
                _log.warning("%s: it is compiled for this machine", error)
        try:
            return ctypes.CDLL(str(self.build()))
        except OSError as error:
            _log.warning("%s: it is compiled again", error)
        try:
            return ctypes.CDLL(str(self.build(again=True)))
        except OSError as error:
            raise BuildError(str(error)) from error

    @property
    def built_in(self) -> Path:
        """Where a wheel has the library of these sources, for this kind of processor."""
        return self.sources[0].with_name(self._file_name(FLAGS))

    def build(self, *, again: bool = False) -> Path:
        """The compiled library, from the cache if it is there, unless it is to be made ``again``.

        Raises BuildError if there is no C compiler, it fails, or the cache cannot be written.
        """
        try:
            command = [*compiler_command(), *FLAGS]
        except BuildError as error:
            missing = "cannot be loaded" if self.built_in.exists() else "is not there"
            raise BuildError(f"{self.built_in} {missing}, and {error}") from error
        folder = cache_folder() / "native"
        target = folder / self._file_name(command)
        try:
            if again or not target.exists():
                own_folder(cache_folder())
                own_folder(folder)
                _compile(command, self.sources, target)
            check_own(cache_folder(), folder, target)
        except UntrustedError as error:
            raise BuildError(str(error)) from error
        except OSError as error:
            raise BuildError(f"{error}: CC names a compiler, FUSCOC_CACHE_DIR a folder") from error
        return target

    def compile_into(self, folder: Path) -> Path:
        """The library that a wheel is to have, compiled into a folder that is there.

        Raises BuildError if there is no C compiler, it fails, or it has options of its own, of
        which neither the library's name nor the wheel's says anything.
        """
        command, target = compiler_command(), folder / self.built_in.name
        if options := [each for each in command if each.startswith("-")]:
            problem = f"CC has {' '.join(options)}, and a wheel is for any processor of its kind"
            raise BuildError(f"{problem}: let it name a compiler alone")
        try:
            _compile([*command, *FLAGS], self.sources, target)
        except OSError as error:
            raise BuildError(f"{error}: CC names a compiler") from error
        return target

    def _file_name(self, command: Sequence[str]) -> str:
        made_of = b"".join(each.read_bytes() for each in (*self.headers, *self.sources))
        made_of += repr((list(command), LIBRARIES, platform.machine())).encode()
        return f"{self.name}-{hashlib.sha256(made_of).hexdigest()[:16]}.so"


def _of(folder: str, name: str, sources: Sequence[str], headers: Sequence[str]) -> NativeLibrary:
    place = Path(__file__).parent / folder
    return NativeLibrary(
        name, tuple(place / each for each in sources), tuple(place / each for each in headers)
    )


PLAN = _of(
    "plan",
    "plan",
    ("balance.c", "fast.c", "cost.c", "stages.c", "choose.c", "network.c", "ways.c"),
    ("plan.h",),
)
COMMANDS = _of("kernels", "commands", ("commands.c",), ())
ALL = PLAN, COMMANDS
"""Those that a wheel has."""


def _compile(command: Sequence[str], sources: Sequence[Path], target: Path) -> None:
    import subprocess  # as a rule the library is there

    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        whole: list[str | Path] = [*command, "-o", made, *sources, *LIBRARIES]
        # A compiler that is killed leaves its own files: there, they are removed with the rest.
        environment = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(whole, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stderr}")
        made.chmod(0o755)
        made.replace(target)
