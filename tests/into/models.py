"""Shuffles whose rows go into memory of the caller's, with data, and what plain torch makes of it.

``python -m tests.into.models FOLDER`` compiles them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "kv_cache.fsc"
LAYERS, PAGE, HEADS, WIDTH = 3, 2, 2, 5

TABLE = """
shuffle table {
  index t : rows
  index s : slots
  index i : entries

  segment entry { x : f32[5], id : i64 }

  layout  given[t]   of entry
  layout  arrived[s] of entry
  layout  table[i]   of entry

  route   to(t) -> (rank, slot) = input destination : int64[2]
  route   at(s) -> entry        = input entry_idx : int32

  dispatch given[t] -> arrived[to(t).slot] on to(t).rank  into table[at(s)]
  combine  reverse
}
"""

TILES = """
shuffle tiles {
  const p = 2, columns = 3

  index t : rows
  index s : slots
  index i : lines
  index j : columns

  segment tile { x : f16[p, p, 3] }

  layout  given[t]      of tile
  layout  arrived[s]    of tile
  layout  picture[y, x] of f16[3]  dense(lines * p, columns * p)
  view    tiles[i, j] = picture[i*p .. i*p+p, j*p .. j*p+p]

  route   to(t) -> (rank, slot) = input destination : int64[2]
  route   at(s) -> (i, j)       = input tile_idx : int64[2]

  dispatch given[t] -> arrived[to(t).slot] on to(t).rank  into tiles[at(s).i, at(s).j]
  combine  reverse
}
"""


@dataclass(frozen=True, eq=False)
class Call:
    """One call: the arguments of every rank, the name of its memory, and what that must hold.

    ``num_parts``: the runs of its memory that every rank stores what has come in.
    """

    given: list[dict[str, Any]]
    memory: str
    wanted: list[Any]
    num_parts: list[int]


@dataclass(frozen=True, eq=False)
class Routes:
    """Where what the ranks give goes: ``destination`` and ``places``, int64 [num_slots], of each.

    Not every slot is filled, and not every place is given: both may be -1.
    """

    destination: list[Tensor]
    places: list[Tensor]

    def arrivals(self) -> list[tuple[int, int, int, int]]:
        """(source rank, source, rank, place) of all that arrives somewhere and goes on."""
        found = []
        for source, table in enumerate(self.destination):
            for number, (rank, slot) in enumerate(table.tolist()):
                if rank >= 0 and int(self.places[rank][slot]) >= 0:
                    found.append((source, number, rank, int(self.places[rank][slot])))
        return found

    def num_parts(self, parts_of_row: int) -> list[int]:
        """Parts of rows that arrive on every rank and go on."""
        arriving = [rank for _, _, rank, _ in self.arrivals()]
        return [parts_of_row * arriving.count(rank) for rank in range(len(self.places))]


def routes(
    random: torch.Generator, sizes: torch.Generator, num_ranks: int, most: int, num_places: int
) -> Routes:
    """Up to ``most`` rows of every rank, to slots and places of their own."""

    def number(end: int, random: torch.Generator = random) -> int:
        return int(torch.randint(end, (), generator=random))

    slots = [number(num_ranks * most + 1, sizes) for _ in range(num_ranks)]
    free = [torch.randperm(count, generator=random).tolist() for count in slots]
    destination = []
    for _ in range(num_ranks):
        rows = []
        for _ in range(number(most + 1, sizes)):
            rank = number(num_ranks)
            gone = not free[rank] or number(8) == 0
            rows.append([-1, 0] if gone else [rank, free[rank].pop()])
        destination.append(torch.tensor(rows, dtype=torch.int64).view(-1, 2))
    places = []
    for count in slots:
        table = torch.full((count,), -1)
        chosen = torch.randperm(num_places, generator=random)[:count]
        keep = torch.rand(len(chosen), generator=random) < 0.8
        table[torch.randperm(count, generator=random)[: len(chosen)]] = torch.where(
            keep, chosen, -1
        )
        places.append(table)
    return Routes(destination, places)


def cache_call(random: torch.Generator, sizes: torch.Generator, num_ranks: int) -> Call:
    """Pages that a list names, into pages that a block table names."""
    shape, num_pages, num_blocks = (PAGE, 2, HEADS, WIDTH), 4, 9
    found = routes(random, sizes, num_ranks, 5, num_blocks)
    given = _bits(random, num_ranks, (LAYERS, num_pages, *shape), torch.bfloat16)
    cache = _bits(random, num_ranks, (LAYERS, num_blocks, *shape), torch.bfloat16)
    pages = [torch.randint(num_pages, (len(d),), generator=random) for d in found.destination]
    wanted = [each.clone() for each in cache]
    for source, number, rank, block in found.arrivals():
        wanted[rank][:, block] = given[source][:, pages[source][number]]
    arguments = [
        {"x": g, "source_page": p, "destination": d, "block_table": b, "cache": c}
        for g, p, d, b, c in zip(given, pages, found.destination, found.places, cache, strict=True)
    ]
    return Call(arguments, "cache", wanted, found.num_parts(LAYERS))


def table_call(random: torch.Generator, sizes: torch.Generator, num_ranks: int) -> Call:
    """Rows of two fields into a table of such."""
    num_entries = 11
    found = routes(random, sizes, num_ranks, 6, num_entries)
    num_rows = [len(each) for each in found.destination]
    x = [torch.randn(count, 5, generator=random) for count in num_rows]
    ids = [torch.randint(2**40, (count,), generator=random) for count in num_rows]
    tables = [
        {
            "x": torch.randn(num_entries, 5, generator=random),
            "id": torch.randint(2**40, (num_entries,), generator=random),
        }
        for _ in range(num_ranks)
    ]
    wanted = [{name: each.clone() for name, each in table.items()} for table in tables]
    for source, number, rank, entry in found.arrivals():
        wanted[rank]["x"][entry] = x[source][number]
        wanted[rank]["id"][entry] = ids[source][number]
    arguments = [
        {"x": one, "id": two, "destination": d, "entry_idx": at.int(), "table": table}
        for one, two, d, at, table in zip(
            x, ids, found.destination, found.places, tables, strict=True
        )
    ]
    return Call(arguments, "table", wanted, found.num_parts(1))


def tiles_call(random: torch.Generator, sizes: torch.Generator, num_ranks: int) -> Call:
    """Tiles into a picture, of which each is several runs."""
    lines, columns, p = 4, 3, 2
    found = routes(random, sizes, num_ranks, 5, lines * columns)
    given = [torch.randn(len(each), p, p, 3, generator=random).half() for each in found.destination]
    pictures = [
        torch.randn(lines * p, columns * p, 3, generator=random).half() for _ in range(num_ranks)
    ]
    wanted = [each.clone() for each in pictures]
    for source, number, rank, place in found.arrivals():
        i, j = place // columns * p, place % columns * p
        wanted[rank][i : i + p, j : j + p] = given[source][number]
    tables = [
        torch.stack([at // columns, torch.where(at < 0, -1, at % columns)], 1)
        for at in found.places
    ]
    arguments = [
        {"x": g, "destination": d, "tile_idx": t, "picture": picture, "lines": lines}
        for g, d, t, picture in zip(given, found.destination, tables, pictures, strict=True)
    ]
    return Call(arguments, "picture", wanted, found.num_parts(p))


def sums_call(random: torch.Generator, sizes: torch.Generator, num_ranks: int) -> Call:
    """Messages that are added up at few nodes, in the order of their slots."""
    num_nodes = 3
    found = routes(random, sizes, num_ranks, 6, num_nodes)
    places = [torch.randint(-1, num_nodes, (len(each),), generator=random) for each in found.places]
    found = Routes(found.destination, places)
    x = [torch.randn(len(each), WIDTH, generator=random) for each in found.destination]
    nodes = [torch.randn(num_nodes, WIDTH, generator=random) for _ in range(num_ranks)]
    wanted = [each.clone() for each in nodes]
    arrived = [
        (rank, int(found.destination[source][number, 1]), node, x[source][number])
        for source, number, rank, node in found.arrivals()
    ]
    for rank, _, node, message in sorted(arrived, key=lambda each: each[:2]):
        wanted[rank].index_add_(0, torch.tensor([node]), message[None])
    arguments = [
        {"x": one, "destination": d, "heads": at, "sums": node}
        for one, d, at, node in zip(x, found.destination, found.places, nodes, strict=True)
    ]
    return Call(arguments, "sums", wanted, found.num_parts(1))


_MODELS: Mapping[str, Callable[[torch.Generator, torch.Generator, int], Call]] = {
    "kv_cache": cache_call,
    "table": table_call,
    "tiles": tiles_call,
    "scatter_add": sums_call,
}
MODELS = [*_MODELS]


def draw(name: str, num_ranks: int, seed: int, sizes: int | None = None) -> Call:
    """A call of the model of that name. Those of one seed for ``sizes`` have equal shapes."""
    random = torch.Generator().manual_seed(seed)
    own = random if sizes is None else torch.Generator().manual_seed(sizes)
    return _MODELS[name](random, own, num_ranks)


SIZES = {
    "kv_cache": {"layers": LAYERS, "page": PAGE, "heads": HEADS, "width": WIDTH},
    "scatter_add": {"width": WIDTH},
}


def build(folder: Path, *, triton: bool = False) -> dict[str, str]:
    """The artifacts by name; those for ``triton`` have no CUDA kernels."""
    import fuscoc

    texts = {"table": TABLE, "tiles": TILES}
    texts |= {name: (EXAMPLES / f"{name}.fsc").read_text() for name in SIZES}
    built = {}
    for name, text in texts.items():
        if triton:
            text = text.replace("  into ", "  backend triton  into ")
        built[name] = str(fuscoc.compile(text, folder / name, **SIZES.get(name, {})))
    return built


def differences(wanted: Any, memory: Any) -> Sequence[str]:
    """The fields whose memory is not bit by bit what it should be."""
    pairs = wanted.items() if isinstance(wanted, Mapping) else [("", wanted)]
    found = memory if isinstance(memory, Mapping) else {"": memory}
    return [name for name, each in pairs if not _same_bits(each, found[name].cpu())]


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(*(each.contiguous().view(torch.uint8) for each in (first, second)))


def _bits(
    random: torch.Generator, count: int, shape: Sequence[int], dtype: torch.dtype
) -> list[Tensor]:
    size = torch.Size(shape).numel() * dtype.itemsize
    drawn = (torch.randint(256, (size,), generator=random) for _ in range(count))
    return [each.to(torch.uint8).view(dtype).view(*shape) for each in drawn]


def build_all(folder: Path) -> None:
    """What ``gpu_run.py`` takes."""
    for kind in ("auto", "triton"):
        build(folder / kind, triton=kind == "triton")


if __name__ == "__main__":
    build_all(Path(sys.argv[1]))
