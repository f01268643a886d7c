"""Rows of all kinds through the Triton kernels of one node, interpreted: casts, several fields on
the way back, all reductions, many destinations and many keys."""

from __future__ import annotations

import re

import pytest

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_work, rank_work

SIZES = [(2, 0, 4)]
WITHOUT_SIGN = re.compile(r"tl\.full\(\(\d+,\), (-?\d+), tl\.uint(\d+)\)")


pool = pool_of(3)


def rows(
    source: str,
    target: str = "",
    cast: str = "",
    back: str = "",
    *,
    fan: int = 2,
    keys: int = 12,
    weight: str = "",
    options: str = "",
    route: str = "r(t, k) -> e = input idx : int64",
) -> str:
    """Segments of some fields to the keys that an input names, and perhaps back."""
    segments = f"segment wide {{ {source} }}   segment row {{ {target or source} }}"
    return f"""
    shuffle rows {{
      index t : tokens   index k : {fan}   index e : {keys}
      {segments if target else segments.split("   ")[1]}
      layout source[t] of {"wide" if target else "row"}
      layout by_key[e, s] of row packed(s) {options}
      place e on rank by block
      route r(t, k) -> e = input idx : int64
      {weight}
      dispatch source[t] -> by_key[r(t, k), *] {cast}
      {back}
    }}"""


CASTS = {
    "shorter": rows("x : f32[20]", "x : bf16[20]", "cast(x)", "combine reverse reduce sum"),
    "longer": rows("x : f16[7]", "x : f32[7]", "cast(x)", "combine reverse reduce sum"),
    "between": rows("x : bf16[9], y : i16[3]", "x : f16[9], y : i16[3]", "cast(x)"),
    "normalised": rows(
        "x : u8[5, 3], y : f16[40], z : f32[3]",
        "x : bf16[5, 3], y : f32[40], z : f32[3]",
        "cast((x / 255 - [0.5, 0.25, 0.1]) / [0.2, 0.3, 0.7], y * 3 + 1, z - 0.5)",
    ),
    "normalised by a call": rows(
        "x : u8[5, 3], y : f16[40], z : f32[3]",
        "x : bf16[5, 3], y : f32[40], z : f32[3]",
        "cast((x / 255 - mean) / std, y * gain + 1, z - 0.5)",
        weight="const mean = input mean : f32[3], std = input std : f32[3], gain = input g : f32",
    ),
    "e5m2": rows("x : f8e5m2[40]", "x : bf16[40]", "cast(x)"),
    "scales made": rows(
        "y : i8[5], x : bf16[96]",
        "x : f8e4m3[96], y : i8[5], scales : f32[3]",
        "cast(x by scales)",
    ),
    "one scale": rows(
        "x : f16[70]",
        "scale : f32, x : f8e5m2[70]",
        "cast(x by scale)",
        "combine reverse reduce sum",
    ),
    "scales applied": rows("scales : f32[4], x : f8e4m3[64]", "x : f16[64]", "cast(x by scales)"),
    "long rows": rows(
        "x : f32[10240]",
        "x : f8e4m3[10240], s : f32[10]",
        "cast(x by s)",
        "combine reverse reduce sum",
    ),
    "two casts": rows(
        "x : bf16[24], y : f32[32], n : i64",
        "y : f8e4m3[32], n : i64, x : f32[24], s : f32[2]",
        "cast(x, y by s)",
    ),
}
WEIGHT = "weight w(t, k) : {} = input weights"
BACK = {
    "sums": rows("x : f16[5], y : f64[2], z : bf16[3]", back="combine reverse reduce sum"),
    "weighed": rows(
        "x : f16[5], y : f32[2]",
        back="combine reverse reduce sum(w)",
        weight=WEIGHT.format("bf16"),
    ),
    "weights of f64": rows(
        "x : bf16[5]", back="combine reverse reduce sum(w)", weight=WEIGHT.format("f64")
    ),
    "f64 by f32": rows(
        "x : f64[5]", back="combine reverse reduce sum(w)", weight=WEIGHT.format("f32")
    ),
    "maxima": specs.MAXIMA,
    "integers": rows("x : i64[3], y : u8[5], z : i16", back="combine reverse reduce max"),
    "compact": rows("x : f16[5], y : i32[2]", back="combine reverse reduce max", options="compact"),
}
MANY = {
    "destinations": rows("x : f32[3]", back="combine reverse reduce sum", fan=40),
    "compact destinations": rows(
        "x : f32[3]", back="combine reverse reduce max", fan=300, keys=36, options="compact"
    ),
    "keys": rows("x : f32[3]", back="combine reverse reduce sum", keys=9000, options="align 4"),
    "compact keys": rows(
        "x : f32[3]", back="combine reverse reduce sum", fan=3, keys=9000, options="compact"
    ),
}
"""More than a tile, or the registers of a program, hold; interpreted they take half a minute."""
COPIED = {
    "columns": """
    shuffle columns {
      index i : rows   index j : 3   index e : 12
      segment cell { x : f32[2] }
      layout cells[j, i] of cell dense(3, rows)
      layout slots[e, s] of cell packed(s)
      place e on rank by cyclic
      route r(i, j) -> e = input idx : int64
      dispatch cells[j, i] -> slots[r(i, j), *]
      combine reverse
    }""",
    "fields": f"""
    shuffle many {{
      index t : tokens   index e : 12
      segment row {{ {", ".join(f"x{i} : i8[{i + 1}]" for i in range(9))}, y : f16[5], z : i64 }}
      layout source[t] of row
      layout slots[e, s] of row packed(s)
      place e on rank by cyclic
      route r(t) -> e = input idx : int64
      dispatch source[t] -> slots[r(t), *]
      combine reverse
    }}""",
    "blocks": """
    shuffle blocks {
      index b : blocks   index k : 2   index e : 12
      segment block { x : bf16[4, 3] }
      layout tokens[t] of bf16[3] dense(4 * blocks)
      view parts[b] = tokens[4*b .. 4*b+4]
      layout slots[e, s] of block packed(s)
      place e on rank by block
      route r(b, k) -> e = input idx : int64
      dispatch parts[b] -> slots[r(b, k), *]
      combine reverse reduce sum
    }""",
}


