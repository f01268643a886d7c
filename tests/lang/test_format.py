"""The formatter: one form for each text, the same tree, every comment, whatever the text."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.diagnostics import CompileError, DiagnosticSink
from fuscoc.lang import ast
from fuscoc.lang.format import WIDTH, format_text
from fuscoc.lang.parser import parse
from fuscoc.source import SourceFile
from fuscoc.testing.texts import texts
from tests.drawn import at_night
from tests.lang.grammar_texts import grammar_text, spaced

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*.fsc"))
REFERENCE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```fsc.*?\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)
# Only space, comments and the comma after a segment's last field may differ between two forms.
WORD = re.compile(r"[A-Za-z_]\w*|\d\w*(?:\.\d\w*)?|->|\.\.|[^\s\w]")
COMMENT = re.compile(r"//[^\n]*")


def formatted(text: str) -> str:
    return format_text(SourceFile("test.fsc", text))


def tree(text: str) -> tuple[ast.Shuffle, ...]:
    sink = DiagnosticSink(SourceFile("test.fsc", text))
    shuffles = parse(sink.source, sink)
    sink.raise_errors()
    return shuffles


def comments(text: str) -> list[str]:
    return [comment.rstrip() for comment in COMMENT.findall(text)]


def words(text: str) -> list[str]:
    found = WORD.findall(COMMENT.sub("", text))
    return [
        word for word, after in zip(found, [*found[1:], ""], strict=True) if word + after != ",}"
    ]


def assert_well_formatted(text: str) -> str:
    result = formatted(text)
    assert tree(result) == tree(text)
    assert comments(result) == comments(text)
    assert words(result) == words(text)
    assert formatted(result) == result
    assert result.endswith("\n")
    assert not re.search(r"[^\S\n]\n|\n\n\n|\n\n\Z|\A\n|\t|\r|\{\n\n|\n\n\s*\}", result)
    return result


@settings(max_examples=at_night(400))
@given(st.integers(0, 2**32))
def test_whatever_the_grammar_allows(seed: int) -> None:
    text = grammar_text(seed)
    try:
        tree(text)
    except CompileError:  # a keyword that was drawn as a name where it is none
        return
    assert_well_formatted(text)


def test_most_of_what_is_drawn_from_the_grammar_is_text() -> None:
    good = 0
    for seed in range(100):
        sink = DiagnosticSink(SourceFile("test.fsc", grammar_text(seed)))
        good += bool(parse(sink.source, sink))
    assert good > 80


@settings(max_examples=at_night(100))
@given(texts(), st.integers(0, 2**32))
def test_specs_with_any_space_between_their_words(text: str, seed: int) -> None:
    plain = assert_well_formatted(text)
    assert all(len(line) <= WIDTH for line in plain.splitlines())
    found = WORD.findall(COMMENT.sub("", text))
    assert formatted("\n".join(found)) == plain  # without comments and empty lines, one form
    assert formatted(" ".join(found)) == plain
    assert_well_formatted(spaced(found, random.Random(seed), 0.1))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_in_their_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert assert_well_formatted(text) == text
    mangled = spaced(WORD.findall(COMMENT.sub("", text)), random.Random(1), 0.1)
    assert tree(assert_well_formatted(mangled)) == tree(text)


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.split("{")[0].strip())
def test_every_construct_of_the_reference(text: str) -> None:
    assert assert_well_formatted(text) == text


FORMS = {
    "declarations on lines of their own, keywords in columns": (
        """
shuffle a{const n=8,m=2*(n+1) index t:tokens index long:f(t)/m segment s{x:bf16[n],y:i64}
segment other{z:u8} layout in[t] of s
layout by_expert[e,s] of other packed(s)align 128 capacity max 65_536
view v[t]=in[t*n .. (t+1)*n]place e on rank by table owner
route r(t,k)->(rank,slot)=input q:int64[2] weight w(t,k):f32=input u
dispatch v[t]->by_expert[r(t,k),*]on r(t).rank dedup(node,rank)slice 4 MiB
combine reverse reduce sum(w)}
""",
        """\
