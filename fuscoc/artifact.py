"""The artifact directory: its files, and writing them all or not at all (``docs/abi.md``)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fuscoc.codegen.triton import triton_module
from fuscoc.manifest import (
    Assembler,
    CompiledShuffle,
    build_manifest,
    cubin_file,
    sha256,
    with_replies,
)
from fuscoc.source import SourceFile

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"

Bake = Callable[[dict[str, Any]], Mapping[str, bytes]]
"""Adds files to an artifact, given its manifest."""


def artifact_files(
    spec: SourceFile,
    shuffles: Sequence[CompiledShuffle],
    bake: Bake | None = None,
    assembler: Assembler | None = None,
) -> dict[str, bytes]:
    """Every file of a spec's artifact, by its path; the same input, the same bytes.

    ``bake`` enters its plans into the manifest and returns their files; ``assembler`` adds machine
    code of the kernels.
    """
    files: dict[str, str] = {}
    binaries: dict[str, bytes] = {}
    for item in with_replies(shuffles):
        files[item.kernel_file] = triton_module(item.module, item.checked.source_file)
        for level, text in item.dumps.items():
            files[f"ir/{item.checked.name}.{level}.mlir"] = text
        if not isinstance(item.cuda, str):
            files |= {variant.file: variant.source.text for variant in item.cuda.variants}
        if not isinstance(item.node, str):
            files |= {each.file: each.text for each in item.node.all}
        if assembler is not None:
            binaries |= _cubins(item, assembler)
    manifest = build_manifest(spec, shuffles, assembler)
    if assembler is not None and assembler.add_triton is not None:
        binaries |= assembler.add_triton(manifest, files)
    if bake is not None:
        binaries |= bake(manifest)
    files[MANIFEST] = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    return with_sums({path: text.encode() for path, text in files.items()} | binaries)


def with_sums(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files and ``SHA256SUMS``, the digest of each as ``sha256sum`` writes it."""
    lines = [f"{sha256(content)}  {path}\n" for path, content in sorted(files.items())]
    return {**files, SUMS: "".join(lines).encode()}


def _cubins(item: CompiledShuffle, assembler: Assembler) -> dict[str, bytes]:
    if isinstance(item.cuda, str):
        return {}
    variants = {arch: item.cuda.variant(arch) for arch in assembler.archs}
    return {
        cubin_file(item, arch): assembler.assemble(variant.source.text, arch)
        for arch, variant in variants.items()
        if variant is not None
    }


def write_artifact(directory: str | Path, files: Mapping[str, bytes]) -> Path:
    """Write the files into ``directory``, in place of the artifact or empty directory there.

    They are written beside it first and then take its name, so that what has the name is always a
    whole artifact. One that has the same files keeps it: ranks of a job may all compile one spec,
    and none misses what another has just replaced. Returns the directory's absolute path.

    Raises:
        FileExistsError: something that is no artifact has the name; it is left as it is.
        OSError: that names ``directory``, also where the disk is full.
    """
    target = Path(directory).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
            new = Path(beside) / "new"
            for name, content in files.items():
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            with _locked(target.parent), _uninterrupted():
                _check_replaceable(target)
                if not _holds(target, files):
                    _replace(target, new, Path(beside) / "old")
    except OSError as error:
        if error.errno is not None:  # the system's, of a file that nobody knows
            error.filename = str(directory)
        raise
    return target


def _check_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if target.is_dir() and (_is_artifact(target) or not any(target.iterdir())):
        return
    raise FileExistsError(f"{target} exists and is not an artifact")


def _holds(directory: Path, files: Mapping[str, bytes]) -> bool:
    """Whether these are its files, which are as new as any then."""
    found = [path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = {path.relative_to(directory).as_posix() for path in found}
    if names != files.keys() or any(path.is_symlink() for path in found):
        return False  # no artifact may have links
    try:
        if any((directory / name).read_bytes() != content for name, content in files.items()):
            return False
    except OSError:
        return False
    with suppress(PermissionError):  # another user's stay as old as they are
        for path in found:
            os.utime(path)
    return True


def _is_artifact(directory: Path) -> bool:
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"schema", "compiler", "shuffles"} <= manifest.keys()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other compilers from giving names in ``directory``."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM: an artifact is never left between its old and its new name.

    Handlers run in the main thread alone, so no other thread can be interrupted. Blocking the
    signals would not do, for the system would give them to another thread, and Python to this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def _replace(target: Path, new: Path, old: Path) -> None:
    """Give ``new`` the name ``target``; what had it becomes ``old``, unless that fails."""
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
