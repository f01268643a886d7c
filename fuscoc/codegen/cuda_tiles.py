"""Tile sizes: how many rows a CTA of the CUDA kernels has in flight, and in how many parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuscoc.codegen.cuda_types import CudaField, CudaShuffle, row_bytes, unit_bytes

WARP = 32
MIN_ENTRY_BYTES = 16384  # rows from so many bytes on are worth an entry of a table each
STATIC_SHARED = 512  # what the headers declare beside a CTA's dynamic shared memory, at most
PLAN_THREADS = 1024
COMBINE_WARPS = 28  # 72 registers a thread: four vectors in flight and no spills
MAX_TEAMS = 15  # of a CTA: each has a named barrier
VECTORS_IN_FLIGHT = 4
ROWS_IN_FLIGHT = 4  # parts of rows that a CTA has buffers for, at least
MAX_DISPATCH_WARPS = 24
SCATTERING_WARPS = 4  # of a CTA, at least: while some rows are loaded, others are stored
BULK_WORD, BULK_LINE = 16, 128  # bytes: of what bulk copies move, and the lines they are cut into
PIECE_WARPS = 32  # of a CTA: 64 registers a thread
LINES_IN_FLIGHT, LINE_BYTES = 8, 16  # of a lane: kLinesInFlight and kLine of boxes.cuh
PIECE_ARCH = "sm_80"  # and later ones: nothing of these kernels depends on shared memory


@dataclass(frozen=True)
class CudaTarget:
    """A GPU generation: its name for the compiler and the shared memory of one CTA, in bytes."""

    arch: str = "sm_90"
    shared_bytes: int = 227 * 1024

    @property
    def room(self) -> int:
        """What a CTA may ask for when it is launched, in bytes."""
        return self.shared_bytes - STATIC_SHARED


@dataclass(frozen=True)
class WordSizes:
    """A field of a row is read in words of ``word_bytes``, or in wider ones where it can be."""

    field: str
    word_bytes: int


@dataclass(frozen=True)
class PieceSizes:
    """Sizes of kernels that move pieces: CTAs of ``warps`` warps."""

    warps: int
    words: tuple[WordSizes, ...]


# Tiles fill a CTA's shared memory, so each generation with less of it has kernels of its own.
TARGETS = (CudaTarget("sm_90", 227 * 1024), CudaTarget("sm_80", 163 * 1024))


@dataclass(frozen=True)
class FieldSizes:
    """How a field of a row is taken: words of ``word_bytes``, parts of ``part_bytes`` (the last may
    be shorter, or nothing), which a warp's row buffer holds from byte ``buffer_at`` on."""

    field: str
    word_bytes: int
    part_bytes: int
    buffer_at: int


@dataclass(frozen=True)
class CudaSizes:
    """Sizes chosen for a row.

    Dispatch: CTAs of ``dispatch_warps`` warps, each with ``dispatch_rows`` buffers of
    ``buffer_bytes`` for a row: one, or one a lane. Rows are moved in ``num_passes`` parts of their
    ``arriving`` fields; ``leaving`` are those in the source, where they are others. Combine: CTAs
    of ``teams`` teams of ``team_warps`` warps; a thread keeps ``team_vectors`` vectors of the sum
    and loads those of ``team_batch`` rows at once.
    """

    dispatch_warps: int
    dispatch_rows: int
    buffer_bytes: int
    num_passes: int
    arriving: tuple[FieldSizes, ...]
    leaving: tuple[FieldSizes, ...]
    teams: int
    team_warps: int
    team_vectors: int
    team_batch: int


def choose_piece_sizes(shuffle: CudaShuffle) -> PieceSizes:
    """Words that divide runs, and as many warps as have 64 registers a thread: their lines in
    flight cover the latency of HBM and NVLink."""
    words = tuple(WordSizes(field.name, unit_bytes(field)) for field in shuffle.leaving)
    return PieceSizes(PIECE_WARPS, words)


