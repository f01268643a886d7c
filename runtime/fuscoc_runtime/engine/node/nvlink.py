"""The node-local engine: dispatch and combine by persistent CUDA kernels over NVLink.

A rank's window in symmetric memory holds everything peers write: counts, flags, slot codes, the
rows of the target and the partial rows of combine. Which call a flag belongs to is told by epochs
that live on the device, so nothing is ever cleared, no call synchronises the host, and a captured
CUDA graph can be replayed. Rows of the target stay valid until the next dispatch, a handle until
``num_handles`` later ones that were captured as it was, or were not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.windows import node_allocator
from fuscoc_runtime.engine.node.call import Call
from fuscoc_runtime.engine.node.program import MAX_STAGED_PLANS, NodeProgram
from fuscoc_runtime.engine.node.ragged import EntrySizes, RaggedSizes
from fuscoc_runtime.engine.node.rings import HandleRings, Launched, RingEntry
from fuscoc_runtime.engine.node.schedule import Schedule, model_schedule, num_early
from fuscoc_runtime.engine.node.state import (
    Limits,
    bits_of_cells,
    lay_out,
    new_state,
    view_points,
)
from fuscoc_runtime.kernels.cuda import (
    CudaKernel,
    cubin,
    kernels_arch,
    kernels_capability,
    load_kernels,
    set_words,
)
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.kernels.traced import traced_cuda
from fuscoc_runtime.room import LEAST, num_routing_words, num_slot_bits


class CudaNode:
    """A shuffle among the ranks of one NVLink node (``node_group``); construction is collective.

    Without a group, of one rank.
    """

    max_entries: int | None = None
    rails: Rails | None = None
    is_out_of_step = False
    _begun: torch.Tensor | None = None  # what kernels mark, until they are launched
    _plan_clears = False  # whether they clear it before

    @property
    def zeroes_results(self) -> bool:
        """Whether combine needs a result that is 0: segments may leave cells of it alone."""
        return self.program.places_results

    _of_handles = frozenset({"points", "row_index", "claims", "barrier", "refused"})

    def __init__(
        self,
        program: NodeProgram,
        limits: Limits,
        node_group: dist.ProcessGroup | None,
        device: torch.device,
        schedule: Schedule | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.program, self.limits = program, limits
        rank, num_ranks = 0, 1
        if node_group is not None:
            rank, num_ranks = dist.get_rank(node_group), dist.get_world_size(node_group)
        if num_ranks > LEAST:
            raise ValueError(f"{num_ranks} ranks in a node, more than {LEAST}")
        if limits.capacity >> (bits := num_slot_bits(LEAST)):
            raise ValueError(f"a capacity of {limits.capacity} is beyond {(1 << bits) - 1}")
        properties = torch.cuda.get_device_properties(device)
        self.num_sms = properties.multi_processor_count
        capability = (properties.major, properties.minor)
        # Clusters, and kernels that start before the one in front of them has ended.
        self._is_hopper = kernels_capability(capability) >= (9, 0)
        arch = kernels_arch(capability)
        code = program.cubins.get(arch) or cubin(program.text, arch)
        kernels = traced_cuda(load_kernels(code, program.launches), tracer)
        self._plan = kernels.get(f"{program.name}_plan")
        self._dispatch = kernels[f"{program.name}_dispatch"]
        self._staged = kernels.get(f"{program.name}_staged")
        self._refuse = kernels[f"{program.name}_refuse"]
        combines = [f"{program.name}_combine"]
        combines += [f"{combines[0]}_{number}" for number in range(1, len(program.summed))]
        self._combines = [kernels[name] for name in combines if name in kernels]
        self._lend = kernels.get(f"{program.name}_lend")
        self._few = {  # what few CTAs run instead
            kernels[name.removesuffix("_few")]: kernel
            for name, kernel in kernels.items()
            if name.endswith("_few")
        }
        few = program.num_tiles(limits.max_sources) <= MAX_STAGED_PLANS
        self._is_staged = few and self._staged is not None

        self._row_bytes = [dtype.itemsize * elems for dtype, elems in program.fields]
        # Partial sums of f16 travel as f32: they could overflow where the whole sum does not.
        # Fields come back one after the other.
        self._partial_bytes = max(
            elems * (4 if dtype == torch.float16 else dtype.itemsize)
            for dtype, elems in program.summed
        )
        self._staged_sources = self._num_staged(num_ranks)
        sections, nbytes = self._sections(num_ranks)
        self._window = node_allocator(node_group, device)(nbytes)
        self.state, self.page = new_state(LEAST, device)
        self._cta_counts = torch.zeros(
            self.num_sms * program.num_columns, dtype=torch.int64, device=device
        )
        num_rows = limits.row_capacity(num_ranks, program.compact)
        self.rows = tuple(
            self._window.local[at : at + num_rows * size].view(dtype).view(-1, elems)
            for at, size, (dtype, elems) in zip(
                sections["rows"], self._row_bytes, program.fields, strict=True
            )
        )
        self.rings = HandleRings(limits.num_handles)
        # What a window has once for every memory of a handle.
        self._sections_at = {name: at for name, at in sections.items() if name in self._of_handles}
        self._handles = [
            (
                torch.full((self._num_codes, program.fanout), -1, dtype=torch.int32, device=device),
                torch.zeros(program.num_keys, dtype=torch.int32, device=device),
                torch.zeros(program.num_keys, dtype=torch.int32, device=device),
                torch.zeros(num_routing_words(LEAST), dtype=torch.int32, device=device),
            )
            for _ in range(limits.num_entries)
        ]
        self._tables = self._make_tables(device)
        self._call = Call(
            ready_at=sections["ready"][0],
            counts_at=sections["counts"][0],
            dispatch_flags_at=sections["dispatch_flags"][0],
            combine_flags_at=sections["combine_flags"][0],
            staging_at=sections["staging"][0],
            state=self.state.data_ptr(),
            page=self.page.data_ptr(),
            cta_counts=self._cta_counts.data_ptr(),
            max_sources=limits.max_sources,
            staged_sources=self._staged_sources,
            capacity=limits.capacity,
            rank=rank,
            num_ranks=num_ranks,
            columns=program.num_columns,
        )
        self._call.window[:num_ranks] = self._window.peer_bases.tolist()
        for name, value in self._constants.items():
            setattr(self._call, name, value)
        for position, at in enumerate(sections["rows"]):
            self._call.rows_at[position] = at
        for position, at in enumerate(sections["staged"]):
            self._call.staged_at[position] = at
        self.configure(schedule or Schedule())
        if node_group is not None:
            dist.barrier(node_group)

    def _sections(self, num_ranks: int) -> tuple[dict[str, list[int]], int]:
        """Offsets of the parts of a window, and its bytes."""
        program, limits = self.program, self.limits
        sources = num_ranks * limits.max_sources
        sizes = {
            "ready": [num_ranks * MAX_STAGED_PLANS * 8],
            "counts": [2 * num_ranks * (program.num_columns + 1) * 8],
            "dispatch_flags": [sources * 4],
            "combine_flags": [sources * 8],
            "barrier": [num_ranks * 8] * limits.num_entries,
            "refused": [num_ranks * 8] * limits.num_entries,
            "points": [sources * program.fanout * 8] * limits.num_entries,
            "staging": [sources * self._partial_bytes if self._combines else 0],
            "staged": [2 * num_ranks * self._staged_sources * size for size in self._row_bytes],
            "row_index": [limits.capacity * 8 * program.compact] * limits.num_entries,
            "claims": [limits.capacity * 4 * program.given_slots] * limits.num_entries,
            "rows": [
                limits.row_capacity(num_ranks, program.compact) * size for size in self._row_bytes
            ],
        }
        return lay_out(sizes)

    @property
    def _num_codes(self) -> int:
        """Segments of a rank whose points have codes."""
        return self.limits.max_sources

    def _make_tables(self, device: torch.device) -> dict[str, list[torch.Tensor]]:
        """Memory of this rank alone, by the name that a call has for it: once for every memory of a
        handle, or once for all."""
        program, limits = self.program, self.limits
        num_words = limits.max_sources * (1 + program.num_strides) * program.places_results
        num_points = limits.max_sources * program.fanout * program.compact
        num_keyed = limits.max_sources * program.sorts
        num_moved = num_keyed * program.scatters
        return {
            "places": [
                torch.empty(num_words, dtype=torch.int64, device=device)
                for _ in range(limits.num_entries)
            ],
            "point_rows": [torch.empty(num_points, dtype=torch.int32, device=device)],
            "keys": [torch.empty(num_keyed, dtype=torch.uint8, device=device)],
            "slots": [torch.empty(num_moved, dtype=torch.int32, device=device)],
        }

    @property
    def _constants(self) -> dict[str, int]:
        """What else is the same in all calls."""
        return {}

    def _num_staged(self, num_ranks: int) -> int:
        """Segments of a rank that are sent before their slots are known: all of them, or those that
        keep NVLink busy while the plan is made."""
        program, most = self.program, self.limits.max_sources
        if self._is_staged:
            return most
        waits = program.compact or program.places_results or program.scatters or program.sorts
        if num_ranks == 1 or waits or not self._is_hopper:
            return 0
        return min(most, num_early(num_ranks, program.fanout, sum(self._row_bytes)))

    def configure(self, schedule: Schedule) -> None:
        """Use ``schedule`` from the next call on; every rank must set the same groups."""
        program, call = self.program, self._call
        warps = program.launches[f"{program.name}_dispatch"][0] // 32
        self._ctas = min(schedule.num_sms or self.num_sms, self.num_sms)
        model = model_schedule(
            self._ctas,
            warps,
            program.teams,
            call.num_ranks,
            program.fanout,
            sum(self._row_bytes),
        )
        largest = 32 // program.fanout  # a warp looks at a whole group, a lane a point
        call.send_ctas = schedule.send_ctas or model.send_ctas
        call.send_warps = schedule.send_warps or model.send_warps
        call.reduce_teams = min(schedule.reduce_teams or model.reduce_teams, program.teams)
        call.dispatch_group = min(schedule.dispatch_group or model.dispatch_group, largest)
        call.combine_group = min(schedule.combine_group or model.combine_group, largest)

    def dispatch(
        self,
        source: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: torch.Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | EntrySizes | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> Launched:
        """Move every segment to its slots; the target's fields are ``self.rows`` afterwards.

        ``source`` are the contiguous tensors of the fields, ``inputs`` those of the relation and
        ``weights`` f32 [num_sources, fanout] for a weighted combine. If slots are given, this rank
        has ``num_slots``. Of a ``ragged`` domain only the points that it says are moved.

        Raises:
            ValueError: more source segments than ``max_sources`` or slots than ``capacity``, or
                weights are missing.
        """
        program, call = self.program, self._call
        if num_sources > self.limits.max_sources:
            raise ValueError(f"{num_sources} segments, more than {self.limits.max_sources}")
        if num_slots > self.limits.capacity:
            raise ValueError(f"{num_slots} slots, more than {self.limits.capacity}")
        if program.weighted and weights is None:
            raise ValueError(f"{program.name} needs weights")
        entry = self._next_entry()
        tables = self._handles[entry.index]
        handle = Launched(
            entry,
            num_sources,
            *tables,
            weights,
            num_slots=num_slots,
            ragged=ragged,
            **self._of_handle(entry, source),
        )
        self._bind_source(source)
        for position, tensor in enumerate(inputs):
            call.inputs[position] = tensor.data_ptr()
        for position, extent in enumerate(extents):
            call.extents[position] = extent
        call.num_slots = num_slots
        self._bind(entry)
        self._bind_points(handle)
        self._bind_sizes(ragged)
        address = (stream or torch.cuda.current_stream()).cuda_stream
        if handle.row_index is not None:  # before the peers know that this rank has joined the call
            set_words(handle.row_index.data_ptr(), 0xFFFFFFFF, 2 * len(handle.row_index), address)
        call.plan_ctas = self._num_plan_ctas(num_sources)
        if self._is_staged and self._staged is not None:
            self._launch(self._staged, max(self._ctas, call.plan_ctas + 1), address)
        elif self._plan is None:
            call.plan_ctas = min(self._ctas, call.plan_ctas)
            self._launch(self._dispatch, call.plan_ctas, address)
        else:
            # Both at once only where they may have all SMs, or a dispatch leaves a plan some. Where
            # some rows leave before there is a plan, senders then find SMs that do not plan.
            beside = self._is_hopper and self._leaves_plan_sms
            early = beside or (self._is_hopper and self._ctas == self.num_sms)
            sends_first = not self.program.scatters and self.program.pieces is None
            room = self._ctas - call.send_ctas * (early and sends_first)
            call.plan_ctas = max(1, min(call.plan_ctas, room))
            self._launch(self._plan, call.plan_ctas, address)
            num_rows = max(num_sources, num_slots)
            num_ctas = self._num_copy_ctas(num_rows)
            if beside:
                num_ctas = min(num_ctas, self._ctas - call.plan_ctas)
            kernel = self._of_few(self._dispatch, num_ctas, num_rows)
            self._launch(kernel, num_ctas, address, early)
        return handle

    def _of_handle(self, entry: RingEntry, source: Sequence[torch.Tensor]) -> dict[str, Any]:
        """What else a handle has."""
        found = {}
        if self.program.compact:
            found["row_index"] = self._row_index(entry)
        if self.program.given_slots:
            found["claims"] = self._claims(entry)
        return found

    def _num_copy_ctas(self, num_rows: int) -> int:
        """Of a kernel that moves so many rows."""
        return self._ctas

    def _num_plan_ctas(self, num_sources: int) -> int:
        return self.program.num_tiles(num_sources)

    @property
    def _leaves_plan_sms(self) -> bool:
        """Whether a dispatch that may not have all SMs does without some while a plan is made."""
        return False

    def _of_few(self, kernel: CudaKernel, num_ctas: int, num_rows: int) -> CudaKernel:
        """What moves so many rows in so many CTAs."""
        return kernel

    def combine(
        self,
        rows: Sequence[torch.Tensor],
        handle: Launched,
        results: Sequence[torch.Tensor],
        rows_ticket: int = 0,
        stream: torch.cuda.Stream | None = None,
    ) -> Sequence[torch.Tensor]:
        """Sum each segment's rows [capacity, elements] of every field, weighted, into its result
        [num_sources, …]; a combine that copies has one row a segment. If results are placed,
        they are all of the source and zero: segments that came to no slot are left out.

        ``rows_ticket`` is that of the dispatch which put the rows into the window, if they are
        there. Where sums cannot be made, because a rank has refused the call or its dispatch, or
        because what they need belongs to a later dispatch by now, the result is NaN.

        Raises:
            ValueError: the handle's buffers have been reused by later dispatches.
        """
        if not self._combines:
            raise ValueError(f"{self.program.name} declares no combine")
        if not self.rings.is_live(handle.entry):
            raise ValueError(f"the handle is outdated; num_handles is {self.limits.num_handles}")
        self._bind(handle.entry)
        self._bind_points(handle)
        call, call.rows_ticket, call.refuses = self._call, rows_ticket, 0
        address = (stream or torch.cuda.current_stream()).cuda_stream
        num_rows = max(handle.num_sources, handle.num_slots)
        num_ctas = self._num_copy_ctas(num_rows)
        for kernel, row, result in zip(self._combines, rows, results, strict=True):
            call.rows = row.data_ptr()
            call.result, call.result_bytes = result.data_ptr(), result.nbytes
            for number, each in enumerate(self._kernels_back(kernel, result)):
                few, early = self._of_few(each, num_ctas, num_rows), number > 0 and self._is_hopper
                self._launch(few, num_ctas, address, early)
        return results

    def _kernels_back(self, kernel: CudaKernel, result: torch.Tensor | None) -> list[CudaKernel]:
        """What brings back what goes into ``result``, each beside the end of the one before."""
        return [kernel]

    def refuse_dispatch(self, stream: torch.cuda.Stream | None = None) -> RingEntry:
        """Take a dispatch's turn without joining it: for the peers this rank has no segments.

        Every rank learns of it on its device; sums that a combine would need this rank for are NaN.
        """
        entry = self._next_entry()
        if entry.captured:  # a capture that fails on this rank; only the rings stay in step
            return entry
        self._bind(entry)
        self._refuse.launch(1, self._call, (stream or torch.cuda.current_stream()).cuda_stream)
        return entry

    def refuse_combine(self, handle: Launched, stream: torch.cuda.Stream | None = None) -> None:
        """Take a combine's turn without joining it; sums that need this rank's rows are NaN."""
        assert self._combines
        self._bind(handle.entry)
        call = self._call
        call.rows = call.rows_ticket = call.result = 0
        call.refuses = 1
        for kernel in self._combines:
            for each in self._kernels_back(kernel, None):
                each.launch(1, call, (stream or torch.cuda.current_stream()).cuda_stream)

    def _next_entry(self) -> RingEntry:
        return self.rings.next(torch.cuda.is_current_stream_capturing())

    def _launch(self, kernel: CudaKernel, num_ctas: int, address: int, early: bool = False) -> None:
        """Beside other work CTAs come in pairs: single ones leave odd numbers of SMs in a GPC, and
        a GEMM whose CTAs are pairs then has no place for as many as it counts on."""
        pairs = self._is_hopper and self._ctas < self.num_sms and num_ctas % 2 == 0
        kernel.launch(num_ctas, self._call, address, 2 if pairs else 1, early)

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window."""
        return self._window.local.numel()

    @property
    def private_bytes(self) -> int:
        """Bytes of the planner's and the handles' tables."""
        tables = [self.state, self._cta_counts]
        tables += [each for held in (*self._handles, *self._tables.values()) for each in held]
        return sum(each.nbytes for each in tables)

    def points(self, handle: Launched) -> torch.Tensor:
        """int64 [num_ranks, max_sources, fanout]: code and weight bits, as the peers wrote them."""
        at = self._sections_at["points"][handle.entry.index]
        shape = (self._call.num_ranks, self.limits.max_sources, self.program.fanout)
        return view_points(self._window.local, at, shape)

    def _row_index(self, entry: RingEntry) -> torch.Tensor:
        at = self._sections_at["row_index"][entry.index]
        return self._window.local[at : at + 8 * self.limits.capacity].view(torch.int64)

    def _claims(self, entry: RingEntry) -> torch.Tensor:
        at = self._sections_at["claims"][entry.index]
        return self._window.local[at : at + 4 * self.limits.capacity].view(torch.int32)

    def _bind(self, entry: RingEntry) -> None:
        call = self._call
        for name, at in self._sections_at.items():
            setattr(call, f"{name}_at", at[entry.index])
        call.ticket = entry.ticket
        call.routing = self._handles[entry.index][-1].data_ptr()
        for name, held in self._tables.items():
            setattr(call, name, held[entry.index if len(held) > 1 else 0].data_ptr())

    def _bind_source(self, source: Sequence[torch.Tensor]) -> None:
        for position, tensor in enumerate(source):
            self._call.source[position] = tensor.data_ptr()
        if self.program.apart_elems:
            make = torch.empty if self._plan_clears else torch.zeros
            self._begun = bits_of_cells(source[0], self.program.apart_elems, make)
            self._call.begun = self._begun.data_ptr()

    def _bind_points(self, handle: Launched) -> None:
        call = self._call
        call.codes = handle.codes.data_ptr()
        call.key_counts = handle.key_counts.data_ptr()
        call.key_starts = handle.key_starts.data_ptr()
        call.weights = 0 if handle.weights is None else handle.weights.data_ptr()
        call.num_sources = handle.num_sources

    def _bind_sizes(self, ragged: RaggedSizes | EntrySizes | None) -> None:
        call = self._call
        call.num_cells = ragged.num_cells if isinstance(ragged, EntrySizes) else -1
        if not self.program.places_results or self.program.pieces is not None:
            return
        call.outer = call.points_before = call.cells_before = call.num_points = 0
        if isinstance(ragged, RaggedSizes):
            call.outer, call.num_points = ragged.outer.data_ptr(), ragged.totals.data_ptr()
            call.points_before = ragged.point_offset.data_ptr()
            call.cells_before = ragged.cell_offset.data_ptr()
