"""After a syntax error the rest is checked, and nothing is said that follows from the error."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuscoc.lang.parser import MAX_SYNTAX_ERRORS
from tests.lang.found import errors
from tests.lang.mistakes import COMMENT, EXAMPLES, code, good, spoilt

MOE = next(text for text in EXAMPLES if "shuffle moe" in text)
UNPACK = next(text for text in EXAMPLES if "shuffle vit_unpack" in text)
SYNTAX = {"FSC001", "FSC002", "FSC003"}
COMMENTS = {each for text in EXAMPLES for each in COMMENT.findall(text)}


def shows_all(text: str) -> bool:
    """Whether no mistake hides the rest of its line, and with it what is declared there."""
    return "#" not in code(text) and COMMENTS.issuperset(COMMENT.findall(text))


@given(spoilt(most=1).filter(shows_all))
@example(MOE.replace("route   r(t, k)", "route   rtokens, k)"))
@example(MOE.replace("layout  by_token", "layout  by;_token"))
@example(MOE.replace("segment token", "segment to,ken"))
@example(MOE.replace("layout  by_token", "layout  s;by_token"))  # as slots are called
@example(UNPACK.replace("segment patch {", "segment patch ("))
def test_one_syntax_error_is_all_that_is_reported(text: str) -> None:
    """Nothing else is wrong, so nothing of the check may come along."""
    found = errors(text)
    if any(each.code in SYNTAX for each in found):
        assert {each.code for each in found} <= SYNTAX, found


@pytest.mark.parametrize("misspelt", ["onon h", "onh", "an h"])
def test_an_option_that_cannot_be_read_may_say_the_rank(misspelt: str) -> None:
    [text] = (each.replace("on h /", f"{misspelt} /") for each in EXAMPLES if "on h /" in each)
    assert [each.code for each in errors(text)] == ["FSC001"]


@given(good, st.sampled_from(["place", "weight", "combine", "dispatch"]), st.data())
def test_the_rest_is_checked(text: str, keyword: str, data: st.DataObject) -> None:
    """A layout of something unknown, while a declaration that it does not need is broken."""
    starts = [match.end() for match in re.finditer(rf"^ *{keyword} +\w+", code(text), re.MULTILINE)]
    elements = [match.span(1) for match in re.finditer(r"\] +of (\w+)", code(text))]
    if not starts:
        return
    at = data.draw(st.sampled_from(starts))
    start, end = data.draw(st.sampled_from(elements))
    text = f"{text[:start]}{'z' * (end - start)}{text[end:]}"
    found = errors(f"{text[:at]} ] {text[at:]}")
    shift = 3 if start > at else 0
    assert [(each.code, each.primary.span.start) for each in found] == (
        sorted([("FSC001", at + 1), ("FSC011", start + shift)], key=lambda place: place[1])
    )


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("index k : topk", "index k :"),
        ("index k : topk", "indx k : topk"),
        ("index t : tokens", "index : tokens"),
        ("const hidden = 7168", "const = 7168"),
        ("segment token {", "segment token "),
        ("segment token { x : bf16[hidden] }", "segment token { x : bf16[hidden] } }"),
        ("place   e on rank by block", "place e by block"),
        ("route   r(t, k) -> e ", "route r t, k -> e "),
        ("-> by_expert[r(t, k), *]  dedup", "=> by_expert[r(t, k), *]  dedup"),
        ("dedup(node, rank)", "dedup node, rank"),
        ("combine  by_expert[r(t, k), *] ->", "combine  by_expert ->"),
        ("shuffle moe {", "shuffle moe"),
        ("sum(w)\n}", "sum(w)\n"),
    ],
)
def test_a_broken_declaration_breaks_nothing_else(right: str, wrong: str) -> None:
    assert right in MOE
    found = errors(MOE.replace(right, wrong))
    assert [each.code for each in found] == ["FSC001"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("segment token {", "segment token "),
        ("place   e on rank by block", "place e by block"),
        ("weight  w(t, k) : f32", "weight  w[t, k] : f32"),
        ("dedup(node, rank)", "dedup node, rank"),
        ("combine  by_expert[r(t, k), *] ->", "combine  by_expert ->"),
    ],
)
def test_swapped_indices_are_found_beside_a_broken_declaration(right: str, wrong: str) -> None:
    """Unless it is that of an index, so that nothing is known of what is declared for it."""
    assert right in MOE
    found = errors(
        MOE.replace(right, wrong).replace("-> by_expert[r(t, k)", "-> by_expert[r(k, t)")
    )
    assert sorted(each.code for each in found) == ["FSC001", "FSC041"]


def test_what_a_broken_declaration_mentions_is_used() -> None:
    """So a key that is an index on purpose is not taken for one whose route was forgotten."""
    text = """
    shuffle s {
      index t : tokens
      index e : 8
      segment token { x : u8 }
      layout a[t] of token
      layout b[e, s] of token packed(s)
      place e on rank by block
      route r(t) -> e = input keys : int64
      view half[t] = a[r(t) * 2 .. ]
      dispatch a[t] -> b[e, *]
    }"""
    assert [each.code for each in errors(text)] == ["FSC001"]
    other = text.replace("r(t) * 2", "2").replace("view", "viw")
    assert [each.code for each in errors(other)] == ["FSC001", "FSC041"]


@pytest.mark.parametrize("option", ["", "dedup(rank) ", "slice 4 MiB dedup(rank)\n    "])
def test_a_reduction_on_the_way_out_is_one_mistake(option: str) -> None:
    text = re.sub(r"dedup.*\n *combine .*", f"{option}reduce sum(w)\n  combine reverse", MOE)
    assert [each.code for each in errors(text)] == ["FSC001"]


def test_the_shuffle_after_one_without_its_brace_is_checked() -> None:
    other = MOE.replace("shuffle moe", "shuffle other").replace(
        "of token  packed", "of tokn  packed"
    )
    found = errors(MOE.rstrip().removesuffix("}") + other)
    assert [each.code for each in found] == ["FSC001", "FSC011"]


def test_very_many_errors_end() -> None:
    found = errors("shuffle a {\n" + "  index t = 4\n" * 100 + "}\n")
    assert len(found) == MAX_SYNTAX_ERRORS
