"""Specs for the tests of CUDA kernels: dense targets, the examples in small sizes and what they
lack; and packed ones of segments that do not lie one behind the other.

``python -m tests.cuda.dense_cases FOLDER`` compiles them for a machine that has neither MLIR nor a
compiler of CUDA; ``dense_run.py`` takes what is in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine import specs

EXAMPLES = Path(__file__).parents[2] / "examples"
ARCHS = ("sm_90",)

# Two fields, nested runs whose strides only a call knows, and two places for every segment.
BOXES = """shuffle boxes {
  index b : boxes
  index i : height / 3
  index j : width / 4
  index k : 2
  index p : places
  segment dot { x : f32[3], mark : u8 }
  segment box { x : f32[2, 3, 4, 3], mark : u8[2, 3, 4] }
  layout space[z, y, w] of dot dense(boxes * 2, height, width)
  layout there[p] of box
  view inside[b, i, j] = space[b*2 .. b*2+2, i*3 .. i*3+3, j*4 .. j*4+4]
  route to(b, i, j, k) -> (rank, slot) = input places_of : int64[2]
  dispatch inside[b, i, j] -> there[to(b, i, j, k).slot] on to(b, i, j, k).rank
}
"""
# Rows of several ranks that become one, in runs.
SUMS = """shuffle sums {
  index t : tokens
  index j : 4
  index k : 3
  index p : places
  segment pair { x : bf16[2, 24] }
  layout table[v, j] of bf16[24] dense(tokens * 2, 4)
  layout there[p] of pair
  view pairs[t, j] = table[t*2 .. t*2+2, j]
  route to(t, j, k) -> (rank, slot) = input places_of : int64[2]
  weight w(t, j, k) : f32 = input weights
  dispatch pairs[t, j] -> there[to(t, j, k).slot] on to(t, j, k).rank
  combine reverse reduce sum(w)
}
"""
# Entries of two indices, each of some ranges of slots, whose rows are whole words.
ENTRIES = """shuffle entries {
  index t : tokens
  index h : 3
  index i : 2
  index j : 5
  index p : places
  segment item { x : f32[4] }
  layout rows[t, h, i, j] of item
  layout there[p] of item
  route to(t, h) -> (rank, slot) = input places_of : int64[2]
  dispatch rows[t, h, i, j] -> there[to(t, h).slot + i * 5 + j] on to(t, h).rank
  combine reverse
}
"""
# One place for all rows of a rank, which an input says and no index does.
SHIFTED = """shuffle shifted {
  index t : tokens
  index z : 1
  index p : places
  segment row { x : f32[20] }
  layout table[t] of row
  layout there[p] of row
  route to(z) -> (rank, slot) = input place_of : int64[2]
  dispatch table[t] -> there[to(0).slot + t] on to(0).rank
  combine reverse
}
"""
# Rows of whole words whose slots extents alone decide, and no strides.
SPREAD_ROWS = """shuffle spread_rows {
  const most = 6
  index i : rows
  index k : ranks
  segment row { x : f32[4] }
  layout mine[i, k] of row dense(rows, ranks)
  layout theirs[s] of row dense(most * ranks)
  route at(i) -> g = rank + i
  dispatch mine[i, k] -> theirs[rank * most + at(i) % most] on k
  combine reverse
}
"""
# Rows that arrive as something else.
CASTS = """shuffle casts {
  index t : tokens
  index p : places
  segment wide { x : bf16[256] }
  segment narrow { x : f8e4m3[256], scales : f32[2] }
  layout table[t] of wide
  layout there[p] of narrow
  route to(t) -> (rank, slot) = input places_of : int64[2]
  dispatch table[t] -> there[to(t).slot] on to(t).rank  cast(x by scales)
}
"""
# Short runs that are transposed: rows of the result have a part of every rank.
TRANSPOSED = """shuffle transposed {{
  const rows = 48, columns = 60
  index i : rows / ranks
  index j : columns
  segment one {{ x : {element} }}
  layout table[i, j]   of one  dense(rows / ranks, columns)
  layout turned[q, g]  of one  dense(columns / ranks, rows)
  dispatch table[i, j] -> turned[j % (columns / ranks), rank * (rows / ranks) + i]
    on j / (columns / ranks)
  combine reverse
}}
"""
# And in three dimensions, where rows of the result follow each other.
TURNED = """shuffle turned {
  const planes = 12, rows = 14, columns = 45
  index a : planes / ranks
  index i : rows
  index j : columns
  segment one { x : u8[3] }
  layout table[a, i, j]  of one  dense(planes / ranks, rows, columns)
  layout turned[g]       of one  dense(planes / ranks * rows * columns)
  dispatch table[a, i, j] -> turned[(a * columns + j) * rows + i] on (rank + 1) % ranks
  combine reverse
}
"""
# Parts that are not alike: of three ranks the last has less, and is sent less.
UNEVEN = """shuffle uneven {
  const rows = 50, columns = 61
  const some_rows = cdiv(rows, ranks), some_columns = cdiv(columns, ranks)
  index i : max(min(some_rows, rows - rank * some_rows), 0)
  index j : columns
  segment one { x : f32[12] }
  layout table[i, j]   of one
  layout turned[q, g]  of one  dense(max(min(some_columns, columns - rank * some_columns), 0), rows)
  dispatch table[i, j] -> turned[j % some_columns, rank * some_rows + i] on j / some_columns
  combine reverse
}
"""
# Tiles of a grid by key, several places for each, and sums of them back in the grid.
PACKED_TILES = """shuffle tiles {
  index t : tokens
  index j : 4
  index k : 3
  index e : 5
  segment pair { x : bf16[2, 24] }
  layout table[v, j] of bf16[24] dense(tokens * 2, 4)
  layout by_key[e, s] of pair packed(s) align 4
  place e on rank by cyclic
  view pairs[t, j] = table[t*2 .. t*2+2, j]
  route r(t, j, k) -> e = input keys : int64
  weight w(t, j, k) : f32 = input weights
  dispatch pairs[t, j] -> by_key[r(t, j, k), *]
  combine reverse reduce sum(w)
}
"""
# Patches of pictures of any sizes, whose keys are those of their pictures; runs of 6 bytes.
PACKED_PATCHES = """shuffle packed_patches {
  index n : images
  index i : height(n) / 3
  index j : width(n) / 2
  index e : 6
  segment patch { pixels : u8[3, 2, 3] }
  layout pictures[n, y, x] of u8[3] dense(height(n), width(n))
  view patches[n, i, j] = pictures[n, i*3 .. i*3+3, j*2 .. j*2+2]
  layout by_key[e, s] of patch packed(s)
  place e on rank by block
  route key(n) -> e = input keys : int64
  dispatch patches[n, i, j] -> by_key[key(n), *]
  combine reverse
}
"""
# Rows in another order, to keys that groups say, once for a rank.
PACKED_TURNED = """shuffle packed_turned {
  index t : tokens
  index j : 4
  index k : 3
  index g : 5
  index e : 8
  segment item { x : i8[20] }
  layout table[j, t] of item
  layout by_key[e, s] of item packed(s) compact
  view turned[t, j] = table[j, t]
  place e on rank by table owner
  route group(t, j, k) -> g = input groups : int64
  route of_group(g) -> e = input keys : int64
  dispatch turned[t, j] -> by_key[of_group(group(t, j, k)), *]
  combine reverse reduce max
}
"""
# Sums that are made in f64.
PACKED_DOUBLES = """shuffle packed_doubles {
  index t : tokens
  index k : 3
  index e : 8
  segment item { x : f64[5] }
  layout table[t] of item
  layout by_key[e, s] of item packed(s)
  place e on rank by cyclic
  route r(t, k) -> e = input keys : int64
  weight w(t, k) : f32 = input weights
  dispatch table[t] -> by_key[r(t, k), *]
  combine reverse reduce sum(w)
}
"""
# Casts that are not made in place: of odd lengths and blocks, to more bytes, by scales that came.
PACKED_CASTS = """shuffle packed_casts {
  index t : tokens
  index k : 2
  index x : 8
  segment wide {
    a : f32[50], b : bf16[75], c : bf16[7], d : f8e5m2[19], e : f8e4m3[64], es : f32[4],
    f : f32[24]
  }
  segment narrow {
    a : f8e4m3[50], as : f32, b : f8e5m2[75], c : f32[7], d : f8e4m3[19], e : bf16[64],
    f : f8e5m2[24], fs : f32[6]
  }
  layout table[t] of wide
  layout by_key[x, s] of narrow packed(s)
  place x on rank by cyclic
  route r(t, k) -> x = input keys : int64
  dispatch table[t] -> by_key[r(t, k), *] cast(a by as, b, c, d, e by es, f by fs)
}
"""
# Fields of which something is computed: with whole groups and others, two that could lie in place,
# one of them of one type, and 8-bit floats at either end.
PACKED_COMPUTED = """shuffle packed_computed {
  index t : tokens
  index k : 2
  index x : 6
  segment given {
    a : u8[25, 3], b : i16[7], c : f32[64], d : bf16[9, 5], e : f8e5m2[33], f : i8[4], g : f32[8]
  }
  segment wanted {
    a : bf16[25, 3], b : f32[7], c : f16[64], d : f8e4m3[9, 5], e : f32[33], f : f16[4], g : f32[8]
  }
  layout table[t] of given
  layout by_key[x, s] of wanted packed(s)
  place x on rank by cyclic
  route r(t, k) -> x = input keys : int64
  dispatch table[t] -> by_key[r(t, k), *] backend cuda
    cast((a / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225], b / 7, c * 2 + 1,
      d * [1, 2, 3, 4, 5], 1.5 - e, f + [1, 2, 3, 4], g / 3)
}
"""
NORMALISED = (
    (EXAMPLES / "vit_patches_normalised.fsc")
    .read_text(encoding="utf-8")
    .replace("cast(", "backend cuda cast(")
)
# Planes of two bytes.
PLANES_I16 = (EXAMPLES / "vit_patches_nchw.fsc").read_text(encoding="utf-8").replace("u8", "i16")
# Several fields that come back, of several types.
PACKED_FIELDS = """shuffle packed_fields {
  index t : tokens
  index j : 3
  index k : 3
  index e : 8
  segment cell { x : f32[40], y : bf16[3], z : f64 }
  segment item { x : f32[4, 40], y : bf16[4, 3], z : f64[4] }
  layout table[v, j] of cell dense(tokens * 4, 3)
  layout by_key[e, s] of item packed(s)
  view blocks[t, j] = table[t*4 .. t*4+4, j]
  place e on rank by cyclic
  route r(t, j, k) -> e = input keys : int64
  weight w(t, j, k) : f32 = input weights
  dispatch blocks[t, j] -> by_key[r(t, j, k), *]
  combine reverse reduce sum(w)
}
"""


PACKED_TEXTS = """shuffle packed_texts {
  const width = 1024, buckets = 8
  index d : texts
  index w : length(d)
  index b : buckets
  segment token { x : bf16[width] }
  layout tokens[d, w]    of token
  layout by_bucket[b, s] of token packed(s)
  place b on rank by cyclic
  route to(d) -> b = input bucket : int64
  dispatch tokens[d, w] -> by_bucket[to(d), *]
}
"""
"""Of a ragged source, rows that some lanes of a warp move."""


@dataclass(frozen=True)
class DenseCase:
    """A spec, as text or as the name of an example, with constants of its own. ``tokens`` is the
    extent of the outermost index where that is left to a call."""

    spec: str
    tokens: int = 6
    constants: Mapping[str, int] = field(default_factory=dict)

    @property
    def source(self) -> str | Path:
        return self.spec if "\n" in self.spec else EXAMPLES / f"{self.spec}.fsc"


def _pages(**sizes: int) -> DenseCase:
    return DenseCase("kv_pages", 40, {"layers": 5, "page": 2, "heads": 3, "width": 24} | sizes)


TWO_STRIPS = """
shuffle two_strips {
  const p = 2
  index n : images
  index i : height(n) / p
  index j : width(n) / p
  index s : length
  segment dot { a : u8[6], b : u8 }
  segment patch { a : u8[p, p, 6], b : u8[p, p] }
  layout  pictures[n, y, x] of dot dense(height(n), width(n))
  view    patches[n, i, j] = pictures[n, i*p .. i*p+p, j*p .. j*p+p]
  layout  sequence[s] of patch  dense(length)
  route   where(n) -> (rank, offset) = input packing : int64[2]
  dispatch patches[n, i, j] -> sequence[where(n).offset + i * width(n) / p + j] on where(n).rank
}
"""
"""Runs of a word and more, and others: what is known of a tile of one field is no other's."""

