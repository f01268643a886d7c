"""README and docs, and the blocks of code in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "runtime").rglob("*.md")),
    )
}
BLOCK = re.compile(r"^```(\S*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str = "") -> list[str]:
    """The blocks that are marked with a language, or with none."""
    return [text for found, text in BLOCK.findall(PAGES[page]) if found == language]


def prose(page: str) -> str:
    """A page without its blocks."""
    return BLOCK.sub("", PAGES[page])


def command_lines(page: str) -> list[list[str]]:
    """Commands of fuscoc that stand on lines of their own, in words."""
    lines = [line for text in blocks(page) for line in text.splitlines()]
    return [
        shlex.split(line.removeprefix("$ "), comments=True)[1:]
        for line in lines
        if re.match(r"(\$ )?fuscoc [a-z]", line)
    ]
