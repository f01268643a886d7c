"""Small shuffles as spec texts, compiled once a session."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import fuscoc
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact

EXAMPLES = Path(__file__).parents[2] / "examples"


def routed(
    dtype: str = "bf16",
    hidden: int = 24,
    keys: int = 12,
    topk: int = 3,
    *,
    align: int = 4,
    placement: str = "block",
    options: str = "dedup(node, rank)",
    reduce: str = "sum(w)",
    capacity: str = "capacity exact",
) -> str:
    """Rows to the keys that an input names, and their weighted sum back: like ``moe.fsc``."""
    weight = "weight w(t, k) : f32 = input weights" if "w" in reduce else ""
    return f"""
    shuffle routed {{
      const hidden = {hidden}, keys = {keys}, topk = {topk}
      index t : tokens   index k : topk   index e : keys
      segment row {{ x : {dtype}[hidden] }}
      layout by_row[t] of row
      layout by_key[e, s] of row packed(s) align {align} {capacity}
      place e on rank by {placement}
      route r(t, k) -> e = input idx : int64
      {weight}
      dispatch by_row[t] -> by_key[r(t, k), *] {options}
      combine by_key[r(t, k), *] -> by_row[t] reduce {reduce}
    }}"""


def copied(dtype: str, hidden: int = 24) -> str:
    """Rows to one key each, and back as they are."""
    return f"""
    shuffle copied {{
      index t : tokens   index e : 12
      segment row {{ x : {dtype}[{hidden}] }}
      layout by_row[t] of row
      layout by_key[e, s] of row packed(s)
      place e on rank by block
      route r(t) -> e = input idx : int64
      dispatch by_row[t] -> by_key[r(t), *]
      combine reverse
    }}"""


def patches(p: int = 2, c: int = 3) -> str:
    """``vit_patches.fsc`` with other constants."""
    text = (EXAMPLES / "vit_patches.fsc").read_text()
    return text.replace("p = 14, c = 3", f"p = {p}, c = {c}")


FIELDS = """
    shuffle fields {
      index t : tokens   index k : 2   index e : 12
      segment item { scales : f32[3], payload : u8[20], id : i64 }
      layout source[t] of item
      layout target[e, s] of item packed(s)
      place e on rank by cyclic
      route r(t, k) -> e = input idx : int64
      dispatch source[t] -> target[r(t, k), *]
    }"""

SINGLE = """
    shuffle single {
      index t : tokens   index e : 12
      segment item { x : f32[5], y : u8[210], id : i64 }
      layout source[t] of item
      layout target[e, s] of item packed(s) align 4
      place e on rank by cyclic
      route r(t) -> e = input idx : int64
      dispatch source[t] -> target[r(t), *]
      combine reverse
    }"""
"""Short rows with one destination each, which come back as they are."""

MOVED = """
    shuffle moved {
      index t : tokens   index s : length
      segment item { a : f16[5], b : i32[2, 2] }
      layout source[t] of item
      layout target[s] of item dense(length)
      route where(t) -> (rank, slot) = input table : int64[2]
      dispatch source[t] -> target[where(t).slot] on where(t).rank
      combine reverse
    }"""

GRID = """
    shuffle grid {
      const w = 6
      index i : rows   index j : w / 2   index k : 2   index s : length
      segment tile { x : f32[2, 2] }
      layout cells[y, z] of f32 dense(2 * rows, w)
      view tiles[i, j] = cells[2*i .. 2*i+2, 2*j .. 2*j+2]
      layout slots[s] of tile dense(length)
      route where(i, j, k) -> (rank, slot) = input table : int64[2]
      dispatch tiles[i, j] -> slots[where(i, j, k).slot] on where(i, j, k).rank
      combine slots[where(i, j, k).slot] -> tiles[i, j] reduce sum
    }"""

SPREAD = """
    shuffle spread {
      const most = 6
      index i : rows   index k : ranks
      segment row { x : f32[3] }
      layout mine[i, k] of row dense(rows, ranks)
      layout theirs[s] of row dense(most * ranks)
      dispatch mine[i, k] -> theirs[rank * most + i] on k
      combine reverse
    }"""
"""Slots that extents alone decide."""

REST = """
    shuffle rest {{
      const most = 24, width = 3
      index i : rows   index j : 2
      segment row {{ x : f32[5] }}
      layout mine[i, j] of row dense(rows, 2)
      layout theirs[s, j] of row dense(most * ranks, 2)
      dispatch mine[i, j] -> theirs[rank * most + i - {first}, j] on {owner}
      combine reverse
    }}"""
LAST = REST.format(owner="min(i / width, ranks - 1)", first="min(i / width, ranks - 1) * width")
FIRST = REST.format(
    owner="max(ranks - 1 - i / width, 0)", first="min(i / width, ranks - 1) * width"
)
MY_BLOCKS = """
    shuffle my_blocks {
      const most = 24, width = 3, cycle = width * ranks
      index i : rows   index j : 2
      segment row { x : f32[5] }
      layout mine[j, i] of row dense(2, rows)
      view turned[i, j] = mine[j, i]
      layout theirs[s, j] of row dense(most * ranks, 2)
      dispatch turned[i, j] -> theirs[rank * most + i / cycle * width + i % width, j]
        on i / width % ranks
      combine reverse
    }"""
"""Blocks of each rank's rows: the last rank takes what is left, or the first, or all in turn."""