PARTS_OF_LINES = """
shuffle parts_of_lines {
  const part = 256, planes = 6
  index z : planes
  index g : ranks
  segment some { values : c64[part] }
  layout lines[z, x] of c64  dense(part * ranks)
  layout there[q]    of some dense(planes * ranks)
  view parts[z, g] = lines[z, g*part .. g*part+part]
  dispatch parts[z, g] -> there[rank * planes + z] on g
  combine reverse
}
"""
"""Segments of many cells of 8 bytes, each of which begins where a line of memory does."""


CASES = {
    "parts_of_lines": DenseCase(PARTS_OF_LINES),
    "two_strips": DenseCase(TWO_STRIPS, 600),
    "ulysses": DenseCase(
        "ulysses", constants={"tokens": 512, "heads": 16, "width": 32, "block": 8}
    ),
    "ulysses_in_parts": DenseCase(
        "ulysses", constants={"tokens": 1024, "heads": 4, "width": 128, "block": 256}
    ),
    "fft_transpose": DenseCase("fft_transpose", constants={"nx": 20, "ny": 24, "nz": 16}),
    "redistribute": DenseCase("redistribute", constants={"rows": 240, "columns": 36}),
    # Runs that bulk copies carry, of which a buffer has whole ones and the end of another.
    "redistribute_long_rows": DenseCase("redistribute", constants={"rows": 60, "columns": 736}),
    # Rows of no whole lines, in several items: a range has one row back, or many.
    "redistribute_odd_rows": DenseCase("redistribute", constants={"rows": 6000, "columns": 3}),
    # Runs of six lines, 128 of which are looked up together.
    "fft_short_lines": DenseCase("fft_transpose", constants={"nx": 12, "ny": 24, "nz": 32}),
    "fft_odd_lines": DenseCase("fft_transpose", constants={"nx": 3, "ny": 48, "nz": 96}),
    "vit_patches": DenseCase("vit_patches", 9, {"p": 4}),
    "vit_odd_patches": DenseCase("vit_patches", 7, {"p": 3, "c": 1}),
    "vit_strips": DenseCase("vit_patches", 24, {"p": 14}),
    # A thread turns two runs of whole words and half a one: of one word, or of many.
    "vit_strips_of_short_runs": DenseCase("vit_patches", 40, {"p": 6, "c": 1}),
    "vit_strips_of_long_runs": DenseCase("vit_patches", 12, {"p": 18}),
    "vit_patches_nchw": DenseCase("vit_patches_nchw", 9, {"p": 4}),
    "vit_nchw_strips": DenseCase("vit_patches_nchw", 5, {"p": 14}),
    "planes_i16": DenseCase(PLANES_I16, 2, {"p": 28, "c": 2}),
    "vit_patches_normalised": DenseCase(NORMALISED, 9, {"p": 4}),
    "vit_unpack": DenseCase("vit_unpack", 9, {"p": 4, "rows": 3, "columns": 2}),
    "vit_unpack_wide": DenseCase("vit_unpack", 90, {"p": 2, "c": 8, "rows": 2, "columns": 9}),
    "entries": DenseCase(ENTRIES, 40),
    "kv_pages": _pages(),
    # Parts of a result that pages cover whole, and others.
    "kv_long_pages": _pages(layers=25, page=8, heads=4, width=64),
    "kv_odd_pages": _pages(layers=7, page=21, heads=4, width=64),
    # Runs of 20 bytes, and of 4096 above, that do not end where parts of a row do.
    "kv_short_runs": _pages(layers=4100, page=1, heads=1, width=5),
    "boxes": DenseCase(BOXES),
    "sums": DenseCase(SUMS, 30),
    "casts": DenseCase(CASTS, 50),
    "transposed_i16": DenseCase(TRANSPOSED.format(element="i16")),
    "transposed_f64": DenseCase(TRANSPOSED.format(element="f64")),
    "transposed_u8": DenseCase(TRANSPOSED.format(element="u8[5]")),
    "turned": DenseCase(TURNED),
    "uneven": DenseCase(UNEVEN),
    "last_takes_rest": DenseCase(specs.LAST),
    "first_takes_rest": DenseCase(specs.FIRST),
    "my_blocks": DenseCase(specs.MY_BLOCKS),
    "blocks": DenseCase(specs.BLOCKS),
    "few_blocks": DenseCase(specs.BLOCKS.replace("rows = 23", "rows = 4")),
    "reshard": DenseCase("reshard", constants={"rows": 37, "columns": 22, "high": 4, "wide": 3}),
    "all_gather": DenseCase("all_gather", constants={"total": 50, "width": 40}),
    # Rows of whole words of a warp, several under way or a part of one.
    "all_gather_wide": DenseCase("all_gather", constants={"total": 10, "width": 512}),
    "halo_wide": DenseCase("halo", constants={"rows": 11, "reach": 2, "width": 1024}),
    "halo": DenseCase("halo", constants={"rows": 37, "reach": 3, "width": 12}),
    "halo_long": DenseCase("halo", constants={"rows": 90, "reach": 40, "width": 700}),
    "packed_tiles": DenseCase(PACKED_TILES, 30),
    "packed_patches": DenseCase(PACKED_PATCHES, 9),
    "packed_turned": DenseCase(PACKED_TURNED, 40),
    "packed_doubles": DenseCase(PACKED_DOUBLES, 40),
    "packed_casts": DenseCase(PACKED_CASTS, 40),
    "packed_computed": DenseCase(PACKED_COMPUTED, 40),
    "packed_fields": DenseCase(PACKED_FIELDS, 12),
    "packed_texts": DenseCase(PACKED_TEXTS, 150),
    "spread": DenseCase(specs.SPREAD),
    "spread_rows": DenseCase(SPREAD_ROWS),
    "shifted": DenseCase(SHIFTED, 12),
}

GIVEN = tuple(name for name in CASES if not name.startswith("packed"))
"""Those whose relation gives slots."""


def compile_cases(
    folder: Path, archs: tuple[str, ...] = (), only: str | None = None
) -> dict[str, Path]:
    """The artifact of every case, or of one, with machine code for ``archs``."""
    from fuscoc.driver import compile_source
    from fuscoc.manifest import Assembler
    from fuscoc.source import as_source
    from fuscoc_runtime.kernels.cuda import cubin, headers_digest

    assembler = Assembler(archs, headers_digest(), cubin)
    return {
        name: compile_source(
            as_source(case.source), folder / name, case.constants, assembler=assembler
        )
        for name, case in CASES.items()
        if only in (None, name)
    }


if __name__ == "__main__":
    for path in compile_cases(Path(sys.argv[1]), ARCHS).values():
        print(path)