shuffle a {
  const n = 8, m = 2 * (n + 1)
  index t    : tokens
  index long : f(t) / m
  segment s     { x : bf16[n], y : i64 }
  segment other { z : u8 }
  layout  in[t]           of s
  layout  by_expert[e, s] of other  packed(s) align 128 capacity max 65_536
  view    v[t] = in[t*n .. (t+1)*n]
  place   e on rank by table owner
  route   r(t, k) -> (rank, slot)  = input q : int64[2]
  weight  w(t, k) : f32            = input u
  dispatch v[t] -> by_expert[r(t, k), *] on r(t).rank  dedup(node, rank) slice 4 MiB
  combine  reverse reduce sum(w)
}
""",
    ),
    "parentheses of arguments and of their own": (
        "shuffle a { index t : max ( n ) - ( 2 ) dispatch a[ t ] -> b[ *, (t) ] on ( rank + 1 ) }",
        """\
shuffle a {
  index t : max(n) - (2)
  dispatch a[t] -> b[*, (t)] on (rank + 1)
}
""",
    ),
    "empty lines, one at a time, and between shuffles": (
        "\n\nshuffle a {\n\n\nindex t : 1\n\n\n\nindex u : 2\n\n}shuffle b {\nindex t : 3 }\n\n",
        """\
shuffle a {
  index t : 1

  index u : 2
}

shuffle b {
  index t : 3
}
""",
    ),
    "no columns across an empty line": (
        "shuffle a { index t : 1 index long : 2\n\nindex u : 3 }",
        """\
shuffle a {
  index t    : 1
  index long : 2

  index u : 3
}
""",
    ),
    "a comma after the last field": (
        "shuffle a { segment s { x : u8, scales : f32, } }",
        """\
shuffle a {
  segment s {
    x      : u8,
    scales : f32,
  }
}
""",
    ),
    "a comment in a segment": (
        "shuffle a { segment s { x : u8 // payload\n, y : f32 // scale\n // done\n} }",
        """\
shuffle a {
  segment s {
    x : u8,   // payload
    y : f32,  // scale
    // done
  }
}
""",
    ),
    "comments above, beside and inside": (
        """// file

shuffle a { // head
// above
const n = 1, // one
m = 2 // two
index t : 1

// last
} // end
// rest""",
        """\
// file

shuffle a {  // head
  // above
  const n = 1,  // one
    m = 2       // two
  index t : 1

  // last
}  // end
// rest
""",
    ),
    "comments in a column stay there": (
        """shuffle a {
index t : 1         // one
index u : 2         // two

index v : 3 // three
index w : 4  // four
}""",
        """\
shuffle a {
  index t : 1       // one
  index u : 2       // two

  index v : 3  // three
  index w : 4  // four
}
""",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.values(), ids=list(FORMS))
def test_form(text: str, expected: str) -> None:
    assert assert_well_formatted(text) == expected


def test_long_declarations_go_on_below() -> None:
    names = [f"a_name_of_twenty_{i:02}" for i in range(9)]
    text = f"""shuffle a {{
  const {", ".join(f"{name} = 1" for name in names)}
  segment s {{ {", ".join(f"{name} : u8" for name in names)} }}
  layout by_expert[{names[0]}, {names[1]}] of {names[2]} packed({names[3]}) align {names[4]}
  dispatch {names[0]}[t] -> {names[1]}[{names[2]}] on {" + ".join(names[:5])} dedup(node, rank)
}}"""
    assert assert_well_formatted(text).splitlines() == [
        "shuffle a {",
        "  const a_name_of_twenty_00 = 1, a_name_of_twenty_01 = 1, a_name_of_twenty_02 = 1,",
        "    a_name_of_twenty_03 = 1, a_name_of_twenty_04 = 1, a_name_of_twenty_05 = 1,",
        "    a_name_of_twenty_06 = 1, a_name_of_twenty_07 = 1, a_name_of_twenty_08 = 1",
        "  segment s {",
        *(f"    {name} : u8," for name in names),
        "  }",
        "  layout  by_expert[a_name_of_twenty_00, a_name_of_twenty_01] of a_name_of_twenty_02",
        "    packed(a_name_of_twenty_03) align a_name_of_twenty_04",
        "  dispatch a_name_of_twenty_00[t] -> a_name_of_twenty_01[a_name_of_twenty_02]",
        f"    on {' + '.join(names[:4])}",
        f"      + {names[4]}",
        "    dedup(node, rank)",
        "}",
    ]


def test_deep_parentheses() -> None:
    nested = "(" * 5000 + "1" + ")" * 5000
    assert formatted(f"shuffle a {{ index t : {nested} }}").count("(") == 5000


def test_syntax_errors_are_raised_all() -> None:
    with pytest.raises(CompileError) as caught:
        formatted("shuffle a { index t 1\n index u : }")
    assert len(caught.value.diagnostics) == 2
