"""fuscoc: a compiler for data shuffles.

``compile`` turns a ``.fsc`` spec into an artifact directory, ``load`` opens one for running.
Importing this package loads neither torch nor MLIR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuscoc.diagnostics import CompileError, InternalError

if TYPE_CHECKING:
    from pathlib import Path

    from fuscoc_runtime import Shuffle

__version__ = "0.1.0"
__all__ = ["CompileError", "InternalError", "compile", "load"]


def compile(source: str | Path, out: str | Path, **defines: int) -> Path:
    """Compile a spec, given as a path or as its text, into the artifact directory ``out``.

    ``defines`` overrides constants of the spec: ``compile("moe.fsc", "build/moe", hidden=4096)``.
    An existing artifact at ``out`` is replaced in one step; nothing is written on an error.

    Raises:
        CompileError: the spec has errors; the message shows all of them.
        FileExistsError: ``out`` exists and is not an artifact.
    """
    from fuscoc import driver

    return driver.compile_source(driver.as_source(source), out, defines)


def load(artifact: str | Path, name: str | None = None, **options: Any) -> Shuffle:
    """Open a shuffle of an artifact on this rank; see ``fuscoc_runtime.Shuffle`` for the options.

    ``name`` chooses between several shuffles of one spec and may be left out when there is one.
    """
    from fuscoc_runtime import Shuffle, load_artifact

    return Shuffle(load_artifact(artifact), name, **options)
