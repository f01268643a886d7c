"""The artifact directory: its files, and writing them all or not at all (``docs/abi.md``)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from fuscoc.codegen.triton import triton_module
from fuscoc.manifest import CompiledShuffle, build_manifest
from fuscoc.source import SourceFile

MANIFEST = "manifest.json"


def artifact_files(spec: SourceFile, shuffles: Sequence[CompiledShuffle]) -> dict[str, str]:
    """The text of every file of a spec's artifact, by its path; the same input, the same text."""
    files = {}
    for item in shuffles:
        files[item.kernel_file] = triton_module(item.module, item.checked.source_file)
        for level, text in item.dumps.items():
            files[f"ir/{item.checked.name}.{level}.mlir"] = text
    manifest = build_manifest(spec, shuffles, files)
    return {**files, MANIFEST: json.dumps(manifest, indent=2, sort_keys=True) + "\n"}


def write_artifact(directory: str | Path, files: Mapping[str, str]) -> Path:
    """Write the files into ``directory``, in place of the artifact or empty directory there.

    They are written beside it first and then take its name, so that a reader finds the old
    artifact or the new one.

    Raises:
        FileExistsError: something that is no artifact has the name; it is left as it is.
    """
    target = Path(directory).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_replaceable(target)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
        new = Path(beside) / "new"
        new.mkdir()
        for name, text in files.items():
            path = new / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(text.encode())
        _replace(new, target, Path(beside))
    return target


def _check_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if target.is_dir() and (_is_artifact(target) or not any(target.iterdir())):
        return
    raise FileExistsError(f"{target} exists and is not an artifact")


def _is_artifact(directory: Path) -> bool:
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"schema", "compiler", "shuffles"} <= manifest.keys()


def _replace(new: Path, target: Path, beside: Path) -> None:
    """Give ``new`` the name ``target``; what has it now goes ``beside``, unless that fails."""
    for attempt in count():
        try:
            os.rename(new, target)  # replaces nothing but an empty directory
            return
        except OSError:
            if not target.is_dir():
                raise
        _check_replaceable(target)
        old = beside / f"old-{attempt}"
        os.rename(target, old)
        try:
            os.rename(new, target)
            return
        except OSError:
            if not target.exists():
                os.rename(old, target)
                raise
            shutil.rmtree(old)  # another compiler was faster: replace its artifact
