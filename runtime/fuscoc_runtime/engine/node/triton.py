"""The Triton kernels of one node: windows, tables and launches, with the face of `CudaNode`.

A dispatch is five launches: the relation, three of the planner, and the rows; where the relation
gives slots, the planner has two. They only enqueue work, so a CUDA graph can capture them; on the
CPU they are interpreted, one program at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.windows import allocator
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node.ragged import EntrySizes, RaggedSizes
from fuscoc_runtime.engine.node.rings import ROUTING_WORDS, HandleRings, Launched, RingEntry
from fuscoc_runtime.engine.node.schedule import Programs, model_programs
from fuscoc_runtime.engine.node.state import (
    MAX_RANKS,
    PAGE_WORDS,
    SLOT_BITS,
    STATE_WORDS,
    Limits,
    lay_out,
    view_points,
)
from fuscoc_runtime.kernels.loader import (
    Kernel,
    address,
    device_module,
    load_device_kernel,
    load_kernel,
)
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.plan import key_to_rank

COMBINED = ("rows", "result", "result_bytes")
"""What a combine is given of every field."""
LONG_WAIT = {"cpu": 100, "cuda": 1 << 14}
"""Polls after which a wait is shown to the host: some milliseconds."""


class TritonNode:
    """A shuffle among the ranks of one node; construction is collective over ``members``."""

    max_entries: int | None = None

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        limits: Limits,
        num_sms: int | None,
    ) -> None:
        if limits.capacity >= 1 << SLOT_BITS:
            raise ValueError(f"a capacity of {limits.capacity} is beyond {(1 << SLOT_BITS) - 1}")
        self.shuffle, self.spec, self.limits, self.members = shuffle, node, limits, members
        self._target, self._device = shuffle.program.target, members.device
        self.zeroes_results = node.places_results
        self._num_ranks = num_ranks = members.topology.num_ranks
        self._num_rows = limits.row_capacity(num_ranks, shuffle.program.is_compact)
        self._interpreted = members.device.type == "cpu"
        self._kernels = {role: self._load(artifact, name) for role, name in node.kernels.items()}
        relation = shuffle.program.relation.kernel
        self._relation = None if node.pieces else self._load(artifact, relation)
        self._refuse = load_device_kernel(
            "plan",
            "refuse",
            ("call", "ticket", "columns", "blocks"),
            interpreted=self._interpreted,
        )
        for kernel in (self._relation, *self._kernels.values(), self._refuse):
            if kernel is not None:
                kernel.compile()
        self._fields = shuffle.program.buffers["target"]
        self._row_bytes = [
            TORCH_DTYPES[field.dtype].itemsize * field.num_elems
            for field in shuffle.program.buffers["target"]
        ]
        self._sections, nbytes = self._lay_out()
        members.meet("opening")  # a rank that has no kernels does not come
        self._window = allocator(members)(nbytes)
        self.rows = tuple(
            self._window.local[at : at + self._num_rows * size]
            .view(TORCH_DTYPES[field.dtype])
            .view(-1, field.num_elems)
            for at, size, field in zip(
                self._sections["rows"],
                self._row_bytes,
                shuffle.program.buffers["target"],
                strict=True,
            )
        )
        self.state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=self._device)
        self.page = torch.zeros(PAGE_WORDS, dtype=torch.int32, pin_memory=not self._interpreted)
        self._scratch = self._allocate_scratch()
        self._buffers = [self._allocate_buffers() for _ in range(limits.num_entries)]
        self._segments = self._allocate_segments()
        self._key_to_rank: torch.Tensor | None = None
        if self._target.kind == "packed" and self._target.placement.kind != "table":
            self._key_to_rank = key_to_rank(
                self._target, members.topology, members.rank, {}, self._device
            )
        self._rings = HandleRings(limits.num_handles)
        words = device_module("words", interpreted=self._interpreted)
        self._tables = [self._empty(torch.int64, words.NUM_WORDS.value) for _ in self._buffers]
        self.configure(model_programs(self._device, num_sms))

    def configure(self, programs: Programs) -> None:
        """Use ``programs`` from the next call on; every rank must set the same groups."""
        self._programs = programs
        for index, table in enumerate(self._tables):
            table.copy_(self._table(index))

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
        """Move every segment to its slots; the target's fields are ``rows`` afterwards.

        ``source`` are the contiguous tensors of the fields, ``inputs`` and ``extents`` those of the
        relation in the spec's order, ``weights`` f32 [num_sources, fanout] for a weighted combine.
        A dense target has ``num_slots`` on this rank. Of a ``ragged`` domain ``num_sources`` is
        what there is room for; its points beyond the last one are dropped.
        """
        entry = self._next_entry()
        buffers = self._buffers[entry.index]
        handle = Launched(
            entry,
            num_sources,
            buffers["codes"],
            buffers["key_counts"],
            buffers["key_starts"],
            buffers["routing"],
            weights,
            self._row_index(entry),
            self._claims(entry),
            num_slots,
            ragged,
        )
        assert not isinstance(ragged, EntrySizes), "they are evaluated before"
        if handle.row_index is not None:  # before the peers know that this rank joins the call
            handle.row_index.fill_(-1)
        given = self._given(inputs, extents)
        num_points = num_sources * self.shuffle.program.fanout
        values = self._values(handle) | given
        values |= {"num_points": num_points, "num_ranks": self._num_ranks}
        values |= {name: address(column) for name, column in self._scratch.items()}
        columns = self.shuffle.program.relation.addresses
        values |= zip(columns, map(address, self._segments[entry.index]), strict=True)
        if ragged is not None:
            tables = ("outer", "point_offset", "cell_offset")
            values |= {name: address(getattr(ragged, name)) for name in tables}
        assert self._relation is not None
        if num_points:
            self._relation.launch(values, -(-num_points // self.shuffle.program.relation.block))
        if ragged is not None:
            self._drop_behind(ragged.num_points)
        self._plan(values | {"num_slots": num_slots}, num_sources)
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
        """Reduce each segment's rows [num_slots, elements] of every field, weighted, into
        ``results``, or copy them.

        ``rows_ticket`` is that of the dispatch which put the rows into the window, if they are
        there. Where sums cannot be made they are NaN; see `CudaNode.combine`.
        """
        values = self._values(handle) | {"rows_ticket": rows_ticket}
        fields = self.shuffle.program.buffers["source"]
        for field, tensor, result in zip(fields, rows, results, strict=True):
            values[f"rows.{field.name}"] = address(tensor)
            values[f"result.{field.name}"] = address(result)
            values[f"result_bytes.{field.name}"] = result.nbytes
        self._kernels["combine"].launch(values, self._programs.combine)
        return results

    def refuse_dispatch(self) -> RingEntry:
        """Take a dispatch's turn without joining it; see `CudaNode.refuse_dispatch`."""
        entry = self._next_entry()
        if entry.captured:  # a capture that fails on this rank; only the rings stay in step
            return entry
        values = {"call": self._tables[entry.index].data_ptr(), "ticket": entry.ticket}
        values |= {"columns": self._columns, "blocks": self._plan_blocks}
        self._refuse.launch(values, 1)
        return entry

    def refuse_combine(self, handle: Launched) -> None:
        """Take a combine's turn without joining it; sums that need this rank's rows are NaN."""
        values = self._values(handle) | {"rows_ticket": -1}
        for field in self.shuffle.program.buffers["source"]:
            values |= dict.fromkeys((f"{each}.{field.name}" for each in COMBINED), 0)
        self._kernels["combine"].launch(values, 1)

    def _plan(self, values: dict[str, int], num_sources: int) -> None:
        """Launch the planner."""
        tiles = max(1, -(-num_sources // self.spec.tile_sources))
        if self._target.kind == "dense":
            self._kernels["exchange"].launch(values, 1)
            self._kernels["place"].launch(values, tiles)
            return
        self._kernels["count"].launch(values, tiles)
        self._kernels["exchange"].launch(values, self._plan_blocks)
        self._kernels["assign"].launch(values, tiles)

    def _drop_behind(self, num_points: torch.Tensor) -> None:
        """Drop the points of a ragged domain that there are not."""
        columns = [self._scratch[name] for name in ("rank", self._place)]
        behind = torch.arange(len(columns[0]), device=self._device) >= num_points
        for column in columns:
            column.masked_fill_(behind, -1)

    def _next_entry(self) -> RingEntry:
        is_captured = not self._interpreted and torch.cuda.is_current_stream_capturing()
        return self._rings.next(is_captured)

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window."""
        return self._window.local.numel()

    @property
    def private_bytes(self) -> int:
        """Bytes of the planner's and the handles' tables."""
        tables = [*self._scratch.values(), *{id(each): each for each in self._segments}.values()]
        tables += [each for buffers in self._buffers for each in buffers.values()]
        return sum(each.nbytes for each in tables)

    def points(self, handle: Launched) -> torch.Tensor:
        """int64 [num_ranks, max_sources, fanout]: code and weight bits, as the peers wrote them."""
        at = self._sections["points"][handle.entry.index]
        shape = (self._num_ranks, self.limits.max_sources, self.shuffle.program.fanout)
        return view_points(self._window.local, at, shape)

    def _row_index(self, entry: RingEntry) -> torch.Tensor | None:
        if not self.shuffle.program.is_compact:
            return None
        at = self._sections["row_index"][entry.index]
        return self._window.local[at : at + self.limits.capacity * 8].view(torch.int64)

    def _claims(self, entry: RingEntry) -> torch.Tensor | None:
        if self._target.kind != "dense":
            return None
        at = self._sections["claims"][entry.index]
        return self._window.local[at : at + self.limits.capacity * 4].view(torch.int32)

    def is_live(self, handle: Launched) -> bool:
        """Whether later dispatches have left the handle's buffers alone; a captured handle's may
        also be taken by replays, which the device notices."""
        return self._rings.is_live(handle.entry)

    def _values(self, handle: Launched) -> dict[str, int]:
        """What the launches of a handle pass alike."""
        return {
            "call": self._tables[handle.entry.index].data_ptr(),
            "ticket": handle.entry.ticket,
            "num_sources": handle.num_sources,
            "weights": 0 if handle.weights is None else address(handle.weights),
        }

    def _given(self, inputs: Sequence[torch.Tensor], extents: Sequence[int]) -> dict[str, int]:
        """The relation's inputs and extents, by the manifest's value names."""
        program = self.shuffle.program
        tensors = dict(zip(program.inputs, inputs, strict=True))
        owners = self._key_to_rank
        if owners is None and self._target.kind == "packed":
            owners = tensors[self._target.placement.table or ""]
        return {
            **{f"input.{name}": address(tensor) for name, tensor in tensors.items()},
            **{f"extent.{n}": e for n, e in zip(program.extents, extents, strict=True)},
            "extent.rank": self.members.rank,
            "extent.ranks": self._num_ranks,
            **({} if owners is None else {"key_to_rank": address(owners)}),
        }

    def _load(self, artifact: Artifact, name: str) -> Kernel:
        spec = artifact.kernels[name]
        path, code = artifact.kernel_file(spec), artifact.code[spec.file]
        return load_kernel(path, spec, code, interpreted=self._interpreted)

    @property
    def _columns(self) -> int:
        """What planning counts rows of: every key and, for a compact target, every rank; or what
        ranks tell of a dense one: their slots."""
        if self._target.kind == "dense":
            return 1
        return self._target.num_keys + (MAX_RANKS if self.shuffle.program.is_compact else 0)

    @property
    def _place(self) -> str:
        """What the relation says of a point beside its rank."""
        return "slot" if self._target.kind == "dense" else "key"

    @property
    def _plan_blocks(self) -> int:
        return self.spec.padded_keys // self.spec.key_block

    def _lay_out(self) -> tuple[dict[str, list[int]], int]:
        """Offsets of the parts of a window, and its bytes."""
        limits, shuffle, num_ranks = self.limits, self.shuffle, self._num_ranks
        sources, is_compact = num_ranks * limits.max_sources, shuffle.program.is_compact
        is_dense, combines = self._target.kind == "dense", "combine" in self._kernels
        return lay_out(
            {
                "counts": [2 * num_ranks * (self._columns + 1) * 4],
                "plan_flags": [num_ranks * self._plan_blocks * 4],
                "dispatch_flags": [sources * 4],
                "combine_flags": [sources * 8],
                "barrier": [num_ranks * 8] * limits.num_entries,
                "refused": [num_ranks * 8] * limits.num_entries,
                "points": [sources * shuffle.program.fanout * 8] * limits.num_entries,
                "staging": [sources * self.spec.partial_bytes if combines else 0],
                "row_index": [limits.capacity * 8 * is_compact] * limits.num_entries,
                "claims": [limits.capacity * 4 * is_dense] * limits.num_entries,
                "rows": [self._num_rows * size for size in self._row_bytes],
            }
        )

    def _allocate_scratch(self) -> dict[str, torch.Tensor]:
        """What the planner's kernels hand to each other, by the names of the relation's outputs."""
        num_points = self.limits.max_sources * self.shuffle.program.fanout
        tiles = max(1, -(-self.limits.max_sources // self.spec.tile_sources))
        relation = self.shuffle.program.relation
        outputs = [name for name in relation.outputs if name not in relation.addresses]
        return {
            **{name: self._empty(torch.int64, num_points) for name in outputs},
            "within": self._empty(torch.int32, num_points),
            "within_rows": self._empty(torch.int32, num_points * self.shuffle.program.is_compact),
            "tile_counts": self._empty(torch.int32, tiles * self.spec.padded_keys),
        }

    def _allocate_segments(self) -> list[torch.Tensor]:
        """Where the segments of every handle lie, int64 [addresses, points]: first cells, then the
        strides of their runs. Handles share them if combine needs none."""
        program = self.shuffle.program
        shape = (len(program.relation.addresses), self.limits.max_sources * program.fanout)
        if program.combine is not None and self.spec.places_results:
            return [self._empty(torch.int64, *shape) for _ in self._buffers]
        return [self._empty(torch.int64, *shape)] * len(self._buffers)

    def _allocate_buffers(self) -> dict[str, torch.Tensor]:
        """What belongs to one handle."""
        sources, fanout = self.limits.max_sources, self.shuffle.program.fanout
        num_keys = self._target.num_keys if self._target.kind == "packed" else 0
        return {
            "codes": self._empty(torch.int32, sources, fanout),
            "first_slots": self._empty(torch.int32, sources, MAX_RANKS),
            "key_counts": self._empty(torch.int32, num_keys),
            "key_starts": self._empty(torch.int32, num_keys),
            "routing": self._empty(torch.int32, ROUTING_WORDS),
        }

    def _empty(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _table(self, index: int) -> torch.Tensor:
        """The table of the handles in that memory; see device/words.py."""
        words = device_module("words", interpreted=self._interpreted)
        table = [0] * words.NUM_WORDS.value
        table[: self._num_ranks] = self._window.peer_bases.tolist()
        for name, value in self._named_words(index).items():
            table[getattr(words, name.upper()).value] = value
        return torch.tensor(table)

    def _named_words(self, index: int) -> dict[str, int]:
        """The words of a table by name, but for the windows."""
        return self._common_words(index) | self._point_words(index)

    def _common_words(self, index: int) -> dict[str, int]:
        return {
            "rank": self.members.rank,
            "num_ranks": self._num_ranks,
            "max_sources": self.limits.max_sources,
            "capacity": self.limits.capacity,
            "long_wait": LONG_WAIT[self._device.type],
            **{
                f"{name}_at": at[index] if len(at) > 1 else at[0]
                for name, at in self._sections.items()
                if name != "rows"
            },
            "state": address(self.state),
            "page": address(self.page),
            "plan_blocks": self._plan_blocks,
            **{name: address(buffer) for name, buffer in self._buffers[index].items()},
        }

    def _point_words(self, index: int) -> dict[str, int]:
        """Those of kernels that look at every point."""
        programs = self._programs
        return {
            "ranks": address(self._scratch["rank"]),
            "keys": address(self._scratch[self._place]),
            "src_offsets": address(self._segments[index]),
            "src_strides": address(self._segments[index][1:]),
            "within": address(self._scratch["within"]),
            "within_rows": address(self._scratch["within_rows"]),
            "tile_counts": address(self._scratch["tile_counts"]),
            "num_senders": programs.senders,
            "num_reducers": programs.reducers,
            "dispatch_group": programs.dispatch_group,
            "combine_group": programs.combine_group,
        }
