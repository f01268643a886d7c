"""Every code explained: ``fuscoc explain-error`` and ``docs/errors.md``.

The titles are in ``fuscoc.diagnostics.CATALOGUE``. A file ``FSCnnn.md`` beside this one holds the
explanation of a code, a spec that has the mistake (a block ``fsc wrong``) and one that has not
(``fsc right``); options of the command line that belong to an example follow these words. Codes of
the runtime are explained by the docstrings of their classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from inspect import getdoc

from fuscoc.diagnostics import CATALOGUE, nearest
from fuscoc_runtime.errors import ERRORS

_EXAMPLE = re.compile(r"^```fsc (wrong|right) *(.*)\n((?s:.*?))^```\n*", re.MULTILINE)


class UnknownCodeError(LookupError):
    """There is no such code; the message names one that is like it."""


@dataclass(frozen=True)
class Example:
    """A spec and the options of ``fuscoc check`` that it is to be seen with."""

    text: str
    options: str

    def __str__(self) -> str:
        """As Markdown."""
        options = f"With `{self.options}`:\n\n" if self.options else ""
        return f"{options}```fsc\n{self.text}```\n"


@dataclass(frozen=True)
class Explanation:
    """What a code means. Errors of the runtime have no examples."""

    code: str
    title: str
    text: str
    wrong: Example | None = None
    right: Example | None = None


def titles() -> dict[str, str]:
    """Every code with its title, those about specs first."""
    return CATALOGUE | {code: _sentences(code)[0] for code in sorted(ERRORS)}


def normal(code: str) -> str:
    """The code that is meant: ``fsc12`` and ``12`` are FSC012.

    Raises:
        UnknownCodeError: there is no such code.
    """
    parts = re.fullmatch(r"([A-Za-z]*)(\d+)", code)
    full = f"{(parts[1] or 'FSC').upper()}{parts[2]:0>3}" if parts else code.upper()
    if full in titles():
        return full
    like = nearest(full, titles())
    hint = f"; did you mean {like}?" if like else ""
    raise UnknownCodeError(f"there is no code `{code}`{hint}")


@cache
def explain(code: str) -> Explanation:
    """The explanation of a code of the catalogue or of the runtime."""
    if code in ERRORS:
        title, *rest = _sentences(code)
        return Explanation(code, title, " ".join(rest))
    page = files("fuscoc.errors").joinpath(f"{code}.md").read_text(encoding="utf-8")
    examples = {word: Example(text, options) for word, options, text in _EXAMPLE.findall(page)}
    text = _EXAMPLE.sub("", page).strip()
    return Explanation(code, CATALOGUE[code], text, examples["wrong"], examples["right"])


def page(code: str) -> str:
    """The explanation as Markdown."""
    found = explain(code)
    parts = [f"# {code}: {found.title}\n"]
    if found.text:
        parts.append(f"{found.text}\n")
    if found.wrong is not None:
        parts.append(f"## Wrong\n\n{found.wrong}")
    if found.right is not None:
        parts.append(f"## Right\n\n{found.right}")
    return "\n".join(parts)


def _sentences(code: str) -> list[str]:
    """The docstring of an error of the runtime: its first sentence as a title, then the others."""
    words = " ".join((getdoc(ERRORS[code]) or "").replace("``", "`").split())
    first, *rest = re.split(r"(?<=\.) (?=[A-Z`])", words)
    return [first[0].lower() + first[1:].rstrip("."), *rest]
