"""Specs that cast on the way, by what is special about them."""

from __future__ import annotations

ROUTED = """shuffle rows {{
  const hidden = {hidden}
  index t : tokens
  index k : 3
  index e : 12
  segment source {{ {source} }}
  segment target {{ {target} }}
  layout  by_token[t]  of source
  layout  by_key[e, s] of target  packed(s) align 4
  place   e on rank by block
  route   r(t, k) -> e = input keys : int64
  {weight}
  dispatch by_token[t] -> by_key[r(t, k), *]  cast({cast})
  {combine}
}}
"""


def routed(
    source: str, target: str, cast: str, *, hidden: int = 64, combine: str = "reduce sum(w)"
) -> str:
    """Rows that fan out by three, and come back summed unless ``combine`` is empty."""
    weight = "weight w(t, k) : f32 = input weights" if "w" in combine else ""
    back = f"combine reverse {combine}" if combine else ""
    return ROUTED.format(
        hidden=hidden, source=source, target=target, cast=cast, weight=weight, combine=back
    )


SPECS = {
    "blocks": routed("x : bf16[hidden]", "x : f8e4m3[hidden], s : f32[hidden / 16]", "x by s"),
    "f16": routed("x : f16[hidden]", "s : f32[hidden / 32], x : f8e5m2[hidden]", "x by s"),
    "masked": routed(
        "x : f32[hidden]", "x : f8e4m3[hidden], s : f32[hidden / 4]", "x by s", hidden=20
    ),
    "chunks": routed(
        "x : bf16[hidden]",
        "x : f8e4m3[hidden], s : f32[hidden / 128]",
        "x by s",
        hidden=16768,
        combine="",
    ),
    "one scale": routed("x : bf16[hidden]", "x : f8e4m3[hidden], s : f32", "x by s", hidden=50),
    "no scales": routed("x : bf16[hidden]", "x : f8e4m3[hidden]", "x", hidden=75),
    "longer": routed("x : bf16[hidden]", "x : f32[hidden]", "x", hidden=7),
    "shorter": routed("x : f32[hidden]", "x : bf16[hidden]", "x", hidden=7),
    "both 8 bits": routed("x : f8e5m2[hidden]", "x : f8e4m3[hidden]", "x", combine=""),
    "bytes": routed(
        "x : u8[hidden, 3]",
        "x : bf16[hidden, 3]",
        "(x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]",
        hidden=25,
        combine="",
    ),
    "computed": routed("x : bf16[hidden]", "x : f8e4m3[hidden]", "1.5 - x / 3"),
    "long": routed(
        "x : i16[hidden, 5]",
        "x : f32[hidden, 5]",
        "x * [1, 2, 3, 4, 5]",
        hidden=4000,
        combine="reduce max",
    ),
    "same type": routed("x : f32[hidden]", "x : f32[hidden]", "x * 2 + 1", hidden=9),
    "several fields": routed(
        "x : bf16[2, hidden], y : i32[3], z : f32[8]",
        "z : f16[8], x : f8e4m3[2, hidden], y : i32[3], s : f32[2, hidden / 32]",
        "x by s, z",
        combine="",
    ),
    "applied": routed(
        "x : f8e4m3[hidden], s : f32[hidden / 16]", "x : bf16[hidden]", "x by s", combine=""
    ),
    "one scale applied": routed(
        "x : f8e5m2[hidden], s : f32", "x : f16[hidden]", "x by s", hidden=50, combine=""
    ),
    "pictures": """shuffle patches {
  index n : images
  index i : height(n) / 4
  index j : width(n) / 8
  index s : length
  segment patch { pixels : f8e4m3[4, 8], scales : f32[4, 2] }
  layout  pictures[n, y, x] of f16  dense(height(n), width(n))
  view    patches[n, i, j] = pictures[n, i*4 .. i*4+4, j*8 .. j*8+8]
  layout  sequence[s] of patch
  route   where(n) -> (rank, offset) = input packing : int64[2]
  dispatch patches[n, i, j] -> sequence[where(n).offset + i * (width(n) / 8) + j] on where(n).rank
    cast(pixels by scales)
  combine  reverse
}
""",
}
