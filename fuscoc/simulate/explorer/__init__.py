"""The explorer: a record of a run as one HTML file that needs no other, and no network."""

from __future__ import annotations

from pathlib import Path

from fuscoc.simulate.explorer.page import render
from fuscoc.simulate.record import Record
from fuscoc_runtime.files import whole_file

__all__ = ["write"]


def write(record: Record, path: Path) -> None:
    """Write the page of ``record``, whole or not at all; equal records give the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    text = render(record)
    with whole_file(path) as file:
        file.write(text.encode())
