"""Tile sizes: how many rows a CTA of the CUDA kernels has in flight, and in how many parts."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.codegen.cuda_types import CudaField, CudaShuffle, row_bytes, unit_bytes

WARP = 32
STATIC_SHARED = 512  # what the headers declare beside a CTA's dynamic shared memory, at most
COMBINE_WARPS = 28  # 72 registers a thread: four vectors in flight and no spills


@dataclass(frozen=True)
class CudaTarget:
    """A GPU generation: its name for the compiler and the shared memory of one CTA, in bytes."""

    arch: str = "sm_90"
    shared_bytes: int = 227 * 1024


@dataclass(frozen=True)
class Tile:
    """Sizes chosen for a row.

    Dispatch: CTAs of ``dispatch_warps`` warps, each with a row buffer, rows moved in
    ``num_passes`` parts. Combine: CTAs of ``teams`` teams of ``team_warps`` warps; a thread keeps
    ``team_vectors`` vectors of the sum and loads those of ``team_batch`` rows at once.
    """

    dispatch_warps: int
    num_passes: int
    teams: int
    team_warps: int
    team_vectors: int
    team_batch: int


def part_bytes(field: CudaField, num_passes: int) -> int:
    unit = unit_bytes(field)
    return -(-row_bytes(field) // (num_passes * unit)) * unit


def buffer_layout(shuffle: CudaShuffle, num_passes: int) -> tuple[tuple[int, ...], int]:
    """Offset of each field's part in a warp's row buffer, and the buffer's bytes.

    A field that is cast in the buffer has room for what it was.
    """
    leaving = {field.name: field for field in shuffle.leaving}
    offsets, end = [], 0
    for field in shuffle.fields:
        forms = (field, leaving.get(field.name, field))
        offsets.append(end)
        end += -(-max(part_bytes(form, num_passes) for form in forms) // 128) * 128
    return tuple(offsets), end


def choose_tile(shuffle: CudaShuffle, target: CudaTarget) -> Tile:
    """Tile sizes for the row: enough rows in flight to cover the latency of HBM and NVLink."""
    num_passes = 1
    room = target.shared_bytes - STATIC_SHARED
    while buffer_layout(shuffle, num_passes)[1] * 4 > room:
        num_passes += 1
    warps = min(24, room // buffer_layout(shuffle, num_passes)[1])
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
    return Tile(
        dispatch_warps=warps,
        num_passes=num_passes,
        teams=min(15, COMBINE_WARPS // team_warps),
        team_warps=team_warps,
        team_vectors=team_vectors,
        team_batch=4 // team_vectors,
    )
