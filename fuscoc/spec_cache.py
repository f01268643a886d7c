"""Artifacts compiled on the fly, in a cache that processes share.

An artifact's place is a hash of everything that it depends on: the spec's text, constants and the
compiler. It takes that name in one step, so what has the name is whole; if several processes
compile the same spec at once, one writes it and the others, who waited, find it there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fuscoc.source import SourceFile


def compile_cached(source: SourceFile, constants: Mapping[str, int], cache: Path) -> Path:
    """The artifact of a spec with these constants, compiled unless the directory ``cache`` has it.

    Raises:
        CompileError: the spec has errors.
    """
    key = _digest(source, constants)
    artifacts = cache / "artifacts"
    path = artifacts / key
    if (path / "manifest.json").exists():
        return path
    artifacts.mkdir(parents=True, exist_ok=True)
    with _alone(artifacts / f"{key}.lock"):
        if not (path / "manifest.json").exists():
            from fuscoc import driver

            driver.compile_source(source, path, constants)
    return path


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
