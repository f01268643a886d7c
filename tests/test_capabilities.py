"""What backends cannot do: every entry of the tables, and that all who ask are told the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fuscoc.capabilities import (
    CUDA,
    DEMANDED,
    GENERAL,
    TRITON_NODE,
    Table,
    computes_slowly,
    find_fault,
)
from fuscoc.cli import app
from fuscoc.diagnostics import CompileError, Diagnostic
from fuscoc.lang.check import check, check_file
from fuscoc.lang.policy import CHOICES
from fuscoc.manifest import CompiledShuffle
from fuscoc.source import SourceFile
from tests.casts.specs import routed as routed_cast


@dataclass(frozen=True)
class Example:
    """A spec that an entry objects to, the text that it points at, and its reason."""

    text: str
    at: str
    reason: str


def spec(
    *more: str,
    indices: str = "t, k",
    fan: int = 2,
    keys: int = 8,
    fields: str = "x : bf16[64]",
    table: str = "layout table[t] of item",
    source: str = "table[t]",
    packing: str = "",
    route: str = "route r({}) -> e = input keys : int64",
    target: str = "by_key[r({}), *]",
    options: str = "",
    combine: str = "",
) -> str:
    """Rows of a table to keys, with what differs from that; ``more`` is further declarations."""
    lines = [
        "index t : tokens",
        f"index k : {fan}",
        f"index e : {keys}",
        *more,
        f"segment item {{ {fields} }}",
        table,
        f"layout by_key[e, s] of item packed(s) {packing}",
        "place e on rank by cyclic",
        route.format(indices),
        f"dispatch {source} -> {target.format(indices)} backend auto {options}",
        combine,
    ]
    return "\n".join(["shuffle rows {", *lines, "}", ""])


def cast_spec(text: str) -> str:
    return text.replace("cast(", "backend auto cast(")


def sum_of(names: list[str]) -> str:
    return f"route r({{}}) -> e = ({' + '.join(names)}) % 8"


NINE = range(9)
GATHERED = """shuffle rows {
index t : tokens
index s : room
segment item { x : bf16[64] }
layout mine[t] of item
layout all[s] of item
dispatch mine[t] -> all[rank * tokens + t] on 0 backend auto
}
"""
EXAMPLES = {
    "demands_triton": Example(
        spec().replace("backend auto", "backend triton"),
        "backend triton",
        "the spec says `backend triton`",
    ),
    "demands_cuda": Example(
        spec().replace("backend auto", "backend cuda"),
        "backend cuda",
        "the spec says `backend cuda`",
    ),
    "replies": Example(
        spec(combine="reply back[t] of item reduce sum"),
        "reply back[t] of item reduce sum",
        "its reply has rows of its own, and these kernels bring back those that they sent",
    ),
    "replies_from_given_slots": Example(
        spec(
            "index at : length",
            "layout slots[at] of item dense(length)",
            target="slots[r({0}) / 2] on r({0}) % 2",
            combine="reply back[t] of item reduce sum",
        ),
        "reply back[t] of item reduce sum",
        "its reply is of a dense target, whose slots these kernels keep for pieces alone",
    ),
    "answers": Example(
        spec(
            "weight w(t, k) : f64 = input weights",
            "segment answer { y : f64[2] }",
            combine="reply back[t] of answer reduce sum(w)",
        ),
        "w",
        "its weights are f64, and so are what they weigh",
    ),
    "places_segments": Example(
        spec(
            "index y : rows",
            "route from(t) -> y = input places : int64",
            "view moved[t] = table[from(t)]",
            table="layout table[y] of item dense(rows)",
            source="moved[t]",
            combine="combine reverse reduce sum",
        ),
        "moved[t]",
        "inputs say where its segments lie, and some have other than one given slot",
    ),
    "repeats_rows": Example(
        spec(options="dedup(node)"),
        "dedup(node)",
        "it says `dedup(node)`, and these kernels send a segment to a rank once",
    ),
    "pads_far": Example(
        spec(keys=2048, packing="align 1048576"),
        "by_key[r(t, k), *]",
        "it has 2048 keys from multiples of 1048576 on, more slots than its kernels count",
    ),
    "fans_out_far": Example(
        spec("index two : 2", indices="t, k, two", fan=17),
        "k",
        "a segment has 34 destinations, more than 32",
    ),
    "goes_everywhere_unlike_rows": Example(
        spec().replace("index k : 2", "index k : ranks"),
        "k",
        "a segment goes to all ranks, and its slots are not given",
    ),
    "has_many_fields": Example(
        spec(fields=", ".join(f"f{i} : f32" for i in NINE)),
        "f8",
        "a segment has 9 fields, more than 8",
    ),
    "weighs_in_f64": Example(
        spec(
            "weight w(t, k) : f64 = input weights",
            fields="x : f64",
            combine="combine reverse reduce sum(w)",
        ),
        "w",
        "its weights are f64, and so are what they weigh",
    ),
    "fans_out_very_far": Example(
        spec("index two : 2", indices="t, k, two", fan=513),
        "k",
        "a segment has 1026 destinations, more than 1024",
    ),
    "has_many_inputs": Example(
        spec(
            *(f"route of{i}(t, k) -> value = input given{i} : int64" for i in NINE),
            route=sum_of([f"of{i}(t, k)" for i in NINE]),
        ),
        "given8",
        "it has more than 8 inputs",
    ),
    "has_many_extents": Example(
        spec(*(f"index i{i} : n{i}" for i in NINE), route=sum_of([f"n{i}" for i in NINE])),
        "dispatch table[t] -> by_key[r(t, k), *] backend auto",
        "it has more than 8 run-time extents",
    ),
    "casts_long_rows": Example(
        cast_spec(routed_cast("x : f32[hidden]", "x : f8e4m3[hidden]", "x", hidden=40960)),
        "x",
        "a row that is cast is too long for shared memory",
    ),
    "computes_slowly": Example(
        cast_spec(routed_cast("x : u8[hidden]", "x : bf16[hidden]", "x / 255", combine="")),
        "x / 255",
        "its cast computes, which Triton's kernels do faster: `backend cuda` takes these",
    ),
    "computes_with_inputs": Example(
        cast_spec(
            routed_cast("x : u8[hidden]", "x : bf16[hidden]", "x * gain", combine="").replace(
                "index t", "const gain = input gains : f32 index t", 1
            )
        ),
        "x * gain",
        "its cast computes with `gains`, which a call gives",
    ),
    "compares_extents": Example(
        GATHERED,
        "all[rank * tokens + t]",
        "all ranks must give the same `tokens`, which these kernels do not compare",
    ),
    "has_many_keys": Example(
        spec(keys=4096),
        "by_key[r(t, k), *]",
        "4096 keys do not fit in the planner's shared memory",
    ),
    "has_very_many_keys": Example(
        spec(keys=65536, packing="compact"),
        "by_key[r(t, k), *]",
        "it has 65536 keys, more than 65528",
    ),
}
REFUSED = {
    entry.__name__: EXAMPLES[entry.__name__].text.replace("backend auto", "backend cuda")
    for entry in CUDA[1:]
    if entry is not computes_slowly  # which a demand overrules
}


@pytest.mark.parametrize(
    ("table", "index"),
    [(table, index) for table in (CUDA, TRITON_NODE, GENERAL) for index in range(len(table))],
    ids=lambda each: each if isinstance(each, int) else "cuda" if each is CUDA else "triton",
)
def test_every_entry_has_an_example(table: Table, index: int) -> None:
    entry = table[index]
    example = EXAMPLES[entry.__name__]
    (checked,) = check(SourceFile("rows.fsc", example.text))
    fault = find_fault(checked, table)
    assert fault is not None
    assert next(entry(checked)) == fault, "no other entry objects before"
    assert (fault.reason, example.text[fault.span.start : fault.span.end]) == (
        example.reason,
        example.at,
    )
    item = CompiledShuffle(checked, None, {})
    assert (item.cuda if table is CUDA else item.node) == example.reason


EVERYWHERE = """shuffle gather {
  index t : tokens
  index b : 2
  index p : ranks
  index s : length
  segment row { x : f32[4] }
  layout mine[t, b] of row  dense(tokens, 2)
  layout all[s] of row  dense(length)
  dispatch mine[t, b] -> all[t * 2 + b] on p
  combine reverse reduce sum
}
"""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([], None),
        (
            [
                ("layout mine[t, b] of row  dense(tokens, 2)", "layout mine[b, t] of row"),
                ("dispatch mine", "view turned[t, b] = mine[b, t]\n  dispatch turned"),
            ],
            "does not lie",
        ),
        ([("x : f32[4]", "x : f32[4], y : f32[4]")], "more than one row"),
        ([("f32[4]", "f32[3]")], "no multiple of 16 bytes"),
        ([("reduce sum", "reduce max")], "not a plain sum"),
        (
            [
                ("index b : 2", "index b : sizes(t)"),
                ("dense(tokens, 2)", ""),
                ("all[t * 2 + b]", "all[first(t) + b]"),
                ("  dispatch", "  route first(t) -> s = input slots : int64\n  dispatch"),
            ],
            "inputs say how many",
        ),
    ],
)
def test_what_goes_everywhere(changes: list[tuple[str, str]], reason: str | None) -> None:
    text = EVERYWHERE
    for old, new in changes:
        text = text.replace(old, new)
    (checked,) = check(SourceFile("gather.fsc", text))
    fault = find_fault(checked, CUDA)
    if reason is None:
        assert fault is None
    else:
        assert fault is not None
        assert reason in fault.reason


def test_every_example_is_of_an_entry() -> None:
    assert EXAMPLES.keys() == {each.__name__ for each in (*CUDA, *TRITON_NODE, *GENERAL)}
    assert DEMANDED.keys() == set(CHOICES["backend"])


def errors_of(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(CompileError) as refused:
        check_file(SourceFile("rows.fsc", text))
    return refused.value.diagnostics


@pytest.mark.parametrize("name", REFUSED)
def test_a_demand_is_refused_at_what_is_at_fault(name: str) -> None:
    text, example = REFUSED[name], EXAMPLES[name]
    (error,) = errors_of(text)
    assert error.code == "FSC071"
    assert error.primary.text == example.reason
    at = error.primary.span
    assert text[at.start : at.end] == example.at.replace("backend auto", "backend cuda")
    (demanded,) = error.secondary
    assert text[demanded.span.start : demanded.span.end] == "backend cuda"


def reported(*command: str) -> list[dict[str, Any]]:
    """The diagnostics that a command refuses a spec with."""
    done = CliRunner().invoke(app, [*command, "--format", "json"])
    assert done.exit_code == 1
    found: list[dict[str, Any]] = json.loads(done.stdout)["diagnostics"]
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_check_and_compile_say_the_same(name: str, tmp_path: Path) -> None:
    path, output = tmp_path / "rows.fsc", tmp_path / "out"
    path.write_text(REFUSED[name])
    found = reported("check", str(path))
    assert found == reported("compile", str(path), "-o", str(output))
    assert [each["code"] for each in found] == ["FSC071"]
    assert not output.exists()


@pytest.mark.parametrize("name", REFUSED)
def test_an_editor_says_what_check_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pygls", reason="editors need the extra `lsp`")
    from pygls.workspace import TextDocument

    from fuscoc.lsp.server import OpenText

    path = tmp_path / "rows.fsc"
    path.write_text(REFUSED[name])
    server: Any = SimpleNamespace(workspace=SimpleNamespace(position_encoding=None))
    text = OpenText(TextDocument(path.as_uri(), REFUSED[name]), server)
    assert [
        (each.code, each.primary.text, each.primary.span.start, each.primary.span.end)
        for each in text.diagnostics()
    ] == [
        (each["code"], each["label"], *(each["range"][end]["offset"] for end in ("start", "end")))
        for each in reported("check", str(path))
    ]


@pytest.mark.parametrize(
    ("packing", "options"),
    [
        ("", "dedup(rank)"),
        ("align 16 capacity max 96", "dedup(node, rank)"),
        ("compact capacity exact", "balance rebalance schedule fast slice 1 MiB"),
    ],
)
def test_what_kernels_of_one_node_keep_to(packing: str, options: str) -> None:
    text = spec(packing=packing, options=options, combine="combine reverse reduce sum")
    (checked,) = check(SourceFile("rows.fsc", text))
    assert find_fault(checked, CUDA) is find_fault(checked, TRITON_NODE) is None
    check(SourceFile("rows.fsc", text.replace("backend auto", "backend cuda")))


def test_dedup_none_is_refused_or_left_to_the_general_engine() -> None:
    text = spec(options="dedup(none)")
    (error,) = errors_of(text.replace("backend auto", "backend cuda"))
    assert "`dedup(none)`" in error.primary.text
    for backend in ("auto", "triton"):
        (checked,) = check(SourceFile("rows.fsc", text.replace("auto", backend)))
        item = CompiledShuffle(checked, None, {})
        assert isinstance(item.cuda, str)
        assert isinstance(item.node, str)


def test_no_answer_needs_mlir() -> None:
    code = "import sys; from fuscoc.cli import app; app(sys.argv[1:], standalone_mode=False)"
    code = f"try:\n {code}\nfinally:\n print(*(n for n in sys.modules if 'mlir' in n))"
    spec_of = str(Path(__file__).parent / "errors" / "unsupported_backend.fsc")
    done = subprocess.run(
        [sys.executable, "-c", code, "check", spec_of], capture_output=True, text=True, check=False
    )
    assert "FSC071" in done.stderr
    assert done.stdout.strip() == ""
