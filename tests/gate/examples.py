"""Small shuffles that between them need every attribute of every operation, and where they run.

Routings are skewed and slices are small, so that policies have something to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from fuscoc.lang.check import check_file
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.manifest import CompiledShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from tests.casts import specs as casts
from tests.engine import specs


@dataclass(frozen=True)
class Example:
    """A spec of one shuffle; ``topologies`` are those that it runs on, the quickest first.

    Of a spec with a reply the module is that of the dispatch, or that ``of_reply``; the other one
    goes with it as it is.
    """

    name: str
    text: str
    topologies: tuple[str, ...]
    tokens: int = 6
    of_reply: bool = False

    @cached_property
    def checked(self) -> CheckedShuffle:
        """What the module is of."""
        return self._reply if self.of_reply else self._whole

    @cached_property
    def _whole(self) -> CheckedShuffle:
        (shuffle,) = check_file(SourceFile(f"{self.name}.fsc", self.text), {}).shuffles
        return shuffle

    @property
    def _reply(self) -> CheckedShuffle:
        assert self._whole.reply is not None
        return self._whole.reply

    def compiled(self, module: Any) -> CompiledShuffle:
        """The shuffle with that module, at L3."""
        if self._whole.reply is None:
            return CompiledShuffle(self._whole, module, {})
        modules = [self._other, module] if self.of_reply else [module, self._other]
        reply = CompiledShuffle(self._reply, modules[1], {})
        return CompiledShuffle(self._whole, modules[0], {}, reply)

    @cached_property
    def _other(self) -> Any:
        other = self._whole if self.of_reply else self._reply
        return compile_to_ir(other).module


QUANTISED = """
    shuffle quantised {
      const hidden = 32, block = 8, keys = 12, topk = 3
      index t : tokens   index k : topk   index e : keys
      segment wide { x : bf16[hidden] }
      segment token { x : f8e4m3[hidden], scales : f32[hidden / block] }
      layout by_token[t] of wide
      layout by_key[e, s] of token packed(s) distinct align 2
      place e on rank by block
      route r(t, k) -> e = input idx : int64
      dispatch by_token[t] -> by_key[r(t, k), *] cast(x by scales) slice 96 B
      combine reverse reduce sum
    }"""

DEALT = """
    shuffle dealt {
      const rows = 24, columns = 3
      index i : rows / ranks
      segment row { x : f32[columns] }
      layout block[i] of row
      layout cyclic[j] of row dense(rows / ranks)
      dispatch block[i] -> cyclic[(rank * (rows / ranks) + i) / ranks]
        on (rank * (rows / ranks) + i) % ranks
      combine reverse
    }"""

PAGES = """
    shuffle pages {
      const layers = 2, width = 12288
      index m : moves   index b : pages   index s : slots
      segment kept { x : bf16[layers, width] }
      layout cache[l, b] of bf16[width] dense(layers, pages)
      layout arrived[s] of kept
      route from(m) -> page_idx = input source_page : int64
      route to(m) -> (rank, slot) = input destination : int64[2]
      view leaving[m] = cache[0 .. layers, from(m)]
      dispatch leaving[m] -> arrived[to(m).slot] on to(m).rank
      combine reverse
    }"""

PAIRS = """
    shuffle pairs {
      index t : tokens   index k : 2   index e : 6   index c : 3
      segment item { x : f32[4] }
      layout rows[t] of item
      layout by_pair[e, c, s] of item packed(s) align 2
      place e on rank by cyclic
      route r(t, k) -> (e, c) = input idx : int64[2]
      dispatch rows[t] -> by_pair[r(t, k).e, r(t, k).c, *]
      combine reverse reduce sum
    }"""

TURNED = """
    shuffle turned {
      index n : images   index s : length
      segment pixels { x : u8[4, 3] }
      layout planes[n, c, y] of u8 dense(3, 8)
      layout sequence[s] of pixels
      view part[n] = planes[n, 0 .. 3, 2 .. 6] order(y, c)
      route to(n) -> (rank, slot) = input destination : int64[2]
      dispatch part[n] -> sequence[to(n).slot] on to(n).rank
      combine reverse
    }"""

CHAINED = """
    shuffle chained {
      index t : tokens   index i : 2   index s : length
      segment item { x : f32[4] }
      layout rows[t, i] of item
      layout slots[s] of item
      route to(t) -> (rank, slot) = input destination : int64[2]
      dispatch rows[t, i] -> slots[to(t).slot + i] on to(t).rank
      combine reverse
    }"""

NORMALISED = """
    shuffle normalised {
      index t : tokens   index s : length
      segment bytes { x : u8[4, 3] }
      segment row { x : bf16[4, 3] }
      layout rows[t] of bytes
      layout slots[s] of row
      route to(t) -> (rank, slot) = input destination : int64[2]
      dispatch rows[t] -> slots[to(t).slot] on to(t).rank
        cast((x / 255 - [0.5, 0.25, 0.1]) / [0.2, 0.3, 0.7])
      combine reverse
    }"""

NORMALISED_BY = NORMALISED.replace(
    "shuffle normalised {",
    "shuffle normalised {\n      const mean = input mean : f32[3], std = input std : f32",
).replace("[0.5, 0.25, 0.1]) / [0.2, 0.3, 0.7]", "mean) / std")

BATCHED = """
    shuffle batched {
      index b : batch   index t : tokens   index e : 4
      segment item { x : f32[4096] }
      layout rows[b, t] of item
      layout by_key[e, s] of item packed(s)
      place e on rank by cyclic
      route r(b, t) -> e = input key : int32
      dispatch rows[b, t] -> by_key[r(b, t), *]
      combine reverse reduce sum
    }"""

EVERYWHERE = """
    shuffle everywhere {
      const tokens = 6
      index t : tokens   index p : ranks
      segment item { x : f32[8] }
      layout rows[t] of item
      layout all[g] of item dense(ranks * tokens)
      dispatch rows[t] -> all[rank * tokens + t] on p
      combine reverse reduce sum
    }"""

KEPT = """
    shuffle kept {
      index t : tokens   index s : slots   index m : entries
      segment row { x : f32[2, 4] }
      layout given[t] of row
      layout arrived[s] of row
      layout memory[m, y] of f32[4] dense(2)
      view entry[m] = memory[m, 0 .. 2]
      route to(t) -> (rank, slot) = input destination : int64[2]
      route at(s) -> m = input entry_idx : int64
      dispatch given[t] -> arrived[to(t).slot] on to(t).rank into entry[at(s)] reduce sum
    }"""

BAGS = """
    shuffle bags {
      const width = 8, bag = 3, parts = 8
      index t : bags   index k : bag   index p : parts
      segment id { row : i64 }
      segment pooled { x : f32[width] }
      layout ids[t, k] of id
      layout by_part[p, s] of id packed(s)
      place p on rank by block
      route wanted(t, k) -> p = input indices : int64
      weight w(t, k) : f32 = input weights
      dispatch ids[t, k] -> by_part[wanted(t, k), *] slice 96 B
      reply sums[t] of pooled reduce sum(w)
    }"""

EXAMPLES = (
    Example("routed", specs.routed("f16", capacity="capacity max 20"), ("2x2",)),
    Example(
        "table",
        specs.routed("f32", placement="table owner", options="dedup(rank) balance lpt slice 96 B"),
        ("3x2",),
        tokens=9,
    ),
    Example("kept", KEPT, ("2x1",)),
    Example(
        "rebalanced",
        specs.routed("bf16", options="balance rebalance schedule fast slice 96 B"),
        ("2x2", "3x2"),
        tokens=9,
    ),
    Example("quantised", QUANTISED, ("2x2",)),
    Example("applied", casts.SPECS["applied"], ("2x1",)),
    Example("moved", specs.MOVED, ("2x2",)),
    Example("patches", specs.patches(p=14), ("2x1",)),
    Example("pages", PAGES, ("2x1",)),
    Example("dealt", DEALT, ("2x2",)),
    Example("dealt_long", DEALT.replace("dealt", "dealt_long").replace("= 3", "= 64"), ("2x2",)),
    Example("maxima", specs.MAXIMA, ("2x2",)),
    Example("grid", specs.GRID, ("2x2",)),
    Example("everywhere", EVERYWHERE, ("2x1",)),
    Example("batched", BATCHED, ("2x1",)),
    Example("bags", BAGS, ("2x2",)),
    Example("reply", BAGS, ("2x2",), of_reply=True),
    Example("pairs", PAIRS, ("2x2",)),
    Example("turned", TURNED, ("2x1",)),
    Example("chained", CHAINED, ("2x1",)),
    Example("normalised", NORMALISED, ("2x1",)),
    Example("normalised_by", NORMALISED_BY, ("2x1",)),
    Example("compact", specs.routed("f32").replace("packed(s)", "packed(s) compact"), ("2x2",)),
)
"""In the order in which they are tried: those first in which more has an effect."""


@cache
def by_name(name: str) -> Example:
    """The example of that name."""
    return next(example for example in EXAMPLES if example.name == name)
