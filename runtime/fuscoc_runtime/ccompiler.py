"""The C compiler of this machine, for what did not come compiled."""

from __future__ import annotations

import os
import shutil


class BuildError(RuntimeError):
    """What is written in C could not be compiled or loaded."""


def compiler_command() -> list[str]:
    """The command that starts it: ``$CC``, which may have options, else ``cc`` or ``gcc``.

    Raises:
        BuildError: there is none.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildError(
            "what is written in C needs a C compiler, unless it comes in a wheel: install gcc or "
            "clang, or set CC"
        )
    return compiler.split()
