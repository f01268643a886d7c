"""Which new names are taken for misspelt ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.lang.check import check_file
from fuscoc.lang.slips import is_slip
from fuscoc.source import SourceFile
from fuscoc.testing.texts import texts

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SLIPS = [
    *[("hiden", "hidden"), ("hiddden", "hidden"), ("hidde", "hidden"), ("hiddne", "hidden")],
    *[("chanels", "channels"), ("hidfen", "hidden"), ("Hidden", "hidden"), ("rnaks", "ranks")],
    *[("num_heds", "num_heads"), ("numheads", "num_heads"), ("lenght_sequnce", "length_sequence")],
]
DIFFERENT = [
    *[("m", "n"), ("h", "w"), ("N", "n"), ("nx", "ny"), ("tokens", "token"), ("pages", "page")],
    *[("num_q", "num_k"), ("q_heads", "k_heads"), ("qlen", "klen"), ("rows", "cols")],
    *[("rows_1", "rows_2"), ("tokens", "tokens2"), ("rows_in", "rows"), ("height", "weight")],
    *[("nrows", "rows"), ("lanes", "lines"), ("lengthq", "lengthk"), ("width", "depth")],
    *[("inputs", "outputs"), ("hidden", "hidden"), ("tokens", "topk"), ("heads", "hidden")],
]


@pytest.mark.parametrize(("name", "other"), SLIPS)
def test_slips(name: str, other: str) -> None:
    assert is_slip(name, other)
    assert is_slip(other, name)


@pytest.mark.parametrize(("name", "other"), DIFFERENT)
def test_names_that_only_resemble_each_other(name: str, other: str) -> None:
    assert not is_slip(name, other)
    assert not is_slip(other, name)


@given(st.text(LETTERS, min_size=6, max_size=12), st.integers(0, 2**32))
def test_a_letter_left_out_is_a_slip(word: str, seed: int) -> None:
    at = random.Random(seed).randrange(1, len(word))
    left_out = word[:at] + word[at + 1 :]
    assert is_slip(left_out, word) == (word != f"{left_out}s")


@given(st.text(LETTERS, max_size=4), st.text(LETTERS, max_size=4))
def test_short_names_are_never_slips(name: str, other: str) -> None:
    assert not is_slip(name, other)


def warned(index: str, const: str, use: str) -> list[str]:
    text = f"""
    shuffle s {{
      const {const} = 4
      index t : {index}
      segment one {{ x : f32[{use}] }}
      layout source[t] of one
      layout target[s] of one dense(4)
      dispatch source[t] -> target[0] on 0
    }}"""
    return [each.code for each in check_file(SourceFile("s.fsc", text)).warnings]


def test_a_constant_that_is_meant_is_not_reported_as_unused() -> None:
    assert warned("hiden", "hidden", "8") == ["FSC091"]
    assert warned("hiden", "hidden", "hidden") == ["FSC091"]
    assert warned("other", "hidden", "8") == ["FSC090"]


def test_a_plural_is_meant_if_nothing_else_uses_the_constant() -> None:
    assert warned("expert", "experts", "8") == ["FSC091"]
    assert warned("pages", "page", "page") == []


@given(texts())
def test_generated_specs_have_no_almost_equal_names(text: str) -> None:
    assert "FSC091" not in [each.code for each in check_file(SourceFile("t.fsc", text)).warnings]
