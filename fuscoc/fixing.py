"""Safe fixes, applied: to a text until none is left, and to a file as a whole or not at all."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from fuscoc.diagnostics import Diagnostic, Fix
from fuscoc.source import SourceFile

# A fix may uncover the next mistake. No text of a person needs as many rounds; two fixes that undo
# each other would never end.
MAX_ROUNDS = 50


class FileChangedError(OSError):
    """A file that does not hold what was read from it."""


@dataclass(frozen=True)
class Applied:
    """One fix that was made: ``source`` is the text before, ``code`` that of its diagnostic."""

    source: SourceFile
    code: str
    fix: Fix

    def __str__(self) -> str:
        """The place and the change, in a line."""
        line, column = self.source.line_column(self.fix.span.start)
        old = self.source.text[self.fix.span.start : self.fix.span.end].strip()
        new = self.fix.replacement.strip()
        what = f"{'removed' if old else 'added'} `{old or new}`"
        if old and new:
            what = f"`{old}` -> `{new}`"
        return f"{self.source.path}:{line}:{column}: {self.code}: {' '.join(what.split())}"


def fix_source(
    source: SourceFile, find: Callable[[SourceFile], Iterable[Diagnostic]]
) -> tuple[SourceFile, tuple[Applied, ...]]:
    """The text after all safe fixes of what ``find`` finds in it, and those fixes in order."""
    applied: list[Applied] = []
    for _ in range(MAX_ROUNDS):
        chosen = _chosen(find(source))
        if not chosen:
            break
        applied += [Applied(source, each.code, fix) for each, fix in chosen]
        source = SourceFile(source.path, apply(source.text, [fix for _, fix in chosen]))
    return source, tuple(applied)


def apply(text: str, fixes: Sequence[Fix]) -> str:
    """The text with fixes made that do not overlap."""
    for fix in sorted(fixes, key=lambda each: each.span.start, reverse=True):
        text = text[: fix.span.start] + fix.replacement + text[fix.span.end :]
    return text


def _chosen(diagnostics: Iterable[Diagnostic]) -> list[tuple[Diagnostic, Fix]]:
    """The safe fixes, without any that overlaps one before it: the next round finds that again."""
    chosen: list[tuple[Diagnostic, Fix]] = []
    end = -1
    for each in sorted(diagnostics, key=lambda d: d.fix.span.start if d.fix else -1):
        if each.fix is not None and each.fix.safe and each.fix.span.start > end:
            chosen.append((each, each.fix))
            end = each.fix.span.end
    return chosen


def diff(before: SourceFile, after: SourceFile) -> str:
    """The changes between two texts of a file, as ``diff -u`` and ``patch`` know them."""
    old, new = (io.StringIO(each.text, newline="\n").readlines() for each in (before, after))
    found = unified_diff(old, new, before.path, after.path)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found
    )


def write_source(before: SourceFile, after: SourceFile) -> None:
    """Put a changed text in its file's place in one step; permissions and byte order mark stay.

    Raises:
        FileChangedError: the file does not hold the text ``before``; it is left as it is.
        OSError: that names it, also where the disk is full.
    """
    target = Path(os.path.realpath(before.path))  # what a link leads to is replaced, not the link
    found = target.read_bytes()
    mark = codecs.BOM_UTF8 if found.startswith(codecs.BOM_UTF8) else b""
    if found != mark + before.text.encode():
        raise FileChangedError(f"{before.path} is not UTF-8, or has just been changed: not fixed")
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(mark + after.text.encode())
            shutil.copymode(target, beside)
            os.replace(beside, target)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename = before.path
        raise
