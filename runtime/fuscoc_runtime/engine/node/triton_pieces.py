"""The Triton kernels of one node where slots follow from pieces: what they keep.

A dispatch is two launches, a combine one; there is nothing of the size of a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.results import ResultMemory
from fuscoc_runtime.comm.subgroups import node_group
from fuscoc_runtime.comm.windows import Allocate, result_memory
from fuscoc_runtime.engine.node.pieces import (
    BOX_PADDING,
    LINE,
    MOST_LINES,
    has_few_sms,
    lends_results,
    most_entries,
)
from fuscoc_runtime.engine.node.ragged import MAX_PROGRAMS, EntrySizes, RaggedSizes
from fuscoc_runtime.engine.node.rings import Launched, ring_size
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.state import Limits, lay_out
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.node.triton_memory import TritonMemory
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.kernels.commands import Command, Launch
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, PiecesSpec, ShuffleSpec
from fuscoc_runtime.room import num_routing_words, room_for

MAX_CHAINING = 4096
"""Programs that plan groups of entries: none waits for another but the first."""
FEW_AN_SM, FEW_HOLDING = 2.5, 2
"""Programs of a small call: half of the SMs have room for another's, also while these wait. Of
those that hold an item meanwhile, of twice as many warps, no more than registers have room for."""
FEW_TURNS = 2
"""Items of a program, on average, up to which a call is held up by the begin of its programs. The
same number stands in kernels/device/move.py."""
PARTS = {"both": 0, "meets": 1, "places": 2, "leads": 3}
"""What a launch of `plan` does: see kernels/device/pieces.py."""
SHARE = 1 << 14
"""Bytes of a result that a program clears at once, as in kernels/device/give_back.py."""


@dataclass(frozen=True)
class Room:
    """What a window of pieces has room for: boxes of a rank, bytes that come back, their flags, and
    whether boxes of results that are lent."""

    max_boxes: int
    staging_bytes: int
    max_flags: int
    lends: bool


class PiecesMemory(TritonMemory):
    """A window where slots follow from pieces: nothing in it is of the size of a point."""

    def __init__(
        self,
        program: TritonProgram,
        pieces: PiecesSpec,
        limits: Limits,
        allocate: Allocate,
        room: Room,
    ) -> None:
        self._pieces, self._room = pieces, room
        super().__init__(program, limits, allocate, limits.num_entries)

    def _lay_out(self, num_entries: int) -> tuple[dict[str, list[int]], int]:
        program, pieces, room = self._program, self._pieces, self._room
        ranks, most = program.num_ranks, room.max_boxes
        num_boxes, comes_back = ranks * most, program.combines
        box_bytes = num_boxes * pieces.box_bytes * comes_back
        return lay_out(
            {
                "counts": [2 * ranks * (program.num_columns + 1) * 4],
                "plan_flags": [ranks * program.plan_blocks * 4],
                "notes": [ranks * 4],
                "told_flags": [ranks * 4],
                "dispatch_flags": [ranks * self.limits.max_sources * 4],
                "combine_flags": [room.max_flags * 8],
                "barrier": [ranks * 8] * num_entries,
                "refused": [ranks * 8] * num_entries,
                "boxes": [box_bytes] * num_entries,
                "boxes_lent": [box_bytes * room.lends] * num_entries,
                "lent": [ranks * 8 * room.lends] * num_entries,
                "arrived": [ranks * 8 * room.lends],
                "before": [ranks * (most + 1) * 8 * comes_back] * num_entries,
                "marks": [num_boxes * pieces.mark_bytes] * num_entries,
                "told": [ranks * 8] * num_entries,
                "staging": [room.staging_bytes],
                "rows": [self._num_rows * size for size in program.row_bytes],
            }
        )


class TritonPiecesNode(TritonNode):
    """A shuffle with `NodeSpec.pieces` among the ranks of one node; collective.

    Raises:
        OptionError: segments of a rank have more lines than kernels can count.
    """

    results: ResultMemory | None = None
    _combine_an_sm = 6

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        limits: Limits,
        num_sms: int | None,
    ) -> None:
        assert node.pieces is not None
        self._tile = node.tile
        self._pieces: PiecesSpec = node.pieces
        per_entry = node.pieces.per_entry
        self.max_entries = most = most_entries(
            node.pieces,
            limits,
            shuffle.program.fanout,
            is_ragged=shuffle.program.relation.extents_kernel is not None,
        )
        self._max_boxes = most * per_entry
        self._num_fields = len(shuffle.program.buffers["target"])
        field = shuffle.program.buffers["target"][0]
        bytes_sent = limits.max_sources * shuffle.program.fanout * field.num_bytes
        num_lines = bytes_sent // LINE * node.pieces.line_parts
        if num_lines >= MOST_LINES:
            problem = (
                f"is {limits.max_sources}; kernels count {MOST_LINES:,} pieces of {LINE} bytes"
            )
            raise OptionError("max_sources", f"{problem}, and these are {num_lines:,}")
        num_cells = self._max_boxes * room_for(members.topology.ranks_per_node)
        comes_back = node.combines
        # Ranges that are no whole lines have up to 15 bytes in between, fewer than their lines.
        room = bytes_sent * node.pieces.line_parts + num_cells * BOX_PADDING
        self._staging_bytes = comes_back * room
        self._max_flags = comes_back * (num_lines // node.tile["item_lines"] + num_cells + 1)
        self._members, self._result_bytes = members, bytes_sent
        is_shared = members.topology.ranks_per_node > 1
        self._lends = comes_back and is_shared and lends_results(num_sms or 0, bytes_sent)
        self._has_few_sms = has_few_sms(num_sms or 0)
        super().__init__(artifact, shuffle, node, members, limits, num_sms)
        self.zeroes_results = False

    def dispatch(
        self,
        source: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: torch.Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | EntrySizes | None = None,
    ) -> Launched:
        """As `TritonNode.dispatch`; kernels evaluate ``ragged`` sizes by themselves."""
        entry = self._next_entry()
        buffers = self._buffers[entry.index]
        none = self._zeros(torch.int32, 0)
        handle = Launched(
            entry,
            num_sources,
            codes=none.view(0, self.shuffle.program.fanout),
            key_counts=none,
            key_starts=none,
            routing=buffers["routing"],
            weights=weights,
            num_slots=num_slots,
            ragged=ragged,
            filled_bits=buffers["filled"],
            moved=buffers["moved"],
        )
        values = {
            **self._lasting[entry.index],
            **self._values(handle),
            **self._program.given(inputs, extents),
            **self._program.fields_left(source),
            "num_slots": num_slots,
            "source_bytes": source[0].nbytes,
            "num_cells": ragged.num_cells if isinstance(ragged, EntrySizes) else -1,
        }
        begun = self._program.bits_of_cells(source)
        if begun is not None:
            values["begun"] = address(begun)
        needed = self._num_items(num_sources)
        values["programs"] = self._few(needed, self._programs.dispatch, self._few_forth)
        most = self._few_forth * self._programs.sms if self._may_wait else 0
        part = None  # boxes that inputs say take the planner longer
        if not self._pieces.outer:
            part = planning_of(needed, values["programs"], most)
        commands = self._forth if part is None else self._beside[part]
        commands.submit(commands.numbers(values))
        return handle

    def _bring_back(
        self, values: dict[str, int], handle: Launched, results: Sequence[torch.Tensor]
    ) -> None:
        """What a graph writes to has to be its own: calls with captured handles lend nothing."""
        if self.results is None or handle.entry.captured:
            super()._bring_back(values, handle, results)
            return
        values["result_at"] = self.results.offset(results[0]) if results else -1
        self._back_lent.submit(self._back_lent.numbers(values))

    def _programs_back(self, num_sources: int, results: Sequence[torch.Tensor]) -> int:
        shares = max((-(-each.nbytes // SHARE) for each in results), default=0)
        needed = max(2 * self._num_items(num_sources), shares)
        return self._few(needed, self._programs.combine, FEW_AN_SM)

    def _num_items(self, num_sources: int) -> int:
        """Items that so many segments are copied in, where entries are not looked up."""
        points, parts = num_sources * self.shuffle.program.fanout, self._pieces.line_parts
        item_bytes = LINE * self._tile["item_lines"]
        of_fields = (-(-points * size * parts // item_bytes) for size in self._program.row_bytes)
        ends = self._pieces.per_entry * self._program.num_ranks * len(self._program.row_bytes)
        return sum(of_fields) + ends

    def _few(self, needed: int, most: int, an_sm: float) -> int:
        """Programs of a call, each with an item, if as many as that are few."""
        if self._interpreted or self._pieces.outer or needed > an_sm * self._programs.sms:
            return most
        return needed

    @property
    def _varied(self) -> list[str]:
        """No dispatch repeats another one's numbers."""
        return []

    def configure(self, programs: Programs) -> None:
        """As `TritonNode.configure`."""
        super().configure(programs)
        self._beside = {
            part: self._program.listed(self._commands_forth(part)) for part in ("both", "leads")
        }
        if self._lends:
            lending = [Launch(self._program.kernels["lend"], "programs")]
            self._back_lent = self._program.listed(lending)
        # Who has only some of the SMs has left the others to kernels that may not have to wait.
        whole = self._program.model(None).sms
        self._may_wait = programs.sms == whole and self._plan_programs <= whole
        holds = self._may_wait and "holding_warps" in self._tile
        self._few_forth = FEW_HOLDING if holds else FEW_AN_SM

    def _commands_forth(self, part: str | None = None) -> list[Command]:
        """A dispatch that is planned so; see `planning_of`."""
        plan, dispatch = self._program.kernels["plan"], self._program.kernels["dispatch"]
        if self._plan_programs > self._programs.sms:  # too many to wait for peers
            parts = {"meets": "one_program", "places": "plan_programs"}
            planning = [Launch(plan, number, {"part": name}) for name, number in parts.items()]
            return [*planning, Launch(dispatch, "programs")]
        plans = Launch(plan, "plan_programs", {"part": part or "both"})
        return [plans, Launch(dispatch, "programs", follows=part is not None)]

    def _lasting_numbers(self, index: int) -> dict[str, int]:
        return {
            **self._program.rows_there(self._memory.sections["rows"]),
            "plan_programs": self._plan_programs,
            "one_program": 1,
            **PARTS,
        }

    @property
    def _plan_programs(self) -> int:
        """That plan: each makes one kind of what an entry's piece has, or several in turn; or all
        of a group of entries that are alike."""
        if self._interpreted:
            return 1
        if group := self._tile.get("chained"):
            return min(-(-self._max_boxes // group), MAX_CHAINING)
        kinds = 1 + self._num_fields + self._program.combines
        return min(self._max_boxes * kinds, MAX_PROGRAMS)

    def _new_memory(self, allocate: Allocate) -> TritonMemory:
        room = Room(self._max_boxes, self._staging_bytes, self._max_flags, self._lends)
        memory = PiecesMemory(self._program, self._pieces, self.limits, allocate, room)
        if self._lends:
            group = node_group(self._members)
            self.results = result_memory(self._result_bytes, group, self._device)
        if self.results is not None:
            bases = [*self.results.bases]
            self._result_bases = torch.tensor(bases, dtype=torch.int64, device=self._device)
        return memory

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address."""
        return super().window_bytes + (0 if self.results is None else self.results.num_bytes)

    def _new_scratch(self) -> dict[str, torch.Tensor]:
        """What the planner alone needs, or hands to dispatch."""
        assert self.max_entries is not None
        sizes = {
            "points_before": self.max_entries,
            "cells_before": self.max_entries,
            "taken": 8,
            "sent_items": self._program.num_ranks * self._max_boxes,
        }
        if self.shuffle.program.relation.apart:
            sizes["cell_marks"] = self._max_boxes * self._pieces.mark_bytes // 8
        made = {name: self._zeros(torch.int64, size) for name, size in sizes.items()}
        return made | (self._boxes_forth(1) if self._pieces.outer else {})

    def _boxes_forth(self, halves: int) -> dict[str, torch.Tensor]:
        """What dispatch copies. Boxes of looked-up entries are made in every call, and many; the
        few others are a ring entry's own, which keeps them as long as they are right, and makes new
        ones beside them. What is said of them is as in kernels/device/made_boxes.py."""
        num_boxes = self._max_boxes * self._num_fields
        box_words = self._pieces.box_bytes // 8
        return {
            "boxes_forth": self._zeros(torch.int64, halves * num_boxes * box_words),
            "forth": self._zeros(torch.int64, 1 + halves * (num_boxes + 3)),
        }

    def _allocate_segments(self) -> list[torch.Tensor]:
        return []

    def _new_buffers(self, index: int) -> dict[str, torch.Tensor]:
        box_words = self._pieces.box_bytes // 8 * self._max_boxes
        comes_back = self._program.combines
        return {
            "routing": self._zeros(torch.int32, num_routing_words(self._program.room)),
            "boxes_back": self._zeros(torch.int64, box_words * comes_back),
            "back_before": self._zeros(torch.int64, (self._max_boxes + 1) * comes_back),
            "num_boxes": self._zeros(torch.int64, 1),
            "filled": self._zeros(torch.int32, self.limits.capacity // 32 + 1),
            "moved": self._zeros(torch.int64, 2 + self._program.room),
            "made_of": self._zeros(torch.int64, self._num_made_of),
            **({} if self._pieces.outer else self._boxes_forth(2)),
        }

    @property
    def _num_made_of(self) -> int:
        """Whether fixed boxes are whole; slots of every rank; extents, the rank, ranks."""
        return 1 + self._program.room + len(self.shuffle.program.extents) + 2

    def _zeros(self, dtype: torch.dtype, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=self._device)

    def _words(self, index: int) -> dict[str, int]:
        assert self.max_entries is not None
        lent = {"boxes_lent_at": 0}
        if self.results is not None and index < ring_size(self.limits.num_handles):
            lent = {"results": address(self._result_bases)}  # others are of captured handles
        return {
            **lent,
            **{name: address(each) for name, each in self._scratch.items()},
            **{name: address(each) for name, each in self._buffers[index].items()},
            "max_entries": self.max_entries,
            "max_boxes": self._max_boxes,
            "staging_bytes": self._staging_bytes,
            "max_flags": self._max_flags,
        }


def planning_of(needed: int, programs: int, most: float) -> str | None:
    """What a planner does that what copies so many items comes beside: at once, if it ``leads`` and
    these programs are no more than ``most`` that may wait for peers, or, if it does ``both``, when
    it waits for none any more; None: when it has ended, as calls of many items are not held up."""
    if needed > FEW_TURNS * programs:
        return None
    return "leads" if programs <= most else "both"


def triton_node(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    node: NodeSpec,
    members: Membership,
    limits: Limits,
    num_sms: int | None,
) -> TritonNode:
    """The Triton kernels of one node, from an artifact; collective over ``members``."""
    kind = TritonNode if node.pieces is None else TritonPiecesNode
    return kind(artifact, shuffle, node, members, limits, num_sms)