def part_bytes(field: CudaField, num_passes: int) -> int:
    unit = unit_bytes(field)
    return -(-row_bytes(field) // (num_passes * unit)) * unit


def planner_bytes(columns: int) -> int:
    """Dynamic shared memory of the planner, at least the headers' ``PlanShared``."""
    return PLAN_THREADS // WARP * columns * 2 + 13 * columns + 64


def buffer_layout(
    fields: Sequence[CudaField], leaving: Sequence[CudaField], num_passes: int
) -> tuple[tuple[int, ...], int]:
    """Offset of each arriving field's part in a warp's row buffer, and the buffer's bytes.

    A field that is cast in the buffer has room for what it was.
    """
    left = {field.name: field for field in leaving}
    offsets, end = [], 0
    for field in fields:
        forms = (field, left.get(field.name, field))
        offsets.append(end)
        end += -(-max(part_bytes(form, num_passes) for form in forms) // 128) * 128
    return tuple(offsets), end


def bulk_room(row: int) -> int:
    """Bytes for a row that lies in its buffer as it does in its slot, modulo a line."""
    return row if row % BULK_LINE == 0 else row + BULK_LINE - BULK_WORD


def scattered_layout(
    shuffle: CudaShuffle, target: CudaTarget
) -> tuple[tuple[int, ...], int] | None:
    """`buffer_layout` of one lane's row, if a lane moves a row; None where a warp does.

    Lanes need one destination each, fields that arrive as they leave and that bulk copies can
    move, and rows so small that enough warps have 32 of them.
    """
    if target.arch != "sm_90" or shuffle.fanout > 1 or shuffle.compact or shuffle.given_slots:
        return None
    if shuffle.source_fields or any(unit_bytes(field) < BULK_WORD for field in shuffle.fields):
        return None
    offsets, end = [], 0
    for field in shuffle.fields:
        offsets.append(end)
        end += -(-bulk_room(row_bytes(field)) // BULK_LINE) * BULK_LINE
    fits = SCATTERING_WARPS * WARP * end <= target.room
    return (tuple(offsets), end) if fits else None


def num_passes(
    fields: Sequence[CudaField], leaving: Sequence[CudaField], target: CudaTarget
) -> int:
    """Parts of a row, so that four warps of a CTA have buffers for one each."""
    passes = 1
    while buffer_layout(fields, leaving, passes)[1] * ROWS_IN_FLIGHT > target.room:
        passes += 1
    return passes


def field_sizes(
    shuffle: CudaShuffle, passes: int, offsets: tuple[int, ...]
) -> tuple[tuple[FieldSizes, ...], tuple[FieldSizes, ...]]:
    """The fields of a row as it arrives and, if that is another one, as it leaves.

    Both ends are cut alike, though words may be shorter where a row leaves; but a field that is
    cast has parts of its own at each end.
    """
    arriving = {
        field.name: FieldSizes(field.name, unit_bytes(field), part_bytes(field, passes), offset)
        for field, offset in zip(shuffle.fields, offsets, strict=True)
    }
    cast = [each.field for each in shuffle.casts]
    leaving = [
        replace(
            arriving[field.name],
            word_bytes=unit_bytes(field),
            part_bytes=part_bytes(field, passes)
            if field.name in cast
            else arriving[field.name].part_bytes,
        )
        for field in shuffle.source_fields
    ]
    return tuple(arriving.values()), tuple(leaving)


def choose_sizes(shuffle: CudaShuffle, target: CudaTarget) -> CudaSizes:
    """Sizes for the row: enough rows in flight to cover the latency of HBM and NVLink."""
    scattered = scattered_layout(shuffle, target)
    rows = 1 if scattered is None else WARP
    passes = num_passes(shuffle.fields, shuffle.leaving, target)
    offsets, buffer_bytes = scattered or buffer_layout(shuffle.fields, shuffle.leaving, passes)
    arriving, leaving = field_sizes(shuffle, passes, offsets)
    warps = min(MAX_DISPATCH_WARPS, target.room // (rows * buffer_bytes))
    vectors = -(-row_bytes(shuffle.leaving[0]) // unit_bytes(shuffle.leaving[0]))

    def preference(size: tuple[int, int]) -> tuple[int, int, int]:
        team_warps, team_vectors = size
        columns = team_warps * WARP * team_vectors
        idle_lanes = -(-vectors // columns) * columns - vectors
        return idle_lanes, -(COMBINE_WARPS // team_warps * team_warps), -columns

    sizes = [(warps, 1) for warps in range(1, 9)]
    # Two vectors a thread only where no lane is idle: an idle one repeats the last vector.
    sizes += [(warps, 2) for warps in range(1, 9) if vectors % (warps * WARP * 2) == 0]
    team_warps, team_vectors = min(sizes, key=preference)
    return CudaSizes(
        dispatch_warps=warps,
        dispatch_rows=rows,
        buffer_bytes=buffer_bytes,
        num_passes=passes,
        arriving=arriving,
        leaving=leaving,
        teams=min(MAX_TEAMS, COMBINE_WARPS // team_warps),
        team_warps=team_warps,
        team_vectors=team_vectors,
        team_batch=VECTORS_IN_FLIGHT // team_vectors,
    )
