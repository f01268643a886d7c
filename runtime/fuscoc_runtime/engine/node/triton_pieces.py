"""The Triton kernels of one node where slots follow from pieces: what they keep.

A dispatch is three launches, a combine two; there is nothing of the size of a point.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node.pieces import BOX_PADDING, LINE, MAX_RAGGED_ENTRIES, MOST_LINES
from fuscoc_runtime.engine.node.ragged import MAX_PROGRAMS, EntrySizes, RaggedSizes
from fuscoc_runtime.engine.node.rings import ROUTING_WORDS, Launched
from fuscoc_runtime.engine.node.state import MAX_RANKS, Limits, lay_out
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, PiecesSpec, ShuffleSpec


class TritonPiecesNode(TritonNode):
    """A shuffle with `NodeSpec.pieces` among the ranks of one node; collective.

    Raises:
        OptionError: segments of a rank have more lines than kernels can count.
    """

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
        self._pieces: PiecesSpec = node.pieces
        per_entry = node.pieces.per_entry
        self.max_entries = most = _most_entries(shuffle, node.pieces, limits)
        self._max_boxes = most * per_entry
        field = shuffle.program.buffers["target"][0]
        row_bytes = TORCH_DTYPES[field.dtype].itemsize * field.num_elems
        bytes_sent = limits.max_sources * shuffle.program.fanout * row_bytes
        num_lines = bytes_sent // LINE * node.pieces.line_parts
        if num_lines >= MOST_LINES:
            problem = (
                f"is {limits.max_sources}; kernels count {MOST_LINES:,} pieces of {LINE} bytes"
            )
            raise OptionError("max_sources", f"{problem}, and these are {num_lines:,}")
        num_cells = self._max_boxes * MAX_RANKS
        comes_back = "combine" in node.kernels
        # Ranges that are no whole lines have up to 15 bytes in between, fewer than their lines.
        room = bytes_sent * node.pieces.line_parts + num_cells * BOX_PADDING
        self._staging_bytes = comes_back * room
        self._max_flags = comes_back * (num_lines // node.tile["item_lines"] + num_cells + 1)
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
        none = self._empty(torch.int32, 0)
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
        values = self._values(handle) | self._given(inputs, extents) | {"num_slots": num_slots}
        values["num_cells"] = ragged.num_cells if isinstance(ragged, EntrySizes) else -1
        self._kernels["meet"].launch(values, 1)
        self._kernels["place"].launch(values, self._plan_programs)
        leaving = self.shuffle.program.buffers["source"]
        for field, tensor in zip(leaving, source, strict=True):
            values[f"source.{field.name}"] = address(tensor)
        for field, at in zip(self._fields, self._sections["rows"], strict=True):
            values[f"rows_at.{field.name}"] = at
        self._kernels["dispatch"].launch(values, self._programs.dispatch)
        return handle

    def combine(
        self,
        rows: Sequence[torch.Tensor],
        handle: Launched,
        results: Sequence[torch.Tensor],
        rows_ticket: int = 0,
    ) -> Sequence[torch.Tensor]:
        """As `TritonNode.combine`, of one field; cells of no segment become 0."""
        (field,), (result,) = self.shuffle.program.buffers["source"], results
        values = {f"result.{field.name}": address(result)}
        values |= {"call": self._values(handle)["call"]}
        values[f"result_bytes.{field.name}"] = result.nbytes
        self._kernels["clear"].launch(values, self._programs.combine)
        return super().combine(rows, handle, results, rows_ticket)

    @property
    def _plan_programs(self) -> int:
        """Of `place`: each makes one kind of what an entry's piece has, or several in turn."""
        kinds = 1 + len(self._fields) + ("combine" in self._kernels)
        return 1 if self._interpreted else min(self._max_boxes * kinds, MAX_PROGRAMS)

    def _lay_out(self) -> tuple[dict[str, list[int]], int]:
        limits, ranks, pieces = self.limits, self._num_ranks, self._pieces
        num_boxes, handles = ranks * self._max_boxes, limits.num_entries
        comes_back = "combine" in self._kernels
        return lay_out(
            {
                "counts": [2 * ranks * (self._columns + 1) * 4],
                "plan_flags": [ranks * self._plan_blocks * 4],
                "told_flags": [ranks * 4],
                "dispatch_flags": [ranks * limits.max_sources * 4],
                "combine_flags": [self._max_flags * 8],
                "barrier": [ranks * 8] * handles,
                "refused": [ranks * 8] * handles,
                "boxes": [num_boxes * pieces.box_bytes * comes_back] * handles,
                "before": [ranks * (self._max_boxes + 1) * 8 * comes_back] * handles,
                "marks": [num_boxes * pieces.mark_bytes] * handles,
                "told": [ranks * 8] * handles,
                "staging": [self._staging_bytes],
                "rows": [self._num_rows * size for size in self._row_bytes],
            }
        )

    def _allocate_scratch(self) -> dict[str, torch.Tensor]:
        """What the planner alone needs, or hands to dispatch."""
        assert self.max_entries is not None
        num_boxes = self._max_boxes * len(self._fields)
        return {
            "boxes_forth": self._empty(torch.int64, num_boxes * self._pieces.box_bytes // 8),
            "forth_before": self._empty(torch.int64, num_boxes + 1),
            "points_before": self._empty(torch.int64, self.max_entries),
            "cells_before": self._empty(torch.int64, self.max_entries),
            "taken": self._empty(torch.int64, 4),
            "sent_items": self._empty(torch.int64, self._num_ranks * self._max_boxes),
        }

    def _allocate_segments(self) -> list[torch.Tensor]:
        return []

    def _allocate_buffers(self) -> dict[str, torch.Tensor]:
        box_words = self._pieces.box_bytes // 8 * self._max_boxes
        comes_back = "combine" in self._kernels
        return {
            "routing": self._empty(torch.int32, ROUTING_WORDS),
            "boxes_back": self._empty(torch.int64, box_words * comes_back),
            "back_before": self._empty(torch.int64, (self._max_boxes + 1) * comes_back),
            "num_boxes": self._empty(torch.int64, 1),
            "filled": self._empty(torch.int32, self.limits.capacity // 32 + 1),
            "moved": self._empty(torch.int64, 2 + MAX_RANKS),
        }

    def _named_words(self, index: int) -> dict[str, int]:
        assert self.max_entries is not None
        return self._common_words(index) | {
            **{name: address(each) for name, each in self._scratch.items()},
            "max_entries": self.max_entries,
            "max_boxes": self._max_boxes,
            "staging_bytes": self._staging_bytes,
            "max_flags": self._max_flags,
        }


def _most_entries(shuffle: ShuffleSpec, pieces: PiecesSpec, limits: Limits) -> int:
    """For whose boxes there is memory."""
    if not pieces.outer:
        return 1
    most = max(limits.max_sources, 1)
    is_ragged = shuffle.program.relation.extents_kernel is not None
    return min(most, MAX_RAGGED_ENTRIES) if is_ragged else most


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