@pytest.mark.parametrize("name", CASTS)
def test_casts(pool: Pool, name: str) -> None:
    pool.run(rank_work.epochs, 3, str(specs.artifact(CASTS[name]).path), SIZES, 1)


@pytest.mark.parametrize("name", BACK)
def test_reductions(pool: Pool, name: str) -> None:
    pool.run(rank_work.epochs, 3, str(specs.artifact(BACK[name]).path), SIZES, 1)


@pytest.mark.parametrize("name", COPIED)
def test_places(pool: Pool, name: str) -> None:
    """Segments that lie in another order, in blocks, and in many fields."""
    pool.run(rank_work.epochs, 3, str(specs.artifact(COPIED[name]).path), SIZES, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MANY)
def test_many(pool: Pool, name: str) -> None:
    pool.run(rank_work.epochs, 3, str(specs.artifact(MANY[name]).path), [*SIZES, (9, 0, 12)], 1)


def test_given_slots(pool: Pool) -> None:
    """Several fields on their way back from a dense target."""
    path = str(specs.artifact(specs.MOVED).path)
    pool.run(given_work.epochs, 3, path, [(2, 0, 4), (5, 3, 12)], 1, {"capacity": 99})


def test_gradients_of_several_fields(pool: Pool) -> None:
    text = rows(
        "x : f32[24], y : f32[5]",
        back="combine reverse reduce sum(w)",
        fan=3,
        weight=WEIGHT.format("f32"),
    )
    pool.run(rank_work.gradients_of_fields, 2, str(specs.artifact(text).path))


def test_sums_that_cannot_be_made_are_numbers_of_their_type() -> None:
    """Triton for a GPU takes no others, which its interpreter does."""
    texts = specs.artifact(BACK["integers"]).code.values()
    found = [each for text in texts for each in WITHOUT_SIGN.findall(text.decode())]
    assert {int(value) for value, _ in found} == {0, 255}
    assert all(0 <= int(value) < 1 << int(bits) for value, bits in found)
