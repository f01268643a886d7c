"""The module of a shuffle in an artifact, for whoever evaluates its relation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuscoc.dialect.mlir import ir
from fuscoc.pipeline import parse_module
from fuscoc_runtime.errors import ArtifactError


def module_file(name: str) -> str:
    """The file of an artifact that holds the module of the shuffle ``name``, at L0."""
    return f"ir/{name}.L0.mlir"


def read_module(artifact: Path, name: str) -> Any:
    """The module at L0 of a shuffle that the artifact directory holds.

    Raises:
        ArtifactError: another compiler wrote it.
    """
    path = artifact / module_file(name)
    try:
        return parse_module(path.read_text(encoding="utf-8"))
    except (OSError, ir.MLIRError) as error:
        problem = "holds no IR of this compiler: compile it again"
        raise ArtifactError(str(path), problem) from error