BLOCKS = """
    shuffle blocks {
      const rows = 23, width = 3, cycle = width * ranks, part = cdiv(rows, ranks)
      const left = max(min(rows % cycle - rank * width, width), 0)
      const mine = rows / cycle * width + left
      index i : max(min(part, rows - rank * part), 0)   index j : 2
      segment row { x : f32[5] }
      layout by_part[i, j] of row
      layout in_turn[s, j] of row  dense(mine, 2)
      route at(i) -> g = rank * part + i
      dispatch by_part[i, j] -> in_turn[at(i) / cycle * width + at(i) % width, j]
        on at(i) / width % ranks
      combine reverse
    }"""
"""Rows that lie in uneven parts, dealt out by blocks."""

MAXIMA = """
    shuffle maxima {
      index t : tokens   index k : 3   index e : 12
      segment item { x : bf16[20], y : f64, n : i32[3] }
      layout source[t] of item
      layout target[e, s] of item packed(s) align 4
      place e on rank by block
      route r(t, k) -> e = input idx : int64
      dispatch source[t] -> target[r(t, k), *]
      combine reverse reduce max
    }"""

HASHED = """
    shuffle hashed {
      const buckets = 12
      index t : tokens   index e : buckets
      segment item { x : f32[5] }
      layout source[t] of item
      layout target[e, s] of item packed(s)
      place e on rank by cyclic
      route id(t) -> value = input ids : int64
      route near(t) -> e = (id(t) - 50) / 7 % buckets
      dispatch source[t] -> target[near(t), *]
      combine reverse
    }"""


@cache
def artifact(text: str) -> Artifact:
    """The compiled spec; every text once."""
    directory = tempfile.mkdtemp(prefix="fuscoc-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return load_artifact(fuscoc.compile(text, Path(directory) / "artifact"))


def triton_tile(text: str) -> Mapping[str, int]:
    """The sizes of the kernels that Triton compiles for one node."""
    node = artifact(text).shuffle(None).node
    assert node is not None
    return node.tile


def ragged_keys(num_elems: int) -> str:
    """Pages of books, all of a book to one key: pages of several sizes, to a packed target."""
    return f"""
    shuffle ragged {{
      index n : books   index i : pages(n)   index e : 6
      segment page {{ x : f32[{num_elems}] }}
      layout texts[n, y] of page dense(pages(n))
      layout slots[e, s] of page packed(s)
      place e on rank by block
      route r(n) -> e = input idx : int64
      dispatch texts[n, i] -> slots[r(n), *]
      combine reverse
    }}"""
