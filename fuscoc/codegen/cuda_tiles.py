"""Tile sizes: how many rows a CTA of the CUDA kernels has in flight, and in how many parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuscoc.codegen.cuda_casts import in_place
from fuscoc.codegen.cuda_types import (
    CudaCast,
    CudaField,
    CudaShuffle,
    row_bytes,
    run_bytes,
    unit_bytes,
)
from fuscoc.lang.dtypes import ITEM_BYTES

WARP = 32
STATIC_SHARED = 512  # what the headers declare beside a CTA's dynamic shared memory, at most
PLAN_THREADS = 1024
COMBINE_WARPS = 28  # 72 registers a thread: four vectors in flight and no spills
MAX_TEAMS = 15  # of a CTA: each has a named barrier
VECTORS_IN_FLIGHT = 4
# That a warp of a combine copies at once, at most, but some rows in any case; longer ones are not
# copied so.
COPIED_BYTES, MAX_COPIED_ROWS, LEAST_COPIED_ROWS, LONGEST_COPIED = 8192, 256, 4, 16384
COPY_WARPS, WORDS_IN_FLIGHT = 24, 8  # 80 registers a thread, of these words 32
PLACE_BYTES = 8  # says where a row lies that is copied, in shared memory
TILES_LISTED, SLOT_BYTES = 6, 4  # of rows whose slots a CTA's three teams list, two each, to send
ROWS_IN_FLIGHT = 4  # parts of rows that a CTA has buffers for, at least
MAX_DISPATCH_WARPS = 24
SORTED_BYTES, SORTED_ROWS = 65536, (4096, 2048, 1024, 512)  # of a tile, at most; that it may have
RUN_WORDS = 4  # that say what there is of a run, in shared memory
MOVED_ROWS = 256  # of a tile of longer ones, at most: work is dealt out by them on the way back
RUN_BYTES = 128  # of a key's rows in a tile, on average, at least: a line
MAX_SORTED_KEYS = 128  # 64 registers a thread
# Lanes of a warp that move a row each, fewer of longer rows, and so many warps of a CTA at least:
# while some load rows, others store them.
SCATTERING_WARPS = {WARP: 4, 8: 5}
BULK_WORD, BULK_LINE = 16, 128  # bytes: of what bulk copies move, and the lines they are cut into
PIECE_WARPS = 28, 24  # of a CTA, there and back: 72 and 80 registers a thread
EVERY_RANK_WARPS = 20, 20  # the same of rows to every rank, which are moved by whole groups
LINES_IN_FLIGHT, LINE_BYTES = 8, 16  # of a lane: kLinesInFlight and kLine of the headers
# Warps of a CTA that turns tiles beside those that do: four bring tiles there and two back, three
# store them, and one marks slots.
TURN_HELPERS = {"dispatch_warps": 8, "combine_warps": 5}
TURNING_WARPS = 28  # with them: 72 registers a thread, or more are spilled
TILE_BUFFERS = 5  # of a CTA: kSlots and kTurnedSlots of ring.cuh
# Long runs are carried by bulk copies: so many warps of a CTA have so many buffers each, of 8 KB
# and what a target is off a multiple of a line: kCarried and kCarriedBytes of carry.cuh.
CARRIERS, CARRIED, CARRIED_BUFFER = 5, 3, 8192 + BULK_LINE
# Of a dispatch whose runs fill buffers; back there are kCarriersBack of carry.cuh.
MOST_CARRIERS = 7
CARRIED_RUN = 2048  # bytes, at least: a bulk copy of fewer carries too little,
FEW_CARRIED_RUN = 256  # but beside warps that copy: a buffer has no more runs than a warp lanes
PIECE_STATIC_SHARED = 42 * 1024  # at most what headers of pieces declare,
TURN_STATIC_SHARED = 14_208  # and where tiles are turned


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
    """Sizes of kernels that move pieces: CTAs of ``dispatch_warps`` or ``combine_warps`` warps,
    and `TILE_BUFFERS` of ``tile_bytes`` of shared memory, if any, or ``carried_bytes`` by way of
    which bulk copies carry long runs. Of few CTAs, which move less than a wire carries, those with
    ``few_bytes`` have warps that carry beside others that copy. With an ``entry_group`` entries are
    short and alike, and a warp takes so many at once, without any of these."""

    dispatch_warps: int
    combine_warps: int
    tile_bytes: int | None
    carried_bytes: int | None
    few_bytes: int | None
    entry_group: int | None
    words: tuple[WordSizes, ...]


# Tiles fill a CTA's shared memory, so each generation with less of it has kernels of its own.
# Those without tiles are the last one's for all.
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
    ``arriving`` fields; ``leaving`` are those in the source, where they are others. With
    ``sorted_rows`` above 1 a CTA takes so many rows at once and sorts them by key. Combine: CTAs
    of ``teams`` teams of ``team_warps`` warps; a thread keeps ``team_vectors`` vectors of the sum
    and loads those of ``team_batch`` rows at once. With ``combine_rows`` above 1 rows are copied:
    a team is a warp that takes so many at once, and a thread has ``team_batch`` words under way.
    """

    dispatch_warps: int
    dispatch_rows: int
    sorted_rows: int
    buffer_bytes: int
    num_passes: int
    arriving: tuple[FieldSizes, ...]
    leaving: tuple[FieldSizes, ...]
    teams: int
    team_warps: int
    team_vectors: int
    team_batch: int
    combine_rows: int


