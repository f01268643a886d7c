"""The node-local engine where slots follow from pieces: CUDA kernels that compute addresses.

A rank keeps boxes, a few numbers for every piece and field, instead of a code for every point, and
results come back by staging memory that is as large as what it sends
(kernels/include/piece_boxes_back.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.results import FEW_SMS, LENT_BYTES, ResultMemory
from fuscoc_runtime.comm.windows import result_memory
from fuscoc_runtime.engine.node.call import MAX_INPUTS
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.program import MAX_STAGED_PLANS, NodeProgram
from fuscoc_runtime.engine.node.rings import Launched, RingEntry
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits, lay_out
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.kernels.cuda import CudaKernel
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.manifest.schema import PiecesSpec
from fuscoc_runtime.room import LEAST

MAX_RAGGED_ENTRIES = 16384
"""Of outer indices with sizes of their own, for whose boxes there is memory."""

LINE, ITEM_LINES = 16, 256
MOST_LINES = 2**31
"""Those of kernels/include/boxes.cuh: bytes of a line, the fewest lines of an item, and the most
of a rank."""

KEPT_BOXES, KEPT_BYTES = 3, 4096
"""What of a piece is kept for the next call (kernels/include/kept.cuh): boxes beside those of its
fields, and bytes of all else at most."""

PART_BYTES = 8192
"""Of a result that are cleared at once: `kPart` of kernels/include/piece_boxes_back.cuh."""

CTA_BYTES = 32 << 10
"""Bytes of a small call for every CTA: more CTAs take longer to start and to meet."""

FEW_CTAS, SMALL_CALL = 24, 8 << 20
"""Fewer CTAs move less than NVLink carries, and have kernels of their own for more than a small
call, of so many bytes; from so many on, one does without an SM while another one plans."""

PLAN_THREADS, KEPT_ENTRIES = 512, 8
"""Threads of a CTA that look at an entry each, where kernels keep no boxes; or at so many, where
words are kept: then few CTAs have to go before those that copy come."""

BOX_PADDING = 512
"""Bytes of staging memory for every box and rank, beside the rows."""


def most_entries(pieces: PiecesSpec, limits: Limits, fanout: int, *, is_ragged: bool) -> int:
    """For whose boxes there is memory. What inputs say may be of every point, if not of
    ``entry_points``, and a segment has ``fanout`` of these."""
    if not pieces.outer:
        return 1
    most = max(limits.max_sources, 1)
    if is_ragged:
        return min(most, MAX_RAGGED_ENTRIES)
    return -(-most * fanout // max(pieces.entry_points, 1))


def has_few_sms(num_sms: int) -> bool:
    """Whether so many SMs are so few that kernels for these are better, 0: all of them."""
    return 0 < num_sms < FEW_SMS


def lends_results(num_sms: int, num_bytes: int) -> bool:
    """Whether ranks lend each other results of so many bytes on so many SMs, 0: all of them."""
    return has_few_sms(num_sms) and num_bytes >= LENT_BYTES


class PiecesNode(CudaNode):
    """A shuffle with `NodeProgram.pieces` among the ranks of one NVLink node."""

    max_entries: int
    results: ResultMemory | None = None
    zeroes_results = False
    _plan_clears = True
    _of_handles = frozenset({"barrier", "refused", "boxes", "boxes_lent", "marks", "told"})
    _num_codes = 0
    _arrived_at = 0

    def __init__(
        self,
        program: NodeProgram,
        limits: Limits,
        node_group: dist.ProcessGroup | None,
        device: torch.device,
        schedule: Schedule | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """As of `CudaNode`.

        Raises:
            OptionError: segments of a rank have more lines than kernels can count.
        """
        assert program.pieces is not None
        self.program, self.pieces = program, program.pieces
        dtype, elems = program.fields[0]
        bytes_sent = limits.max_sources * program.fanout * dtype.itemsize * elems
        num_lines = bytes_sent // LINE * self.pieces.line_parts
        if num_lines >= MOST_LINES:
            problem = (
                f"is {limits.max_sources}; kernels count {MOST_LINES:,} pieces of {LINE} bytes"
            )
            raise OptionError("max_sources", f"{problem}, and these are {num_lines:,}")
        self.max_entries = most = most_entries(
            self.pieces, limits, program.fanout, is_ragged=program.ragged
        )
        self.max_boxes = most * self.pieces.per_entry
        num_cells = self.max_boxes * LEAST
        comes_back = f"{program.name}_combine" in program.launches
        # Ranges that are no whole lines have up to 15 bytes in between, fewer than their lines.
        room = bytes_sent * self.pieces.line_parts + num_cells * BOX_PADDING
        flags = num_lines // ITEM_LINES + num_cells + 1
        if self.pieces.entry_points:  # results lie as they will, and no group is without an entry
            room, flags = most * self.pieces.entry_points * dtype.itemsize * elems, num_cells
        self._staging_bytes, self._max_flags = comes_back * room, comes_back * flags
        self._covers = comes_back and not self.pieces.entry_points
        num_sms = 0 if schedule is None else schedule.num_sms
        self._lends = self._covers and lends_results(num_sms, bytes_sent)
        super().__init__(program, limits, node_group, device, schedule, tracer)
        if self._lends and node_group is not None and self._call.num_ranks > 1:
            self.results = result_memory(bytes_sent, node_group, device)
        if self.results is not None:
            sections, _ = self._sections(self._call.num_ranks)
            self._arrived_at = sections["arrived"][0]
            self._call.lent_at = sections["lent"][0]
            self._call.results[: self._call.num_ranks] = self.results.bases

    def configure(self, schedule: Schedule) -> None:
        super().configure(schedule)
        self._call.send_ctas = self._ctas  # all that copy

    def _sections(self, num_ranks: int) -> tuple[dict[str, list[int]], int]:
        limits, num_boxes = self.limits, num_ranks * self.max_boxes
        num_lent = num_boxes if self._lends and num_ranks > 1 else 0
        box_bytes = 0 if self.pieces.entry_points else self.pieces.box_bytes
        sizes = {
            "ready": [num_ranks * MAX_STAGED_PLANS * 8],
            "counts": [2 * num_ranks * (self.program.num_columns + 1) * 8],
            "dispatch_flags": [num_ranks * limits.max_sources * 4],
            "combine_flags": [self._max_flags * 8],
            "barrier": [num_ranks * 8] * limits.num_entries,
            "refused": [num_ranks * 8] * limits.num_entries,
            "boxes": [num_boxes * box_bytes] * limits.num_entries,
            "marks": [num_boxes * self.pieces.mark_bytes] * limits.num_entries,
            "boxes_lent": [num_lent * box_bytes] * limits.num_entries,
            "told": [num_ranks * 8] * limits.num_entries,
            "arrived": [num_ranks * 8],
            "lent": [num_ranks * 8],
            "staging": [self._staging_bytes],
            "staged": [0] * len(self._row_bytes),
            "rows": [limits.capacity * size for size in self._row_bytes],
        }
        return lay_out(sizes)

    def _make_tables(self, device: torch.device) -> dict[str, list[torch.Tensor]]:
        num_fields = len(self.program.fields)
        box_words = self.pieces.box_bytes // 8 * self.max_boxes
        of_handle = {
            "boxes_back": box_words,
            "num_boxes": 1,
            "moved": 2 + LEAST,
            "made_of": MAX_INPUTS + LEAST + 1 + LEAST,
            "filled": self.limits.capacity // 64 + 1,
        }
        for_all = dict.fromkeys(
            ("points_before", "cells_before"), self.max_entries * self.program.ragged
        )
        # Without entries they are kept while they are right, by each handle its own.
        made_anew = bool(self.pieces.outer)
        if not self.pieces.entry_points:
            (for_all if made_anew else of_handle)["boxes_forth"] = box_words * num_fields
            boxes = (num_fields + KEPT_BOXES) * self.pieces.box_bytes
            for_all["kept"] = self.pieces.per_entry * (boxes + KEPT_BYTES) // 8
        if self.program.apart_elems:
            for_all["cell_marks"] = self.max_boxes * self.pieces.mark_bytes // 8
        made = {
            name: [
                torch.zeros(size, dtype=torch.int64, device=device)
                for _ in range(self.limits.num_entries)
            ]
            for name, size in of_handle.items()
        }
        return made | {
            name: [torch.zeros(size, dtype=torch.int64, device=device)]
            for name, size in for_all.items()
        }

    @property
    def _constants(self) -> dict[str, int]:
        return {
            "max_entries": self.max_entries,
            "max_boxes": self.max_boxes,
            "staging_bytes": self._staging_bytes,
            "max_flags": self._max_flags,
        }

    def _of_handle(
        self, entry: RingEntry, source: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        filled = self._tables["filled"][entry.index].view(torch.int32)
        found = {"filled_bits": filled, "moved": self._tables["moved"][entry.index]}
        if self._covers:
            words = 1 + source[0].nbytes // (PART_BYTES * 32) + 1
            found["covered"] = torch.empty(words, dtype=torch.int32, device=source[0].device)
        return found

    def _bind_source(self, source: Sequence[torch.Tensor]) -> None:
        super()._bind_source(source)
        self._call.result_bytes = source[0].nbytes

    def _bind_points(self, handle: Launched) -> None:
        super()._bind_points(handle)
        if handle.covered is not None:
            self._call.covered = handle.covered.data_ptr()

    def _bind(self, entry: RingEntry) -> None:
        """What a graph writes to has to be its own: calls with captured handles lend nothing."""
        super()._bind(entry)
        self._call.arrived_at = 0 if entry.captured else self._arrived_at

    def _kernels_back(self, kernel: CudaKernel, result: torch.Tensor | None) -> list[CudaKernel]:
        """The first one brings it back if all ranks lend their results, else the other."""
        if self.results is None or self._lend is None or not self._call.arrived_at:
            return [kernel]
        self._call.result_at = -1 if result is None else self.results.offset(result)
        return [self._lend, kernel]

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address."""
        return super().window_bytes + (0 if self.results is None else self.results.num_bytes)

    def _num_copy_ctas(self, num_rows: int) -> int:
        """An even number: they come in pairs."""
        return min(self._ctas, max(2, 2 * -(-self._num_bytes(num_rows) // (2 * CTA_BYTES))))

    def _num_bytes(self, num_rows: int) -> int:
        return num_rows * self.program.fanout * sum(self._row_bytes)

    @property
    def _leaves_plan_sms(self) -> bool:
        """A CTA that plans takes one of many."""
        return not self.pieces.entry_points and FEW_CTAS < self._ctas < self.num_sms

    def _of_few(self, kernel: CudaKernel, num_ctas: int, num_rows: int) -> CudaKernel:
        """A kernel with more shared memory than the one before waits until all of that has ended,
        which is long for a small call."""
        if num_ctas >= FEW_CTAS or kernel not in self._few:
            return kernel
        of_few, is_small = self._few[kernel], self._num_bytes(num_rows) <= SMALL_CALL
        return kernel if is_small and of_few.shared_bytes > kernel.shared_bytes else of_few

    def _num_plan_ctas(self, num_sources: int) -> int:
        each = 1 if self.program.looks_up else KEPT_ENTRIES
        points = self.pieces.entry_points * PLAN_THREADS * each
        return -(-num_sources * self.program.fanout // points) or 1 if points else 1
