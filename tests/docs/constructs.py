"""Writes the table of constructs and backends into ``docs/language.md``.

python -m tests.docs.constructs

Every row is a spec, and every cell what the table of a backend's capabilities says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuscoc.capabilities import CUDA, GENERAL, TRITON_NODE, demands_cuda, find_fault
from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.lang.policy import CHOICES
from fuscoc.lang.reductions import REDUCTIONS
from fuscoc.source import SourceFile
from tests.casts.specs import SPECS as CASTS
from tests.casts.specs import routed
from tests.docs.pages import ROOT
from tests.test_capabilities import EXAMPLES, cast_spec, spec

PAGE = ROOT / "docs" / "language.md"
BEGIN, END = "<!-- constructs: make docs -->", "<!-- end of constructs -->"
BACKENDS = {
    "CUDA, one node": CUDA,
    "Triton, one node": TRITON_NODE,
    "Triton, any ranks": (demands_cuda, *GENERAL),
}
ORDER = ("f32", "bf16", "f16", "f64", "f8e4m3", "f8e5m2", "i8", "i16", "i32", "i64", "u8")


def example(name: str) -> str:
    """A spec of the examples."""
    return (ROOT / "examples" / f"{name}.fsc").read_text(encoding="utf-8")


def objected(entry: str) -> str:
    """The spec that an entry of the tables objects to."""
    return EXAMPLES[entry].text


GRID = spec(
    "index j : 2",
    "view blocks[t, j] = table[t*2 .. t*2+2, j*2 .. j*2+2]",
    indices="t, j",
    fields="x : bf16[2, 2]",
    table="layout table[y, z] of bf16 dense(tokens * 2, 4)",
    source="blocks[t, j]",
)
TURNED = spec(
    "index j : 4",
    "view turned[t, j] = table[j, t]",
    indices="t, j",
    table="layout table[j, t] of item",
    source="turned[t, j]",
    combine="combine reverse",
)
RAGGED = spec(
    "index line : size(t)",
    indices="t",
    table="layout table[t, line] of item",
    source="table[t, line]",
)
CHAINED = spec(
    "index g : 5",
    "route group(t, k) -> g = input groups : int64",
    "route of_group(g) -> e = input keys : int64",
    route="route r({0}) -> e = of_group(group({0}))",
)
BLOCKS = {
    "indices": "t, k",
    "fields": "x : bf16[4, 8]",
    "table": "layout table[y] of bf16[8] dense(tokens * 4)",
    "source": "blocks[t]",
}
VIEW = "view blocks[t] = table[t*4 .. t*4+4]"
DENSE = """shuffle rows {
  index t : tokens   index k : 2   index s : length
  segment item { x : f32[8] }
  layout table[t] of item
  layout slots[s] of item dense(length)
  route to(t, k) -> (rank, slot) = input places : int64[2]
  dispatch table[t] -> slots[to(t, k).slot] on to(t, k).rank
  combine reverse reduce sum
}
"""
CLIPPED = """shuffle halo {
  const lines = 64   index i : lines / ranks   index n : 3
  segment item { x : f32[8] }
  layout table[i] of item
  layout padded[q] of item dense(lines / ranks + 2)
  dispatch table[i] -> padded[1 + (1 - n) * (lines / ranks) + i] on rank + n - 1 clip
  combine reverse reduce sum
}
"""
VIEWED = """shuffle heads {
  const tokens = 64, heads = 8, block = 4
  index b : tokens / block
  index h : heads / ranks
  segment head { x : bf16[block, 16] }
  layout by_head[h, b] of head
  layout by_token[t, g] of bf16[16] dense(tokens / block / ranks * block, heads)
  view parts[a, g] = by_token[a*block .. a*block+block, g]
  index a : tokens / block / ranks
  index g : heads
  dispatch by_head[h, b] -> parts[b % (tokens / block / ranks), rank * (heads / ranks) + h]
    on b / (tokens / block / ranks)
  combine reverse
}
"""
ROWS: dict[str, dict[str, str]] = {
    "Sources": {
        "rows": spec(),
        "blocks of rows": spec(VIEW, **BLOCKS),
        "blocks of rows, and back": spec(VIEW, **BLOCKS, combine="combine reverse reduce sum"),
        "tiles of a grid": GRID,
        "tiles of a grid, and back": GRID.rstrip("}\n") + "\ncombine reverse\n}\n",
        "another order of the indices": TURNED.replace("combine reverse", ""),
        "another order, and back": TURNED,
        "another order inside a segment": example("vit_patches_nchw"),
        "ragged extents": RAGGED,
        "routes that look routes up": CHAINED,
        "computed routes": example("hash_buckets"),
        "replicated keys": example("moe_replicated"),
    },
    "Targets": {
        "packed": spec(),
        "packed, `align 128`": spec(packing="align 128"),
        "packed, `align 1048576` of 2048 keys": objected("pads_far"),
        "packed, `capacity max 4096`": spec(packing="capacity max 4096"),
        "packed, `compact`": spec(packing="compact"),
        "256 keys": spec(keys=256),
        "4096 keys": objected("has_many_keys"),
        "more than 65,536 keys": spec(keys=65537),
        "two keys, (expert, source rank)": example("moe_by_source"),
        "65,536 keys, `compact`": objected("has_very_many_keys"),
        "dense, slots from an input": DENSE,
        "dense, pages from a cache": example("kv_pages"),
        "dense, patches of pictures": example("vit_patches"),
        "dense, static": example("ulysses"),
        "dense, clipped": CLIPPED,
        "views, static": VIEWED,
        "views, places from an input": example("vit_unpack"),
        "into memory of the caller's": example("kv_cache"),
        "into memory of the caller's, `reduce sum`": example("scatter_add"),
    },
    "Destinations of a segment": {
        "up to 32": spec(fan=32),
        "34": objected("fans_out_far"),
        "more than 1024": objected("fans_out_very_far"),
        "every rank, of rows": example("all_gather"),
        "every rank, to keys": objected("goes_everywhere_unlike_rows"),
    },
    "Fields": {
        "8": spec(fields=", ".join(f"f{i} : i8" for i in range(8))),
        "9": objected("has_many_fields"),
    },
    "Casts": {
        "to fewer bytes": cast_spec(routed("x : f32[hidden]", "x : bf16[hidden]", "x")),
        "to 8 bits": cast_spec(CASTS["blocks"].replace(", s : f32[hidden / 16]", "")).replace(
            "x by s", "x"
        ),
        "to 8 bits, scales by blocks of 16": cast_spec(CASTS["blocks"]),
        "to 8 bits, one scale for 50 elements": cast_spec(CASTS["one scale"]),
        "of 75 elements": cast_spec(CASTS["no scales"]),
        "to more bytes": cast_spec(CASTS["longer"]),
        "from 8 bits": cast_spec(CASTS["both 8 bits"]),
        "from 8 bits with scales": cast_spec(CASTS["applied"]),
        "of rows of 160 KiB": objected("casts_long_rows"),
        "that compute": objected("computes_slowly"),
        "that compute with numbers of a call": objected("computes_with_inputs"),
        "that compute, `backend cuda`": cast_spec(CASTS["bytes"]).replace(
            "backend auto", "backend cuda"
        ),
    },
    "The relation": {
        "9 inputs": objected("has_many_inputs"),
        "9 run-time extents": objected("has_many_extents"),
        "slots by an extent that ranks must agree about": objected("compares_extents"),
    },
}


def backs() -> Iterator[tuple[str, str]]:
    """Ways back: every reduction of every element type, each weight, and copies."""
    yield "a copy", spec(indices="t", combine="combine reverse")
    two = spec(indices="t", fields="x : f32, y : f32", combine="combine reverse")
    yield "a copy of several fields", two
    for kind, reduction in REDUCTIONS.items():
        back = f"combine reverse reduce {kind}"
        for dtype in (each for each in ORDER if each in reduction.dtypes):
            yield f"`reduce {kind}` of {dtype}", spec(fields=f"x : {dtype}[8]", combine=back)
        several = spec(fields="x : f32[8], y : bf16[8]", combine=back)
        yield f"`reduce {kind}` of several fields", several
        for weight in ("f32", "bf16", "f16", "f64") if reduction.sums else ():
            given = f"weight w(t, k) : {weight} = input weights"
            weighed = spec(given, combine=f"{back}(w)")
            yield f"weights of {weight}", weighed
    yield "to places from an input, of a packed target", objected("places_segments")
    yield "weights of f64 and rows of f64", objected("weighs_in_f64")
    yield "`reply`", objected("replies")
    yield "`reply` to a dense target", objected("replies_from_given_slots")
    yield "`reply` of f64, weighted by f64", objected("answers")


def policies() -> Iterator[tuple[str, str]]:
    """Every choice of every policy."""
    for levels in ("node, rank", "rank", "node", "none"):
        yield f"`dedup({levels})`", spec(options=f"dedup({levels})")
    for knob, choices in CHOICES.items():
        for choice in choices:
            text = spec(options=f"{knob} {choice}")
            if knob == "backend":
                text = spec().replace("backend auto", f"backend {choice}")
            yield f"`{knob} {choice}`", text
    yield "`slice 1 MiB`", spec(options="slice 1 MiB")


def rows() -> dict[str, dict[str, CheckedShuffle]]:
    """The shuffles of the table, by group and construct."""
    texts = {**ROWS, "The way back": dict(backs()), "Policies": dict(policies())}
    found: dict[str, dict[str, CheckedShuffle]] = {}
    for group, each in texts.items():
        found[group] = {}
        for words, text in each.items():
            (found[group][words],) = check(SourceFile("rows.fsc", text))
    return found


def table() -> str:
    """The table, with the reasons for what is missing below it."""
    reasons: dict[str, int] = {}
    lines = [f"| | {' | '.join(BACKENDS)} |", f"|---|{'---|' * len(BACKENDS)}"]
    for group, shuffles in rows().items():
        lines.append(f"| **{group}** |{' |' * len(BACKENDS)}")
        for words, cells in _merged(shuffles, reasons):
            lines.append(f"| {words} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([*lines, "", "No, because", "", *notes])


def _merged(
    shuffles: dict[str, CheckedShuffle], reasons: dict[str, int]
) -> list[tuple[str, list[str]]]:
    """Rows of a group; those that differ in their last word alone are one."""
    found: list[tuple[str, list[str]]] = []
    for words, shuffle in shuffles.items():
        cells = []
        for entries in BACKENDS.values():
            fault = find_fault(shuffle, entries)
            number = fault and reasons.setdefault(fault.reason, len(reasons) + 1)
            cells.append(f"no ({number})" if fault else "yes")
        stem, _, last = words.rpartition(" ")
        if found and stem.endswith(" of") and found[-1][1] == cells:
            before = found[-1][0]
            if before.startswith(stem):
                found[-1] = f"{before}, {last}", cells
                continue
        found.append((words, cells))
    return found


def written(page: str) -> str:
    """A page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{behind}"


def main(path: Path = PAGE) -> None:
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