def choose_piece_sizes(
    shuffle: CudaShuffle, entry_group: int | None
) -> tuple[tuple[CudaTarget, PieceSizes], ...]:
    """Words that divide runs, and as many warps as have registers for their lines in flight, which
    cover the latency of HBM and NVLink. Long runs are carried by bulk copies, where the GPU has
    such. Where words are narrow, runs may be short, and are turned in shared memory: in tiles as
    large as leave room for three that come and two that leave."""
    words = tuple(WordSizes(field.name, unit_bytes(field)) for field in shuffle.leaving)
    oldest = TARGETS[-1]
    if shuffle.every_rank:
        return ((oldest, PieceSizes(*EVERY_RANK_WARPS, None, None, None, entry_group, words)),)
    if entry_group is not None or all(each.word_bytes == LINE_BYTES for each in words):
        copied = oldest, PieceSizes(*PIECE_WARPS, None, None, None, entry_group, words)
        if entry_group is not None or not all(map(_in_whole_lines, shuffle.leaving)):
            return (copied,)
        run = min(map(run_bytes, shuffle.leaving))
        if run < FEW_CARRIED_RUN:
            return (copied,)
        fills = run >= CARRIED_BUFFER - BULK_LINE
        nbytes = (MOST_CARRIERS if fills else CARRIERS) * CARRIED * CARRIED_BUFFER
        carried, few = nbytes if run >= CARRIED_RUN else None, None if fills else nbytes
        return (TARGETS[0], PieceSizes(*PIECE_WARPS, None, carried, few, None, words)), copied
    chosen = []
    for target in TARGETS:
        room = (target.shared_bytes - TURN_STATIC_SHARED) // TILE_BUFFERS
        tile_bytes = room // BULK_LINE * BULK_LINE
        sizes = PieceSizes(TURNING_WARPS, TURNING_WARPS, tile_bytes, None, None, entry_group, words)
        chosen.append((target, sizes))
    return tuple(chosen)


def _in_whole_lines(field: CudaField) -> bool:
    """Whether runs begin and end with lines of bulk copies in the source, and rows are of lines."""
    sizes = run_bytes(field), field.begin_bytes, row_bytes(field)
    return all(size % BULK_LINE == 0 for size in sizes)


