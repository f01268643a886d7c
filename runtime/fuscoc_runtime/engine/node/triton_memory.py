"""What the Triton kernels of one node work in, for calls up to some size: a window, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.comm.windows import Allocate, outlast_calls
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.slabs import staged_places
from fuscoc_runtime.engine.node.state import Limits, lay_out, storage_of, view_points
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.room import num_routing_words

LONG_WAIT = {"cpu": 48, "cuda": 1 << 14}
"""Polls after which a wait is shown to the host: some milliseconds. A multiple of `sync.POLLS`."""

BACK = 1
"""The entry of combines where sizes are exact, for which points are told once more."""


class TritonMemory:
    """The window of one rank, zeroed; construction is collective.

    Attributes:
        limits: how large calls may be, the same on all ranks; of several nodes ``max_sources`` are
            the segments that a rank takes on.
        rows: the target's fields, [rows, elements].
        lent: addresses of the memory that they are a part of.
        staged_places: of another node, that partial rows come back of in one turn.
    """

    def __init__(
        self,
        program: TritonProgram,
        limits: Limits,
        allocate: Allocate,
        num_entries: int,
        is_exact: bool = False,
        slab_places: int | None = None,
    ) -> None:
        """``num_entries`` handles have parts of their own; those of calls whose sizes are exact
        have none. ``slab_places``: of a slab, if they are fewer than segments of a rank."""
        self.limits, self._program, self._is_exact = limits, program, is_exact
        self._num_rows = limits.row_capacity(program.num_ranks, program.is_compact)
        self._stride = limits.max_sources // program.num_nodes
        self.staged_places = staged_places(
            slab_places or self._stride,
            program.num_ranks,
            program.num_nodes,
            program.spec.partial_bytes,
        )
        self.sections, nbytes = self._lay_out(num_entries)
        self.window = allocate(nbytes)
        self._bases = self.window.peer_bases.tolist()
        self.lent = storage_of(self.window.local)
        fields = program.shuffle.program.buffers["target"]
        parts = zip(self.sections["rows"], program.row_bytes, fields, strict=True)
        self.rows = tuple(
            self.window.local[at : at + self._num_rows * size]
            .view(TORCH_DTYPES[field.dtype])
            .view(-1, field.num_elems)
            for at, size, field in parts
        )

    def free(self) -> None:
        """Let go of the window, when the calls so far have ended; none may follow."""
        local, bases = self.window.local, self.window.peer_bases
        outlast_calls(local)
        outlast_calls(bases)
        self.window = Window(local.new_empty(0), bases.new_empty(0))
        self.rows = tuple(each.new_empty(0, each.shape[1]) for each in self.rows)
        self.lent = range(0)

    def part(self, name: str, dtype: torch.dtype, count: int, entry: int = 0) -> Tensor:
        """So many numbers of a part of the window."""
        at = self.sections[name][entry]
        return self.window.local[at : at + count * dtype.itemsize].view(dtype)

    def pretend(self, epoch: int, meetings: int = 0) -> None:
        """Let the peers of a new window have flagged so many calls, and come to so many meetings:
        flags are told from older ones by their differences."""
        num_ranks = self._program.num_ranks
        flags = num_ranks * self._program.plan_blocks
        self.part("plan_flags", torch.int32, flags).fill_(epoch)
        flags = num_ranks * self.limits.max_sources
        self.part("dispatch_flags", torch.int32, flags).fill_(epoch)
        if self._is_exact:
            self.part("meeting_flags", torch.int32, num_ranks).fill_(meetings)

    def points(self, entry: int = 0) -> Tensor:
        """int64 [num_ranks, max_sources, fanout]: code and weight bits, as the peers wrote them."""
        assert self._program.point_bytes == 8, "others have no weights"
        fanout = self._program.shuffle.program.fanout
        shape = (self._program.num_ranks, self.limits.max_sources, fanout)
        return view_points(self.window.local, self.sections["points"][entry], shape)

    def table(self, entry: int, programs: Programs, **others: int) -> list[int]:
        """The table of calls whose handles have that entry, with ``others`` of its words; see
        device/words.py."""
        named = {
            "rank": self._program.rank,
            "num_ranks": self._program.num_ranks,
            "num_nodes": self._program.num_nodes,
            "node": self._program.node,
            "stride": self._stride,
            "staged": self._num_staged,
            "staged_places": self.staged_places,
            "num_known": self._program.num_known,
            "num_keys": self._program.num_keys,
            "max_sources": self.limits.max_sources,
            "capacity": self.limits.capacity,
            "long_wait": LONG_WAIT[self._program.device.type],
            **{
                f"{name}_at": at[entry] if len(at) > 1 else at[0]
                for name, at in self.sections.items()
                if name != "rows"
            },
            "plan_blocks": self._program.plan_blocks,
            "point_bytes": self._program.point_bytes,
            "num_senders": programs.senders,
            "num_reducers": programs.reducers,
            "dispatch_group": programs.dispatch_group,
            "combine_group": programs.combine_group,
            **others,
        }
        places = self._program.word_places
        table = [0] * places["num_words"]
        first = places["windows"]
        table[first : first + len(self._bases)] = self._bases
        return with_words(table, named, places)

    @property
    def _num_staged(self) -> int:
        """Partial rows of every other rank that there is room for."""
        return self._stride + (self._program.num_nodes - 1) * self.staged_places

    def _lay_out(self, num_entries: int) -> tuple[dict[str, list[int]], int]:
        """Offsets of the parts of a window, and its bytes."""
        program, limits, num_ranks = self._program, self.limits, self._program.num_ranks
        sources, staged = num_ranks * limits.max_sources, (num_ranks - 1) * self._num_staged
        meeting = num_ranks * 4 * self._is_exact
        return lay_out(
            {
                "counts": [2 * num_ranks * program.num_nodes * (program.num_columns + 1) * 4],
                "tables": [2 * num_ranks * program.num_nodes * 8 * (program.table is not None)],
                "plan_flags": [num_ranks * program.plan_blocks * 4],
                "dispatch_flags": [sources * 4],
                "combine_flags": [sources * 8],
                "meeting_flags": [meeting],
                "said": [2 * meeting],
                "barrier": [num_ranks * 8] * num_entries,
                "refused": [num_ranks * 8] * num_entries,
                "points": [sources * program.shuffle.program.fanout * program.point_bytes]
                * (num_entries + self._is_exact),
                "turns": [num_ranks * 8 * (program.num_nodes > 1)] * num_entries,
                "staging": [staged * program.spec.partial_bytes if program.combines else 0],
                "row_index": [limits.capacity * 8 * program.is_compact] * num_entries,
                "claims": [limits.capacity * 4 * program.is_dense] * num_entries,
                "rows": [self._num_rows * size for size in program.row_bytes],
            }
        )


def with_words(
    table: Sequence[int], words: Mapping[str, int], places: Mapping[str, int]
) -> list[int]:
    """A table with other ``words``, which have these ``places``."""
    made = [*table]
    for name, value in words.items():
        made[places[name]] = value
    return made


def uploaded(table: list[int], device: torch.device) -> Tensor:
    """A table on the device, without waiting."""
    if device.type == "cpu":
        return torch.tensor(table)
    return torch.tensor(table, pin_memory=True).to(device, non_blocking=True)


def new_scratch(program: TritonProgram, max_sources: int) -> dict[str, Tensor]:
    """What the planner's kernels hand to each other, by the names of the relation's outputs."""
    tiles = program.num_tiles(max_sources)
    # Others keep what they know of a point: here, or of several nodes in slabs.
    planned = 0 if program.sorts or program.num_nodes > 1 else max_sources
    num_points = planned * program.shuffle.program.fanout
    sizes = {
        "within": num_points,
        "within_rows": num_points * program.is_compact,
        "tile_counts": tiles * program.padded_columns,
    }
    device = program.device
    return {
        **new_points(program, planned),
        **{name: torch.empty(n, dtype=torch.int32, device=device) for name, n in sizes.items()},
    }


def new_points(program: TritonProgram, max_sources: int) -> dict[str, Tensor]:
    """What the relation says of points, but for where their segments lie, int64 [points]."""
    relation, num = program.shuffle.program.relation, max_sources * program.shuffle.program.fanout
    outputs = [name for name in relation.outputs if name not in relation.addresses]
    return {name: torch.empty(num, dtype=torch.int64, device=program.device) for name in outputs}


def new_buffers(program: TritonProgram, max_sources: int) -> dict[str, Tensor]:
    """What belongs to one handle, by its words in the table."""
    target = program.target
    num_keys = target.num_keys if target.kind == "packed" else 0
    shapes: dict[str, tuple[int, ...]] = {
        "codes": (max_sources, program.shuffle.program.fanout),
        "first_slots": (max_sources, program.room),
        "key_counts": (num_keys,),
        "key_starts": (num_keys,),
    }
    device = program.device
    return {
        **{name: torch.empty(n, dtype=torch.int32, device=device) for name, n in shapes.items()},
        "routing": torch.zeros(  # counts its uses
            num_routing_words(program.room), dtype=torch.int32, device=device
        ),
    }


def new_segments(program: TritonProgram, max_sources: int) -> Tensor:
    """Where segments lie, int64 [addresses, points]: first cells, then strides of their runs. There
    is always one to be read."""
    shape = (
        len(program.shuffle.program.relation.addresses),
        max(1, max_sources) * program.shuffle.program.fanout,
    )
    return torch.empty(shape, dtype=torch.int64, device=program.device)


def call_words(
    program: TritonProgram,
    scratch: dict[str, Tensor],
    segments: Tensor,
    buffers: dict[str, Tensor],
) -> dict[str, int]:
    """Words of a table: where a call finds these."""
    return {
        "ranks": address(scratch["rank"]),
        "keys": address(scratch[program.place]),
        "within": address(scratch["within"]),
        "within_rows": address(scratch["within_rows"]),
        "tile_counts": address(scratch["tile_counts"]),
        **segment_words(segments),
        **{name: address(buffer) for name, buffer in buffers.items()},
    }


def segment_words(segments: Tensor) -> dict[str, int]:
    """Words of a table: where segments lie."""
    return {
        "src_offsets": address(segments),
        "src_strides": address(segments[1:]),
        "num_points": segments.shape[1],
    }
