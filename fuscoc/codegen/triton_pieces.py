"""The Triton kernels of a shuffle whose slots follow from pieces: what the device functions
``pieces``, ``move`` and ``give_back`` of the runtime are bound to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuscoc.codegen.cuda_entries import AlikeEntries, alike_entries
from fuscoc.codegen.cuda_pieces import MOST, PieceLayout, ends, moving_loop
from fuscoc.codegen.cuda_relation import fused_relation
from fuscoc.codegen.cuda_types import CudaField, CudaShuffle, row_bytes, run_bytes
from fuscoc.codegen.regions import Region
from fuscoc.codegen.triton_expressions import wrapped
from fuscoc.codegen.triton_kernel import NodeKernel, print_header, print_kernel
from fuscoc.codegen.triton_rows import as_tuple
from fuscoc.codegen.triton_text import TritonText
from fuscoc.codegen.triton_tiles import LINE_BYTES, TritonPieceSizes
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.fused import NodePieces
from fuscoc.dialect.node import Node
from fuscoc.dialect.pieces import Piece
from fuscoc.dialect.relation import Domain
from fuscoc.lang.dtypes import ITEM_BYTES

BOX_WORDS, STEP_WORDS, MARK_WORDS = 15, 5, 3
"""Those of ``kernels/device/boxes.py`` and ``made_boxes.py``: words before loops, and of a loop."""


def print_pieces(
    module: Any,
    shuffle: CudaShuffle,
    sizes: TritonPieceSizes,
    spec: str,
    words: Mapping[str, Sequence[str]],
) -> tuple[str, dict[str, NodeKernel], PieceLayout]:
    """The kernels of a module, from choose-tiles on."""
    with module.context:
        return _Printer(module, shuffle, sizes, words).printed(spec)


class _Printer:
    def __init__(
        self,
        module: Any,
        shuffle: CudaShuffle,
        sizes: TritonPieceSizes,
        words: Mapping[str, Sequence[str]],
    ) -> None:
        self.shuffle, self.sizes, self.words = shuffle, sizes, words
        (node,) = ops_of(module, Node)
        (self.op,) = ops_of(node, NodePieces)
        _, self.points, _ = fused_relation(module)
        self.domain = terminator(self.points, 0, Domain)
        self.outer = list(self.op.read("outer"))
        self.pieces = [each for each in self.op.entry.blocks[0] if isinstance(each, Piece)]
        self.num_loops = max(1, *(len(piece.counts) for piece in self.pieces))
        self.alike = None if sizes.chained is None else alike_entries(node, shuffle)
        if self.alike is not None:  # and one over the entries of a chain
            self.num_loops = len(self.alike.counts) + 1
        self.num_run_loops = max(len(field.loops) for field in shuffle.leaving)
        self.kernels: dict[str, NodeKernel] = {}
        self.given = {
            **{f"input_{each.name}": f"input.{each.name}" for each in shuffle.inputs},
            **{f"extent_{name}": f"extent.{name}" for name in (*shuffle.extents, "rank", "ranks")},
        }
        self.pointers = {"call": "int64"}
        for each in shuffle.inputs:
            kind = {"i32": "int32", "i64": "int64"}[each.dtype]
            self.pointers[f"input_{each.name}"] = kind

    def printed(self, spec: str) -> tuple[str, dict[str, NodeKernel], PieceLayout]:
        combines = self.shuffle.combine is not None
        functions = [list(self.piece())]
        functions += [list(self.entry_sizes())] if self.shuffle.ragged else []
        entries, declared = self.num_entries()
        used = " ".join(line for lines in functions for line in lines)
        all_used = " ".join([used, *declared, entries])
        parameters = {name: what for name, what in self.given.items() if _names(name, all_used)}
        self.given = {name: what for name, what in parameters.items() if _names(name, used)}
        texts = [self.function(*lines) for lines in functions]
        texts += [self.plan(entries, declared, parameters), *self.dispatches()]
        texts += [self.combine("combine"), self.combine("lend", "result_at")] if combines else []
        planning = ["pieces"] if self.alike is None else ["pieces", "chains"]
        modules = [*planning, "move", *(["give_back"] if combines else [])]
        modules += ["vectors"] if "vectors." in all_used else []
        layout = PieceLayout(
            per_entry=len(self.pieces),
            box_bytes=8 * self.box_words,
            mark_bytes=8 * (MARK_WORDS + 2 * self.num_loops),
            line_parts=line_parts(self.shuffle.leaving[0], self.sizes.fields[0].word_bytes),
            outer=len(self.outer),
        )
        header = print_header(self.shuffle.name, spec, modules, "inside one node")
        return "\n\n".join([header, *texts]), self.kernels, layout

    @property
    def steps(self) -> int:
        return self.num_loops + self.num_run_loops

    @property
    def box_words(self) -> int:
        return BOX_WORDS + STEP_WORDS * self.steps

    def function(self, head: str, *body: str) -> str:
        """A device function that is given what the relation reads."""
        names = [f"{name} = given[{i}]" for i, name in enumerate(self.given)]
        used = " ".join(body)
        lines = [line for line in names if _names(line.split()[0], used)]
        lines = [part for line in lines for part in wrapped("    ", line)] + list(body)
        return "\n".join(["@triton.jit", f"def {head}:", *lines]) + "\n"

    def piece(self) -> Iterator[str]:
        """What the relation says of each piece."""
        yield "piece(number: tl.constexpr, entry, cells_before, given)"
        for position, piece in enumerate(self.pieces):
            text = TritonText(self.shuffle)
            names, extents = self.points.read("indices"), list(self.domain.extents)
            counts = [Region(text, {}).value(extents[index]) for index in self.outer[1:]]
            indices = Region(text, {}).row_major("entry", [names[i] for i in self.outer], counts)
            arguments = self.op.entry.blocks[0].arguments
            region = Region(text, dict(zip(arguments, indices, strict=True)))
            found = as_tuple(list(self.members(region, piece)))
            yield f"    {'elif' if position else 'if'} number == {position}:"
            for line in text.declarations(found):
                yield from wrapped("        ", line.strip())
            yield from wrapped("        ", f"found = {found}")
        yield "    return found"

    def members(self, region: Region[str], piece: Any) -> Iterator[str]:
        """The loop that moves the rank comes last."""
        moving = moving_loop(piece)
        rank, slot = ends(region, piece, "extent_ranks")
        order: list[int | None] = [None] * (self.num_loops - len(piece.counts))
        order += [i for i in range(len(piece.counts)) if i != moving]
        order += [moving] if moving is not None else []
        yield from (region.value(piece.src_offset), rank, slot)
        yield "0" if moving is None else region.value(piece.rank_steps[moving])
        for values, none in ((piece.counts, 1), (piece.src_steps, 0), (piece.place_steps, 0)):
            yield as_tuple([str(none) if i is None else region.value(values[i]) for i in order])
        yield as_tuple([region.value(each) for each in piece.src_strides])

    def entry_sizes(self) -> Iterator[str]:
        """How many points and cells an entry of a ragged source has, if that is possible."""
        text = TritonText(self.shuffle)
        (argument,) = self.points.domain.blocks[0].arguments
        region = Region(text, {argument: "entry"})
        inner = [value for i, value in enumerate(self.domain.extents) if i not in self.outer]
        extents = [region.value(value) for value in inner]
        (cells,) = map(region.value, self.domain.cells)
        tests = [f"({each} >= 0) & ({each} < {MOST})" for each in extents]
        tests += [f"({lhs} % {rhs} == 0)" for lhs, rhs in region.exact]
        tests.append(f"({cells} >= 0)")
        product = " * ".join(extents) or "1"
        yield "sizes(entry, given)"
        used = " ".join([product, cells, *tests])
        for line in text.declarations(used):
            yield from wrapped("    ", line.strip())
        yield f"    points = entry * 0 + {product}"
        yield f"    cells = entry * 0 + {cells}"
        yield "    fits = entry == entry"
        yield from (f"    fits = fits & {each}" for each in tests)
        yield "    wide = pieces.as_float(entry * 0 + 1)"
        for each in extents:
            bare = each[1:-1] if each.startswith("(") else each
            yield f"    wide = wide * pieces.as_float({bare})"
        yield "    fits = fits & (wide < pieces.MOST_POINTS)"
        yield "    return points, cells, fits"

    def num_entries(self) -> tuple[str, list[str]]:
        """How many entries there are, and the variables that it needs."""
        text, extents = TritonText(self.shuffle), list(self.domain.extents)
        counts = [Region(text, {}).value(extents[index]) for index in self.outer]
        number = " * ".join(counts) or "1"
        return number, [line.strip() for line in text.declarations(number)]

    def row(self, field: CudaField, word_bytes: int) -> str:
        """Sizes of a field, as the device functions take them."""
        loops = list[tuple[int, int, int]]()
        nbytes = row_bytes(field)
        for loop in field.loops:
            nbytes //= loop.count
            given = isinstance(loop.stride, str)
            stride = -1 - int(str(loop.stride).removeprefix("src_stride")) if given else loop.stride
            loops.append((loop.count, int(stride), nbytes))
        loops += [(1, 0, 0)] * (self.num_run_loops - len(loops))
        cell = field.cell_elems * ITEM_BYTES[field.dtype]
        numbers = [word_bytes, row_bytes(field), cell, run_bytes(field)]
        lists = [as_tuple([str(loop[i]) for loop in loops]) for i in range(3)]
        return as_tuple([*map(str, numbers), *lists])

    def rows(self) -> list[str]:
        """Those of all fields."""
        sizes = zip(self.shuffle.leaving, self.sizes.fields, strict=True)
        return [self.row(field, size.word_bytes) for field, size in sizes]

    def plan(self, entries: str, declared: Sequence[str], parameters: Mapping[str, str]) -> str:
        """The kernel that tells and hears what ranks have, and makes boxes."""
        fixed, fanout, ragged = not self.op.looks_up(), self.shuffle.fanout, self.shuffle.ragged
        counts = {name: name for name in ("part", "num_sources", "num_slots", "num_cells")}
        meets = {
            **dict.fromkeys(counts),
            "num_entries": entries,
            "given": as_tuple(list(self.given)),
            "sizes": "sizes" if ragged else "None",
            "fanout": fanout,
            "ragged": ragged,
            "fixed": fixed,
        }
        given: dict[str, object] = {
            "part": None,
            "given": as_tuple(list(self.given)),
            "piece": "piece",
            "rows": as_tuple(self.rows()),
            "item_lines": self.sizes.item_lines,
            "fixed": fixed,
            "comes_back": self.shuffle.combine is not None,
        }
        if self.alike is None:
            given |= {
                "num_pieces": len(self.pieces),
                "fanout": fanout,
                "ragged": ragged,
                "apart": self.shuffle.apart,
            }
        else:
            given |= {"group": self.sizes.chained, "entry": self.entry(self.alike)}
        planning = "pieces" if self.alike is None else "chains"
        before = [*declared, called("pieces.meet", meets)]
        parameters = {**counts, **parameters}
        return self.kernel(
            "plan", f"{planning}.place", parameters, given, self.sizes.plan_warps, before
        )

    def entry(self, alike: AlikeEntries) -> str:
        """What all entries are, as `chains.place` takes it."""
        (field,) = self.shuffle.leaving
        reaches = [
            step * (count - 1) for count, step in zip(alike.counts, alike.slot_steps, strict=True)
        ]
        ends = sum(min(each, 0) for each in reaches), sum(max(each, 0) for each in reaches)
        cells = alike.points * field.elems // field.cell_elems
        numbers = cells, alike.slots_together, alike.points, *ends
        return as_tuple([str(each) for each in numbers])

    def dispatches(self) -> Iterator[str]:
        """The kernel that copies, and one of other sizes for few SMs, if these are others."""
        lines = [each.lines for each in self.sizes.fields]
        few_lines = [each.few_lines for each in self.sizes.fields]
        yield self.dispatch("dispatch", lines)
        if few_lines != lines:
            yield self.dispatch("dispatch_few", few_lines)

    def dispatch(self, role: str, lines: Sequence[int]) -> str:
        leaving, holding = self.shuffle.leaving, self.sizes.holding_warps
        sources = {f"source_{i}": f"source.{field.name}" for i, field in enumerate(leaving)}
        places = {f"rows_at_{i}": f"rows_at.{field.name}" for i, field in enumerate(leaving)}
        given = {
            "ticket": None,
            "begun": None if self.shuffle.apart else 0,
            "source_fields": as_tuple(list(sources)),
            "source_bytes": "source_bytes" if holding else 0,
            "rows_at": as_tuple(list(places)),
            "rows": as_tuple(self.rows()),
            "steps": self.steps,
            "num_loops": self.num_loops,
            "lines_at_once": as_tuple([str(each) for each in lines]),
            "item_lines": self.sizes.item_lines,
            "apart": self.shuffle.apart,
            "fixed": not self.op.looks_up(),
            "holds": holding is not None,
        }
        begun = {"begun": "begun"} if self.shuffle.apart else {}
        nbytes = {"source_bytes": "source_bytes"} if holding else {}
        parameters = {"ticket": "ticket", **begun, **sources, **nbytes, **places}
        warps = holding or self.sizes.copy_warps
        return self.kernel(role, "move.dispatch", parameters, given, warps)

    def combine(self, role: str, *lent: str) -> str:
        """The kernel that brings results back; ``lent``: what says where one lies that may be, to
        programs of few SMs."""
        names, field = ("ticket", "rows_ticket"), self.sizes.fields[0]
        given: dict[str, object] = {
            **dict.fromkeys((*names, "rows", "result", "result_bytes")),
            "sizes": self.rows()[0],
            "steps": self.steps,
            "lines_at_once": field.few_lines if lent else field.lines,
            "item_lines": self.sizes.item_lines,
            "disjoint": bool(self.op.read("disjoint")),
            "fixed": not self.op.looks_up(),
        }
        given |= {name: name for name in lent} | ({"may_lend": True} if lent else {})
        parameters = {name: name for name in (*names, *lent)}
        parameters |= self.of_field("rows", "result", "result_bytes")
        return self.kernel(role, "give_back.combine", parameters, given, self.sizes.copy_warps)

    def of_field(self, *names: str) -> dict[str, str]:
        """Parameters of the one field that comes back."""
        return {name: f"{name}.{self.shuffle.leaving[0].name}" for name in names}

    def kernel(
        self,
        role: str,
        function: str,
        parameters: Mapping[str, str],
        given: Mapping[str, object],
        warps: int,
        before: Sequence[str] = (),
    ) -> str:
        """A kernel that hands a device function what it is ``given``, None: a parameter."""
        full, every = f"{self.shuffle.name}_node_{role}", {"call": "call", **parameters}
        self.kernels[role] = NodeKernel(full, every, warps)
        body = [*before, called(function, given)]
        return print_kernel(full, every, self.pointers, body, self.words.get(role, ()))


def called(function: str, given: Mapping[str, object]) -> str:
    """A call of a device function that is ``given`` this, None: a variable of that name."""
    arguments = ["call", *(k if v is None else f"{k}={v}" for k, v in given.items())]
    return f"{function}({', '.join(arguments)})"


def line_parts(field: CudaField, word_bytes: int) -> int:
    """Lines of a range at most, for 16 bytes of it."""
    return 1 if word_bytes == LINE_BYTES else 1 + -(-2 * LINE_BYTES // run_bytes(field))


def _names(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
