"""``fsc.node`` -> the Triton kernels of one node.

The kernels are the device functions of ``fuscoc_runtime/kernels/device``; what is printed here are
the functions that move and add up this shuffle's rows, and the kernels that bind both to its sizes.
The relation is evaluated by the kernel that the passes make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fuscoc.codegen.cuda_pieces import PieceLayout
from fuscoc.codegen.cuda_types import CudaField, CudaShuffle
from fuscoc.codegen.node_shuffle import node_shuffle
from fuscoc.codegen.triton_kernel import DESTINATIONS, NodeKernel, print_header, print_kernel
from fuscoc.codegen.triton_many import COMBINED as COMBINED_MANY
from fuscoc.codegen.triton_many import DISPATCHED as DISPATCHED_MANY
from fuscoc.codegen.triton_many import many_functions
from fuscoc.codegen.triton_pieces import print_pieces
from fuscoc.codegen.triton_relation import PointRelation
from fuscoc.codegen.triton_rows import (
    as_tuple,
    given_numbers,
    is_strided,
    partial_bytes,
    row_functions,
)
from fuscoc.codegen.triton_tiles import (
    LineSizes,
    PieceSizes,
    TritonPieceSizes,
    TritonSizes,
    power_of_two,
)
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.node import Node
from fuscoc.dialect.node_tiles import TritonTile
from fuscoc.dialect.piece_tiles import TritonPieceTile

COMBINED = ("rows", "result", "result_bytes")
"""What a combine is given of every field: rows in slots, where results go, and of what length."""

PLACES = {"first_place": "first", "end_place": "end"}
"""What kernels across nodes are given of the places of slabs that they are for,"""
PLACED = {"first": "first_place", "end": "end_place"}
"""and what they make of it."""

PLANNED = {name: name for name in ("count", "exchange", "assign")}
"""What plans inside a node, by role,"""
LANDED = {f"{name}_landed": name for name in ("exchange", "assign")}
"""and across nodes where inside one short rows are planned as they are moved."""

ROW_KERNELS = ("sort", "dispatch", "combine", "pack", "forward", "collect", "finish")
"""Those that hold rows in registers."""


@dataclass(frozen=True)
class NodeKernels:
    """A shuffle's kernels inside one node: ``text`` is what the artifact's ``file`` holds.

    ``kernels`` are by role. A program of the planner takes ``tile_sources`` segments; the number of
    keys is padded to ``padded_keys``, and they are exchanged by ``key_block``. What goes back for a
    segment has ``partial_bytes``; with ``places_results`` it ends where the segment lies. Where
    slots follow from pieces, kernels need memory as ``pieces`` says, and those ``between`` nodes
    are others, which move rows one by one.
    """

    file: str
    text: str
    kernels: Mapping[str, NodeKernel]
    tile_sources: int
    padded_keys: int
    key_block: int
    partial_bytes: int
    places_results: bool
    tile: TritonSizes | TritonPieceSizes
    pieces: PieceLayout | None = None
    between: NodeKernels | None = None

    @property
    def all(self) -> tuple[NodeKernels, ...]:
        """These, and those between nodes where they are others: each has a file."""
        return (self,) if self.between is None else (self, self.between)


def triton_node(module: Any, spec: str, words: Mapping[str, Sequence[str]]) -> NodeKernels | None:
    """The Triton kernels of a module inside one node, if choose-tiles has chosen sizes for some.

    ``spec`` is the name of the spec's file; ``words`` are comment lines above kernels, by role.
    """
    nodes = ops_of(module, Node)
    of_rows = [tile for node in nodes for tile in ops_of(node, TritonTile)]
    if not of_rows:
        return None
    shuffle = node_shuffle(module)
    of_pieces = [tile for node in nodes for tile in ops_of(node, TritonPieceTile)]
    by_rows = _of_rows(module, shuffle, of_rows[0], spec, words, only_between=bool(of_pieces))
    if not of_pieces:
        return by_rows
    return replace(_of_pieces(module, shuffle, of_pieces[0], spec, words), between=by_rows)


def _of_rows(
    module: Any,
    shuffle: CudaShuffle,
    chosen: Any,
    spec: str,
    words: Mapping[str, Sequence[str]],
    *,
    only_between: bool,
) -> NodeKernels:
    """Kernels that move rows, or those of them that are used between nodes."""
    sizes = {size.name: chosen.read(size.name) for size in fields(TritonSizes)}
    for rows in ("moved", "arriving", "summed"):
        sizes[rows] = tuple(PieceSizes(**each) for each in sizes[rows] or ())
    tile = TritonSizes(**sizes)
    # What varies with the outermost index, or says strides too, has a kernel of its own.
    packs = not shuffle.ragged and not is_strided(shuffle)
    evaluates = packs or tile.sorted_rows > 1
    relation = PointRelation(module, shuffle) if evaluates else None
    printer = _Printer(shuffle, tile, words, relation, only_between)
    modules = [printer.planner, printer.dispatch_module]
    modules += [] if shuffle.given_slots else ["padding"]
    modules += ["vectors"] if relation is not None and "vectors." in relation.text else []
    modules += ["combine"] if shuffle.combine is not None and not only_between else []
    modules += ["plan"] if printer.sorts else []
    modules += ["slabs", "hop", *(["hop_back"] if shuffle.combine is not None else [])]
    where = "between nodes" if only_between else "inside one node"
    every = (shuffle.fanout, tile.plan_points) if shuffle.every_rank else None
    header = print_header(shuffle.name, spec, modules, where, every)
    many = many_functions(shuffle, tile) if tile.tile_rows > 1 else []
    text = "\n\n".join([header, *many, *row_functions(shuffle, tile), *printer.texts()])
    return NodeKernels(
        file=f"kernels/{shuffle.name}.{printer.where}.py",
        text=text,
        kernels=printer.printed,
        tile_sources=printer.tile_sources,
        padded_keys=printer.keys,
        key_block=tile.plan_keys,
        partial_bytes=partial_bytes(shuffle)[1],
        places_results=shuffle.is_placed,
        tile=tile,
    )


def _of_pieces(
    module: Any, shuffle: CudaShuffle, tile: Any, spec: str, words: Mapping[str, Sequence[str]]
) -> NodeKernels:
    sizes = {size.name: tile.read(size.name) for size in fields(TritonPieceSizes)}
    sizes["fields"] = tuple(LineSizes(**each) for each in sizes["fields"])
    chosen = TritonPieceSizes(**sizes)
    text, kernels, layout = print_pieces(module, shuffle, chosen, spec, words)
    return NodeKernels(
        file=f"kernels/{shuffle.name}.node.py",
        text=text,
        kernels=kernels,
        tile_sources=1,
        padded_keys=1,
        key_block=1,
        partial_bytes=0,
        places_results=shuffle.is_placed,
        tile=chosen,
        pieces=layout,
    )


class _Printer:
    """Prints the kernels of one shuffle; ``printed`` has what a launch must know of them."""

    def __init__(
        self,
        shuffle: CudaShuffle,
        tile: TritonSizes,
        words: Mapping[str, Sequence[str]],
        relation: PointRelation | None,
        only_between: bool,
    ) -> None:
        """``relation``: what short rows are sorted by, or slabs are packed by, if they are.
        ``only_between`` nodes: inside one there are other kernels."""
        self.shuffle, self.tile, self.words, self.relation = shuffle, tile, words, relation
        self.where = "rails" if only_between else "node"
        self.only_between = only_between
        lanes = power_of_two(shuffle.fanout)
        segments = tile.plan_points // lanes
        self.sorts = tile.sorted_rows > 1
        if self.sorts:
            segments, lanes = tile.sorted_rows, 1
        self.tile_sources = segments * tile.plan_tiles
        self.fanout, self.lanes = str(shuffle.fanout), str(lanes)
        self.tile_points = f"({segments}, {lanes})"
        if shuffle.every_rank:
            self.fanout, self.lanes, segments_of = DESTINATIONS
            self.tile_points = f"({segments_of}, {self.lanes})"
        self.columns = shuffle.num_columns
        self.keys = power_of_two(self.columns)
        self.planner = "place" if shuffle.given_slots else "sort" if self.sorts else "plan"
        self.dispatch_module = "compact" if shuffle.compact else "dispatch"
        self.printed: dict[str, NodeKernel] = {}

    def texts(self) -> list[str]:
        """Every kernel: those inside a node, then those across nodes, where rows move one by one
        and planning has no part in it."""
        combines = self.shuffle.combine is not None
        landed = list[str]()
        if self.sorts:
            assert self.relation is not None
            planned = self.sort(self.relation)
            landed = self.plan(LANDED)
        else:
            planned = self.place() if self.shuffle.given_slots else self.plan(PLANNED)
        inside = [*planned]
        if not self.only_between:
            inside += [self.dispatch(), *([self.combine()] if combines else [])]
        evaluated = [] if self.relation is None or self.sorts else [self.relation.text]
        across = [*landed, self.pack(), self.forward(), *(self.back() if combines else [])]
        return [*inside, *evaluated, *across]

    def place(self) -> list[str]:
        """The planner's kernels where the relation gives slots."""
        begun = self.begun()
        sizes: dict[str, object] = {"fanout": self.fanout, "tile": self.tile_points}
        sizes |= {"apart": True} if begun else {"apart": False, "begun": 0}
        return [
            self.kernel("exchange", "place.exchange", {"num_slots": "num_slots"}, {}),
            self.kernel("place", "place.place", begun, sizes),
        ]

    def plan(self, kernels: Mapping[str, str]) -> list[str]:
        """Those of the planner, by their roles."""
        sizes: dict[str, object] = {
            "fanout": self.fanout,
            "keys": self.keys,
            "align": self.shuffle.align,
            "padding": f"padding.{self.shuffle.padding}",
            "tile": self.tile_points,
            "tiles": self.tile.plan_tiles,
            "block": self.tile.plan_block,
            "compact": self.shuffle.compact,
        }
        used = {
            "count": ("fanout", "keys", "block", "tile", "tiles", "compact"),
            "exchange": ("keys", "tile", "tiles", "block", "compact"),
            "assign": tuple(sizes),
        }
        given = {"assign": {"key_to_rank": "key_to_rank"}, "exchange": self.table()}
        constants = {name: {size: sizes[size] for size in used[name]} for name in used}
        constants["exchange"] |= {"block": self.tile.plan_keys, **self.given_table()}
        constants["assign"] |= self.placed()
        return [
            self.kernel(role, f"plan.{name}", given.get(name, {}), constants[name])
            for role, name in kernels.items()
        ]

    def sort(self, relation: PointRelation) -> list[str]:
        """The same of short rows, which the last of them moves."""
        sources = self.sources()
        places = self.of_fields("rows_at", self.shuffle.fields)
        counted = {"keys": self.keys, "tile": self.tile.plan_points}
        told = {
            "columns": self.columns,
            "keys": self.keys,
            "block": self.tile.plan_keys,
            **self.given_table(),
        }
        moved = {
            "source_fields": as_tuple(list(sources)),
            "rows_at": as_tuple(list(places)),
            "load_sources": "load_sources",
            "store_rows": "store_rows",
            **self.cells(),
            "num_keys": self.shuffle.num_keys,
            "align": self.shuffle.align,
            "padding": f"padding.{self.shuffle.padding}",
            "keys": self.keys,
            "tile_bits": self.tile.sorted_rows.bit_length() - 1,
            "tile_rows": min(self.tile.tile_rows, self.tile.sorted_rows),
            **self.placed(),
        }
        related = {"given": as_tuple(list(relation.given)), "relation": "relation"}
        given = {"key_to_rank": "key_to_rank", "ticket": "ticket", **sources, **places}
        return [
            relation.text,
            self.kernel("count", "sort.count", relation.given, related | self.cells() | counted),
            self.kernel(
                "exchange", "sort.exchange", {"programs": "programs", **self.table()}, told
            ),
            self.kernel("sort", "sort.dispatch", given, moved),
        ]

    def dispatch(self) -> str:
        sources = self.sources()
        places = self.of_fields("rows_at", self.shuffle.fields)
        functions = {name: name for name in ("load_source", "load_row", "store_row")}
        if self.shuffle.compact:  # rows that have arrived stay where they are
            del functions["load_row"]
        if self.tile.tile_rows > 1:
            functions = DISPATCHED_MANY
        constants = {
            "source_fields": as_tuple(list(sources)),
            "rows_at": as_tuple(list(places)),
            **functions,
            **self.row_sizes(),
            **self.many_sizes(),
            **(self.cells() if self.tile.tile_rows > 1 else {}),
        }
        if is_strided(self.shuffle):
            constants["strided"] = True
        parameters = {"ticket": "ticket", "weights": "weights", **sources, **places}
        return self.kernel("dispatch", f"{self.dispatch_module}.dispatch", parameters, constants)

    def combine(self) -> str:
        functions: tuple[str, ...] = COMBINED_MANY if self.tile.tile_rows > 1 else (
            "zero", "add_row", "add_partial", "store_partial", "store_result", "lost",
        )  # fmt: skip
        given = {what: self.of_fields(what, self.shuffle.leaving) for what in COMBINED}
        constants = {
            **{what: as_tuple(list(fields)) for what, fields in given.items()},
            **{name: name for name in functions},
            "num_fields": len(self.shuffle.leaving),
            "partial_bytes": partial_bytes(self.shuffle)[1],
            **self.row_sizes(),
            **self.many_sizes(),
        }
        if self.shuffle.is_placed:
            constants |= {"places": True, "strided": is_strided(self.shuffle)}
        parameters = {name: name for name in ("ticket", "rows_ticket", "weights")}
        for each in given.values():
            parameters |= each
        return self.kernel("combine", "combine.combine", parameters, constants)

    def pack(self) -> str:
        """What goes before the network."""
        sources = self.sources()
        places = self.of_fields("slab_at", self.shuffle.fields)
        constants = {
            "source_fields": as_tuple(list(sources)),
            "slab_at": as_tuple(list(places)),
            "load_source": "load_source",
            "store_row": "store_row",
            **self.row_sizes(),
            "tile": self.tile_points,
            "tiles": self.tile.plan_tiles,
            "compact": self.shuffle.compact,
            "given": "()",
            "relation": None,
        }
        del constants["weighted"]  # a reply to these segments may be
        if is_strided(self.shuffle):
            constants["strided"] = True
        if self.shuffle.given_slots:
            constants["counts"] = False
        if self.shuffle.apart:
            constants |= {"apart": True, **self.begun()}
        constants |= self.given_table()
        parameters = {"says": "says", "weights": "weights", **sources, **places}
        parameters |= self.begun() | self.table()
        if self.relation is not None:
            constants |= {"given": as_tuple(list(self.relation.given)), "relation": "relation"}
            parameters |= self.relation.given
        return self.kernel("pack", "hop.pack", parameters, constants)

    def forward(self) -> str:
        """A dispatch of what has landed, and of this rank's own segments."""
        landed = self.of_fields("slab_at", self.shuffle.fields)
        sources = self.sources()
        places = self.of_fields("rows_at", self.shuffle.fields)
        functions = {"load_source": "load_landed", "load_row": "load_row", "store_row": "store_row"}
        if self.shuffle.compact:
            functions.pop("load_row")
        constants = {
            "source_fields": as_tuple([as_tuple(list(landed)), as_tuple(list(sources))]),
            "rows_at": as_tuple(list(places)),
            **functions,
            **self.row_sizes(),
            "cell_of": "slabs.cell_of",
        }
        if is_strided(self.shuffle):
            constants["strided"] = True
        parameters = {"ticket": "ticket", "weights": "weights", **landed, **sources, **places}
        if not self.shuffle.compact:
            parameters |= PLACES
            constants |= {"across": True, **PLACED}
        return self.kernel("forward", f"{self.dispatch_module}.dispatch", parameters, constants)

    def back(self) -> list[str]:
        """A combine, before the network and behind it."""
        given = {what: self.of_fields(what, self.shuffle.leaving) for what in COMBINED}
        tuples = {what: as_tuple(list(fields)) for what, fields in given.items()}
        sums = {name: name for name in ("zero", "add_row", "add_partial")}
        sizes = {"partial_bytes": partial_bytes(self.shuffle)[1], **self.row_sizes()}
        own = {name: name for name in ("ticket", "rows_ticket", "weights")} | PLACES
        collects = {
            "rows": tuples["rows"],
            **sums,
            "store_partial": "store_partial",
            **sizes,
            **PLACED,
        }
        finishes: dict[str, object] = {
            **tuples,
            **sums,
            "store_result": "store_result",
            "lost": "lost",
        }
        finishes |= {"num_fields": len(self.shuffle.leaving), **sizes, **PLACED}
        if self.shuffle.is_placed:
            finishes |= {"places": True, "strided": is_strided(self.shuffle)}
        every = dict(own)
        for each in given.values():
            every |= each
        return [
            self.kernel("collect", "hop_back.collect", {**own, **given["rows"]}, collects),
            self.kernel("finish", "hop_back.finish", every, finishes),
        ]

    def sources(self) -> dict[str, str]:
        """What is read for a row: its fields in the source, and numbers for those of casts."""
        numbers = {
            f"numbers_{i}": f"numbers.{n}" for i, n in enumerate(given_numbers(self.shuffle))
        }
        return self.of_fields("source", self.shuffle.leaving) | numbers

    @staticmethod
    def of_fields(what: str, rows: Sequence[CudaField]) -> dict[str, str]:
        """A parameter of every field, and what a launch passes as it."""
        return {f"{what}_{i}": f"{what}.{field.name}" for i, field in enumerate(rows)}

    def begun(self) -> dict[str, str]:
        """What segments that must lie apart are marked in."""
        return {"begun": "begun"} if self.shuffle.apart else {}

    def table(self) -> dict[str, str]:
        """A parameter of what tells others of the table that places keys, if one does."""
        return {"table": "key_to_rank"} if self.shuffle.by_table else {}

    def given_table(self) -> dict[str, object]:
        """What it makes of that."""
        return {name: name for name in self.table()}

    def placed(self) -> dict[str, object]:
        """What compares it."""
        return {"placed": True} if self.shuffle.by_table else {}

    def cells(self) -> dict[str, object]:
        """Those of a segment, 0 if its place is looked up."""
        field = self.shuffle.leaving[0]
        return {"cells": 0 if self.shuffle.is_placed else field.elems // field.cell_elems}

    def row_sizes(self) -> dict[str, object]:
        return {
            "fanout": self.fanout,
            "lanes": self.lanes,
            "parts": self.tile.row_parts,
            "weighted": self.shuffle.weighted,
        }

    def many_sizes(self) -> dict[str, object]:
        """How many rows move at once, where they do."""
        return {"tile_rows": self.tile.tile_rows} if self.tile.tile_rows > 1 else {}

    def kernel(
        self,
        name: str,
        function: str,
        parameters: Mapping[str, str],
        constants: Mapping[str, object],
    ) -> str:
        """A kernel that hands its parameters and ``constants`` on to a device function."""
        every = {"call": "call", "num_sources": "num_sources", **parameters}
        moves_rows = name in ROW_KERNELS
        warps = self.tile.row_warps if moves_rows else self.tile.plan_warps
        full = f"{self.shuffle.name}_{self.where}_{name}"
        self.printed[name] = NodeKernel(full, every, warps)
        # Others go as tuples, or by name.
        passed = [k for k, value in every.items() if k == value and k not in constants]
        arguments = [*passed, *(f"{key}={value}" for key, value in constants.items())]
        call = f"{function}({', '.join(arguments)})"
        pointers = dict.fromkeys(("call", "key_to_rank", "table"), "int64")
        pointers |= self.relation.pointers if self.relation is not None else {}
        return print_kernel(full, every, pointers, [call], self.words.get(name, ()))
