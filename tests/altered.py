"""Artifacts that a test changes on purpose."""

from __future__ import annotations

from pathlib import Path

from fuscoc.artifact import SUMS, with_sums


def digest_anew(root: Path) -> None:
    """Make the list of digests that of the files that are there."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != SUMS]
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    (root / SUMS).write_bytes(with_sums(files)[SUMS])
