"""Specs that a tired person could have written: good and bad ones, mutated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hypothesis import strategies as st

from fuscoc.lang.policy import CHOICES
from fuscoc.testing.texts import texts as generated

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
WRITTEN = [
    *(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("examples/*.fsc"))),
    *(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tests/errors/*.fsc"))),
    *re.findall(r"^```fsc.*?\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL),
]
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|->|\.\.|\s+|.")
OUT = re.compile(r"(\bdispatch\b[^{}]*?->\s*\w+\[[^\]]*\])")
CONSTANT = re.compile(r"\b([a-z_]\w*) *= *\d")
WORDS = """
shuffle const index segment layout view place route weight dispatch combine of packed dense align
capacity exact max on rank ranks by block cyclic table input dedup none balance schedule fast auto
backend cuda slice MiB cast reverse reduce sum f8e4m3 bf16 u8 int64 int32
{ } ( ) [ ] , : = -> .. . + - * / % // @ é 中 \x00"""
NUMBERS = [0, 1, 2, 3, 7, 16, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 10**29]
CHARACTERS = "\t\n\r\\\"'`;#$&<>?!^~|_0aZ é\u200b\ufeff\ud7ff\U0001f600"

sources = st.sampled_from(WRITTEN) | generated()
numbers = st.sampled_from(NUMBERS).map(str)
words = st.sampled_from(WORDS.split())


@dataclass(frozen=True)
class Case:
    """A text and what ``-D`` says."""

    text: str
    defines: dict[str, int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A spec for any backend, or the one that it demands, with up to four tokens or characters
    changed and some of its constants overridden."""
    text = draw(sources)
    text = draw(st.just(text) | st.sampled_from(CHOICES["backend"]).map(partial(_demand, text)))
    constants = sorted(set(CONSTANT.findall(text))) or ["n"]
    for _ in range(draw(st.integers(0, 4))):
        change = draw(st.sampled_from([_change_tokens, _change_characters, _change_number]))
        text = change(draw, text)
    defines = st.dictionaries(st.sampled_from(constants), st.sampled_from(NUMBERS), max_size=2)
    return Case(text, draw(st.just({}) | defines))


def _demand(text: str, backend: str) -> str:
    """The text with another backend."""
    return OUT.sub(rf"\1 backend {backend}", re.sub(r"\bbackend \w+", "", text))


def _change_tokens(draw: st.DrawFn, text: str) -> str:
    """One token deleted, doubled, swapped with another, replaced or added, or the rest cut off."""
    tokens = TOKEN.findall(text) or [""]
    at, other = (draw(st.integers(0, len(tokens) - 1)) for _ in range(2))
    word = draw(words | numbers | st.sampled_from(tokens))
    match draw(st.sampled_from(["delete", "double", "swap", "replace", "insert", "move", "cut"])):
        case "delete":
            del tokens[at]
        case "double":
            tokens.insert(at, tokens[at])
        case "swap":
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case "replace":
            tokens[at] = word
        case "insert":
            tokens.insert(at, f" {word} ")
        case "move":
            tokens.insert(other, tokens.pop(at))
        case "cut":
            del tokens[at:]
    return "".join(tokens)


def _change_characters(draw: st.DrawFn, text: str) -> str:
    """A few neighbouring characters replaced."""
    at = draw(st.integers(0, len(text)))
    new = draw(st.text(CHARACTERS, max_size=3))
    return text[:at] + new + text[at + draw(st.integers(0, 3)) :]


def _change_number(draw: st.DrawFn, text: str) -> str:
    """One number replaced by another, which often leaves a correct spec."""
    places = [match.span() for match in re.finditer(r"\b\d+\b", text)]
    if not places:
        return text
    start, end = draw(st.sampled_from(places))
    return text[:start] + draw(numbers) + text[end:]
