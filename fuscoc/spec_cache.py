"""Artifacts compiled on the fly, in a cache that processes share.

An artifact's place is a hash of everything that it depends on: the spec's text, constants and the
compiler. It takes that name when it is whole; if several processes want the same spec at once, one
compiles it and the others, who waited, find it there. What has the name and is not whole any more,
after a crash or a full disk, is compiled again in the same way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fuscoc.source import SourceFile
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.trust import check_own, forbid_others, own_folder

_log = logging.getLogger("fuscoc")


def compile_cached(source: SourceFile, constants: Mapping[str, int], cache: Path) -> Artifact:
    """The artifact of a spec with these constants, compiled unless the directory ``cache`` has it.

    Raises:
        CompileError: the spec has errors.
        OSError: the cache cannot be written, and has to be; or others may write into it.
    """
    key = _digest(source, constants)
    artifacts = cache / "artifacts"
    path = artifacts / key
    with suppress(ArtifactError):
        return _load(cache, path)
    own_folder(cache)
    own_folder(artifacts)
    with _alone(artifacts / f"{key}.lock"):
        try:
            return _load(cache, path)  # whom we waited for has made it
        except ArtifactError as error:
            if os.path.lexists(path):
                _log.warning("%s is damaged and is compiled again: %s", path, error)
        _compile(source, constants, path)
    return _load(cache, path)


def _load(cache: Path, path: Path) -> Artifact:
    """The artifact ``path`` of the cache; errors are those of ``load_artifact`` and ``trust``."""
    artifact = load_artifact(path)
    check_own(cache, path.parent, path, *path.rglob("*"))
    return artifact


def _compile(source: SourceFile, constants: Mapping[str, int], path: Path) -> None:
    """Compile into ``path``, whatever has that name now; to be called by one process at a time."""
    from fuscoc import driver

    # What cannot be removed, such as files that somebody on NFS still reads, does no harm.
    with TemporaryDirectory(
        prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True
    ) as beside:
        new = driver.compile_source(source, Path(beside) / "new", constants)
        forbid_others(new)
        if os.path.lexists(path):
            os.rename(path, Path(beside) / "old")
        os.rename(new, path)


def _digest(source: SourceFile, constants: Mapping[str, int]) -> str:
    parts = (source.text, json.dumps(dict(constants), sort_keys=True), _compiler_digest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _compiler_digest() -> str:
    """The compiler's version and code, so that a change of either compiles anew."""
    from fuscoc import __version__

    digest = hashlib.sha256(__version__.encode())
    root = Path(__file__).parent
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.lark")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep out other processes that want the same."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
