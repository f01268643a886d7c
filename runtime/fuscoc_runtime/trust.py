"""Whose files are executed: this user's and root's, where nobody else may write."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

REMEDY = "what it holds is not executed: remove it, or set FUSCOC_CACHE_DIR to a folder of yours"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(PermissionError):
    """Somebody else can have put there what is at a path; names it, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EACCES, f"{reason}; {REMEDY}", str(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


def own_folder(path: Path) -> None:
    """Make the folder ``path``, and those above it, unless it is there; for nobody else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def check_own(*paths: Path) -> None:
    """Check that nobody else can have put there what is there.

    Raises:
        UntrustedError: somebody else owns or may write one of them.
        OSError: a path is not there, or cannot be looked at.
    """
    for path in paths:
        found = path.stat()
        if found.st_uid not in (0, os.geteuid()):
            raise UntrustedError(path, f"belongs to another user (uid {found.st_uid})")
        if found.st_mode & OTHERS_MAY_WRITE:
            mode = stat.S_IMODE(found.st_mode)
            raise UntrustedError(path, f"may be written by others (mode {mode:o})")


def forbid_others(folder: Path) -> None:
    """Take from all others the right to write what is in ``folder``, and the folder itself."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS_MAY_WRITE)