def part_bytes(field: CudaField, num_passes: int) -> int:
    unit = unit_bytes(field)
    return -(-row_bytes(field) // (num_passes * unit)) * unit


def planner_bytes(columns: int) -> int:
    """Dynamic shared memory of the planner, at least the headers' ``PlanShared``."""
    return PLAN_THREADS // WARP * columns * 2 + 13 * columns + 64


def fields_in_runs(arch: str, word_bytes: Sequence[int]) -> int:
    """How many fields of sorted rows are stored run by run, in bulk copies: all of them or none."""
    bulk = arch == "sm_90" and all(each == BULK_WORD for each in word_bytes)
    return len(word_bytes) if bulk else 0


def sorting_bytes(rows: int, row: int, num_keys: int, in_runs: int) -> int:
    """Dynamic shared memory to plan and sort ``rows`` rows of ``row`` bytes, at least the headers'
    ``SortRunsShared`` or, if no field is stored ``in_runs``, ``SortWordsShared``.

    That is a tile as it comes and two sorted ones, whose runs begin anywhere in a line; or two
    tiles as they come, and the code and number of a row.
    """
    planner = planner_bytes(num_keys) + RUN_WORDS * 4 * num_keys
    if not in_runs:
        return planner + 2 * BULK_LINE + (6 + 2 * row) * rows
    ends = -(-2 * (BULK_LINE - BULK_WORD) * num_keys // BULK_LINE) * BULK_LINE
    planner += 4 * (2 * in_runs - 1) * num_keys  # further fields' runs, and what waits of all
    return -(-planner // BULK_LINE) * BULK_LINE + BULK_LINE + 3 * row * rows + 2 * in_runs * ends


def moving_bytes(num_keys: int, buffers: int) -> int:
    """Dynamic shared memory to plan and move rows one by one, ``buffers`` bytes of it for rows, at
    least the headers' ``SortRowsShared``: by tile and key a place, a barrier a warp."""
    tables = planner_bytes(num_keys) + (RUN_WORDS * 4 + PLAN_THREADS // WARP * 2) * num_keys
    return -(-tables // BULK_LINE) * BULK_LINE + 3 * BULK_LINE + buffers


def planning_bytes(
    arch: str, words: Sequence[int], row: int, num_keys: int, rows: int, buffers: int
) -> int:
    """Dynamic shared memory of a CTA that plans tiles of ``rows`` rows of ``row`` bytes, whose
    fields have ``words`` of so many bytes, and moves them: through ``buffers`` bytes, or sorted."""
    if buffers:
        return moving_bytes(num_keys, buffers)
    return sorting_bytes(rows, row, num_keys, fields_in_runs(arch, words))


@dataclass(frozen=True)
class BufferLayout:
    """Where a warp's row buffer has the parts of fields as they arrive, and as they leave."""

    arriving: dict[str, int]
    leaving: dict[str, int]
    nbytes: int


def buffer_layout(
    fields: Sequence[CudaField],
    leaving: Sequence[CudaField],
    casts: Sequence[CudaCast],
    num_passes: int,
) -> BufferLayout:
    """A field that is cast in place has room for what it was. Others of casts leave from behind the
    row that arrives."""
    left, arrives = ({field.name: field for field in each} for each in (leaving, fields))
    apart = {
        cast.field for cast in casts if not in_place(cast, left[cast.field], arrives[cast.field])
    }
    arriving_at, leaving_at, end = dict[str, int](), dict[str, int](), 0

    def place(at: dict[str, int], name: str, *forms: CudaField) -> None:
        nonlocal end
        at[name] = end
        end += -(-max(part_bytes(form, num_passes) for form in forms) // 128) * 128

    for name, field in arrives.items():
        place(arriving_at, name, field, *([left[name]] if name in left.keys() - apart else []))
    for name, field in left.items():
        if name in arrives.keys() - apart:
            leaving_at[name] = arriving_at[name]
        else:
            place(leaving_at, name, field)
    return BufferLayout(arriving_at, leaving_at, end)


def bulk_room(row: int) -> int:
    """Bytes for a row that lies in its buffer as it does in its slot, modulo a line."""
    return row if row % BULK_LINE == 0 else row + BULK_LINE - BULK_WORD


def scattered_layout(shuffle: CudaShuffle, target: CudaTarget) -> tuple[BufferLayout, int] | None:
    """`buffer_layout` of one lane's row, if a lane moves a row, and how many lanes of a warp do;
    None where a warp moves a row.

    Lanes need one destination each, fields that arrive as they leave and that bulk copies can
    move, and rows so small that enough warps have several of them.
    """
    if target.arch != "sm_90" or shuffle.fanout > 1 or shuffle.compact or shuffle.given_slots:
        return None
    if shuffle.source_fields or any(unit_bytes(field) < BULK_WORD for field in shuffle.fields):
        return None
    at, end = dict[str, int](), 0
    for field in shuffle.fields:
        at[field.name] = end
        end += -(-bulk_room(row_bytes(field)) // BULK_LINE) * BULK_LINE
    for lanes, warps in SCATTERING_WARPS.items():
        if warps * lanes * end <= target.room:
            return BufferLayout(at, at, end), lanes
    return None


def sorted_rows(shuffle: CudaShuffle, target: CudaTarget) -> int:
    """Rows of a tile whose slots a CTA finds at once; 1 if another kernel plans.

    They have one destination each and arrive as they leave. Rows shorter than a line are sorted by
    key, if a tile has lines of most keys; longer ones are moved one by one, by lanes.
    """
    row = sum(map(row_bytes, shuffle.fields))
    if shuffle.num_keys > MAX_SORTED_KEYS or shuffle.source_fields:
        return 1
    if shuffle.fanout > 1 or shuffle.compact or shuffle.is_placed:
        return 1
    if row >= BULK_LINE:
        if moving_warps(shuffle, target) < SCATTERING_WARPS[WARP]:
            return 1
        return min(MOVED_ROWS, max(WARP, 1 << (SORTED_BYTES // row).bit_length() - 1))
    in_runs = fields_in_runs(target.arch, list(map(unit_bytes, shuffle.fields)))
    fits = (
        rows
        for rows in SORTED_ROWS
        if RUN_BYTES * shuffle.num_keys <= rows * row <= SORTED_BYTES
        and sorting_bytes(rows, row, shuffle.num_keys, in_runs) <= target.room
    )
    return next(fits, 1)


def moving_warps(shuffle: CudaShuffle, target: CudaTarget) -> int:
    """Warps of a CTA that also plans which have a buffer for a row a lane; 0 if lanes cannot."""
    layout, lanes = scattered_layout(shuffle, target) or (None, 0)
    if layout is None or lanes < WARP:
        return 0
    room = target.room - moving_bytes(shuffle.num_keys, 0)
    return min(MAX_DISPATCH_WARPS, room // (WARP * layout.nbytes))


def num_passes(
    fields: Sequence[CudaField],
    leaving: Sequence[CudaField],
    casts: Sequence[CudaCast],
    target: CudaTarget,
) -> int:
    """Parts of a row, so that four warps of a CTA have buffers for one each."""
    passes = 1
    while buffer_layout(fields, leaving, casts, passes).nbytes * ROWS_IN_FLIGHT > target.room:
        passes += 1
    return passes


def field_sizes(
    shuffle: CudaShuffle, layout: BufferLayout, passes: int
) -> tuple[tuple[FieldSizes, ...], tuple[FieldSizes, ...]]:
    """The fields of a row as it arrives and, if that is another one, as it leaves.

    Both ends are cut alike, though words may be shorter where a row leaves; but a field that is
    cast has parts of its own at each end.
    """
    arriving = {
        field.name: FieldSizes(
            field.name, unit_bytes(field), part_bytes(field, passes), layout.arriving[field.name]
        )
        for field in shuffle.fields
    }
    cast = {name for each in shuffle.casts for name in (each.field, each.scales)}
    leaving = [
        FieldSizes(
            field.name,
            unit_bytes(field),
            part_bytes(field, passes) if field.name in cast else arriving[field.name].part_bytes,
            layout.leaving[field.name],
        )
        for field in shuffle.source_fields
    ]
    return tuple(arriving.values()), tuple(leaving)


def copied_rows(shuffle: CudaShuffle) -> int:
    """Rows that a warp of a combine copies at once, some KB of the largest field; 1 if rows are
    summed up, or so large that a team of warps takes one each."""
    longest = max(map(row_bytes, shuffle.leaving))
    if shuffle.combine != "copy" or longest > LONGEST_COPIED:
        return 1
    rows = 1 << max(1, COPIED_BYTES // longest).bit_length() - 1
    return max(LEAST_COPIED_ROWS, min(MAX_COPIED_ROWS, rows))


def choose_sizes(shuffle: CudaShuffle, target: CudaTarget) -> CudaSizes:
    """Sizes for the row: enough rows in flight to cover the latency of HBM and NVLink."""
    passes = num_passes(shuffle.fields, shuffle.leaving, shuffle.casts, target)
    in_tile = sorted_rows(shuffle, target)
    is_short = in_tile > 1 and sum(map(row_bytes, shuffle.fields)) < BULK_LINE
    scattered = None if is_short else scattered_layout(shuffle, target)
    layout, rows = scattered or (
        buffer_layout(shuffle.fields, shuffle.leaving, shuffle.casts, passes),
        1,
    )
    arriving, leaving = field_sizes(shuffle, layout, passes)
    warps = min(MAX_DISPATCH_WARPS, target.room // (rows * layout.nbytes))
    if in_tile > 1:
        warps = PLAN_THREADS // WARP if is_short else moving_warps(shuffle, target)
    vectors = [row_bytes(field) // unit_bytes(field) for field in shuffle.leaving]

    def preference(size: tuple[int, int]) -> tuple[int, int, int]:
        team_warps, team_vectors = size
        columns = team_warps * WARP * team_vectors
        idle_lanes = sum(-each % columns for each in vectors)
        return idle_lanes, -(COMBINE_WARPS // team_warps * team_warps), -columns

    sizes = [(warps, 1) for warps in range(1, 9)]
    # The maxima of 16 bytes are as many registers, those that other vectors in flight would have.
    in_flight = VECTORS_IN_FLIGHT
    of_bytes = any(ITEM_BYTES[field.dtype] == 1 for field in shuffle.leaving)
    if of_bytes and shuffle.combine == "max":
        in_flight = 2
    else:  # two vectors a thread only where no lane is idle: an idle one repeats the last vector
        sizes += [
            (warps, 2)
            for warps in range(1, 9)
            if all(each % (warps * WARP * 2) == 0 for each in vectors)
        ]
    team_warps, team_vectors = min(sizes, key=preference)
    teams, team_batch = min(MAX_TEAMS, COMBINE_WARPS // team_warps), in_flight // team_vectors
    combine_rows = copied_rows(shuffle)
    if combine_rows > 1:
        teams, team_warps, team_vectors, team_batch = COPY_WARPS, 1, 1, WORDS_IN_FLIGHT
    return CudaSizes(
        dispatch_warps=warps,
        dispatch_rows=rows,
        sorted_rows=in_tile,
        buffer_bytes=layout.nbytes,
        num_passes=passes,
        arriving=arriving,
        leaving=leaving,
        teams=teams,
        team_warps=team_warps,
        team_vectors=team_vectors,
        team_batch=team_batch,
        combine_rows=combine_rows,
    )
