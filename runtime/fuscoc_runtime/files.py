"""Files that are written whole or not at all, and where those are that can be made again."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

NO_ARRAYS = (
    ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error
)  # fmt: skip
"""What reading a damaged ``.npz`` raises, or one of other arrays; ``zipfile`` has RuntimeError for
a password and for what it cannot unpack."""


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name at the end; with an exception, nothing is left.

    What is no regular file, such as ``/dev/null``, is opened and written as it is.

    Raises:
        OSError: that names ``path``, also where the disk is full.
    """
    target = Path(os.path.realpath(path))  # what a link leads to is replaced, not the link
    try:
        if os.path.exists(path) and not target.is_file():  # a pipe of /dev/stdout has no real path
            with open(path, "wb") as file:
                yield file
            return
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(beside, 0o644)
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        nameless = error.filename is None and error.errno is not None
        if nameless or Path(error.filename or "").parent == target.parent:
            error.filename = str(path)
        raise


def cache_folder() -> Path:
    """Where what is compiled on the fly is kept: ``$FUSCOC_CACHE_DIR``, else ``fuscoc`` in
    ``$XDG_CACHE_HOME`` or ``~/.cache``. It need not exist."""
    if chosen := os.environ.get("FUSCOC_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fuscoc"
