"""Compile the planner's C files at first use.

The library is kept in ``files.cache_folder``, named by what it was made of.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fuscoc_runtime.ccompiler import BuildError, compiler_command
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.trust import UntrustedError, check_own, own_folder

__all__ = ["BuildError", "build", "is_there", "load"]

_log = logging.getLogger("fuscoc.runtime")

NAMES = ("balance.c", "fast.c", "cost.c", "rounds.c", "carry.c", "choose.c", "network.c")
SOURCES = tuple(Path(__file__).with_name(name) for name in NAMES)
HEADER = Path(__file__).with_name("plan.h")
# Without contraction: ranks choose by times that they predict, and have to predict the same.
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")
LIBRARIES = ("-lm",)


@cache
def load() -> ctypes.CDLL:
    """The library, once a process.

    Raises BuildError as ``build`` does, and if what it makes cannot be loaded.
    """
    try:
        library = ctypes.CDLL(str(build()))
    except OSError as error:
        _log.warning("%s: it is compiled again", error)
        try:
            library = ctypes.CDLL(str(build(again=True)))
        except OSError as error:
            raise BuildError(str(error)) from error
    size, array = ctypes.c_int64, ctypes.c_void_p
    library.fuscoc_rebalance.argtypes = [size, size, array, array, array]
    library.fuscoc_rebalance.restype = None
    library.fuscoc_lpt.argtypes = [size, size, array, array]
    library.fuscoc_lpt.restype = size
    library.fuscoc_decompose.argtypes = [size, array, size, array, array, array]
    library.fuscoc_decompose.restype = size
    library.fuscoc_stages.argtypes = [size, size, array, size, *[array] * 5]
    library.fuscoc_stages.restype = size
    library.fuscoc_handover.argtypes = (
        [size] * 3 + [array] * 4 + [size] * 2 + [array] * 3 + [size] * 4 + [array] * 4
    )
    library.fuscoc_handover.restype = size
    library.fuscoc_slots.argtypes = [size, array, size, array, array, size, size, *[array] * 4]
    library.fuscoc_slots.restype = None
    library.fuscoc_loads.argtypes = [size, size, array, array, array, size, *[array] * 7]
    library.fuscoc_loads.restype = size
    library.fuscoc_pipeline.argtypes = [size, size, *[array] * 5, size]
    library.fuscoc_pipeline.restype = ctypes.c_double
    library.fuscoc_network.argtypes = (
        [size] * 3 + [array] * 4 + [size, size] + [size, array] * 2 + [size] * 2 + [array] * 6
    )
    library.fuscoc_network.restype = size
    return library


@cache
def is_there() -> bool:
    """Whether there is a library, or a compiler for it; where none is needed, numpy serves."""
    try:
        load()
    except BuildError:
        return False
    return True


def build(*, again: bool = False) -> Path:
    """The compiled library, from the cache if it is there, unless it is to be made ``again``.

    Raises BuildError if there is no C compiler, it fails, or the cache cannot be written.
    """
    command = [*compiler_command(), *FLAGS]
    made_of = b"".join(source.read_bytes() for source in (HEADER, *SOURCES))
    made_of += repr((command, LIBRARIES, platform.machine())).encode()
    folder = cache_folder() / "native"
    target = folder / f"plan-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    try:
        if again or not target.exists():
            own_folder(cache_folder())
            own_folder(folder)
            _compile(command, target)
        check_own(cache_folder(), folder, target)
    except UntrustedError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"{error}: CC names a compiler, FUSCOC_CACHE_DIR a folder") from error
    return target


def _compile(command: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        whole: list[str | Path] = [*command, "-o", made, *SOURCES, *LIBRARIES]
        # A compiler that is killed leaves its own files: there, they are removed with the rest.
        environment = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(whole, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stderr}")
        made.chmod(0o755)
        made.replace(target)
