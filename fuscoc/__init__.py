"""fuscoc: a compiler for data shuffles, which move rows of tensors between the ranks of a job.

``compile`` turns a ``.fsc`` spec into an artifact directory, ``load`` opens one for running.
Importing this package loads neither torch nor MLIR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuscoc.diagnostics import CompileError, InternalError

if TYPE_CHECKING:
    from pathlib import Path

    from fuscoc.torch import fused_shuffle
    from fuscoc_runtime import Artifact, Shuffle

    __version__: str

__all__ = ["CompileError", "InternalError", "compile", "fused_shuffle", "load"]


def compile(source: str | Path, out: str | Path, **defines: int) -> Path:
    """Compile a spec, given as a path or as its text, into the artifact directory ``out``.

    ``defines`` overrides constants of the spec: ``compile("moe.fsc", "build/moe", hidden=4096)``.
    An existing artifact at ``out`` is replaced in one step; nothing is written on an error.

    Raises:
        CompileError: the spec has errors; the message shows all of them.
        TypeError: a constant is no whole number.
        FileExistsError: ``out`` exists and is not an artifact.
    """
    from fuscoc import driver
    from fuscoc.source import as_source, whole_numbers

    return driver.compile_source(as_source(source), out, whole_numbers(defines))


def load(artifact: Artifact | str | Path, name: str | None = None, **options: Any) -> Shuffle:
    """Open a shuffle of an artifact on this rank; see ``fuscoc_runtime.Shuffle`` for the options.

    ``name`` chooses between several shuffles of one spec and may be left out when there is one.
    """
    from fuscoc_runtime import Shuffle

    return Shuffle(artifact, name, **options)


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name == "__version__":  # released together with the runtime, which states it
            from fuscoc_runtime import __version__

            return __version__
        if name == "fused_shuffle":  # brings torch along
            from fuscoc.torch import fused_shuffle

            return fused_shuffle
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
