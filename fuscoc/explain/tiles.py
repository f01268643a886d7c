"""Why kernels have the sizes that they have: docs/tiles.md in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fuscoc.codegen.cuda_tiles import (
    COMBINE_WARPS,
    COPIED_BYTES,
    LEAST_COPIED_ROWS,
    LINE_BYTES,
    LINES_IN_FLIGHT,
    MAX_COPIED_ROWS,
    MAX_DISPATCH_WARPS,
    MOVED_ROWS,
    PLACE_BYTES,
    PLAN_THREADS,
    ROWS_IN_FLIGHT,
    SORTED_BYTES,
    STATIC_SHARED,
    VECTORS_IN_FLIGHT,
    WARP,
    WORDS_IN_FLIGHT,
)
from fuscoc.codegen.tiles import BYTES_PER_LANE
from fuscoc.codegen.triton_tiles import (
    LINES_PER_LANE,
    PART_BYTES,
    SORTED_KEYS,
    TILE_ROW_BYTES,
)
from fuscoc.lang.dtypes import ITEM_BYTES
from fuscoc_runtime.manifest.schema import CudaVariant, ShuffleSpec


@dataclass(frozen=True)
class Size:
    """A number that kernels are made with, and what it follows from."""

    kernels: str
    name: str
    value: int
    why: str


def sizes(shuffle: ShuffleSpec) -> Iterator[Size]:
    """Those of every kind of kernels that a shuffle has. Between nodes Triton's are those of one
    node, unless pieces move there as rows."""
    leaving, row_bytes = (
        sum(ITEM_BYTES[each.dtype] * each.num_elems for each in shuffle.program.buffers[end])
        for end in ("source", "target")
    )
    combines = shuffle.program.combine is not None
    for variant in shuffle.cuda.variants if shuffle.cuda else ():
        for name, why in _cuda(variant, row_bytes, combines).items():
            yield Size(f"CUDA, {variant.arch}", name, variant.tile[name], why)
    node = shuffle.node
    of_triton = {"Triton": node, "Triton, between nodes": node and node.between}
    for kernels, spec in of_triton.items():
        if spec is not None:
            for name, why in _triton(spec.tile, max(leaving, row_bytes)).items():
                yield Size(kernels, name, spec.tile[name], why)


def _cuda(variant: CudaVariant, row_bytes: int, combines: bool) -> dict[str, str]:
    tile = variant.tile
    if "teams" not in tile:  # of pieces
        legs = ("dispatch_warps", "combine_warps")[: 1 + combines]
        of_warp = WARP * LINES_IN_FLIGHT * LINE_BYTES
        why = f"{LINES_IN_FLIGHT} lines of {LINE_BYTES} B in flight a lane"
        found = {leg: f"{why}, {tile[leg] * of_warp:,} B an SM" for leg in legs}
        if "entry_group" in tile:
            found["entry_group"] = "entries that a warp takes at once, one a lane: short, all alike"
        return found
    room, beside = variant.shared_bytes - STATIC_SHARED, ""
    moves = tile["sorted_rows"] > 1 and tile["dispatch_rows"] > 1
    if moves:
        (launch,) = (each for name, each in variant.launches.items() if name.endswith("_dispatch"))
        buffers = tile["dispatch_warps"] * tile["dispatch_rows"] * tile["buffer_bytes"]
        room, beside = room - (launch.shared_bytes - buffers), " beside what it plans in"
    fits = f"fit into the {room:,} B that a CTA has{beside}"
    found = {
        "num_passes": f"the fewest parts of a row of {row_bytes:,} B of which {ROWS_IN_FLIGHT} "
        f"{fits}",
        "dispatch_rows": "a warp moves a row"
        if tile["dispatch_rows"] == 1
        else "so many lanes of a warp move one each",
        "dispatch_warps": f"as many warps, of {tile['dispatch_rows'] * tile['buffer_bytes']:,} B "
        f"each, as {fits}, at most {MAX_DISPATCH_WARPS}",
    }
    if moves:
        found["sorted_rows"] = (
            f"a CTA plans, too, and tells so many rows of {row_bytes:,} B at once, as they lie by "
            f"key: {SORTED_BYTES:,} B or {MOVED_ROWS} rows at most"
        )
    elif tile["sorted_rows"] > 1:
        found = {
            "sorted_rows": f"a CTA sorts so many rows of {row_bytes:,} B by key, "
            f"{SORTED_BYTES:,} B at most; two times as many {fits}",
            "dispatch_warps": f"{PLAN_THREADS:,} threads, which plan, too",
        }
    if combines and tile["combine_rows"] > 1:
        places = tile["teams"] * tile["combine_rows"] * PLACE_BYTES
        found |= {
            "combine_rows": f"a warp copies so many rows at once, {COPIED_BYTES:,} B of a field or "
            f"{MAX_COPIED_ROWS} rows at most, and {LEAST_COPIED_ROWS} at least",
            "teams": f"warps, which keep where rows lie: {places:,} B",
            "team_batch": f"{WORDS_IN_FLIGHT} words in flight a thread",
        }
    elif combines:
        lanes = tile["team_warps"] * WARP * tile["team_vectors"]
        found |= {
            "team_warps": f"a team takes {lanes} vectors of a row at once: of all teams in "
            f"{COMBINE_WARPS} warps the one that leaves fewest lanes idle",
            "teams": f"as many as {COMBINE_WARPS} warps make",
            "team_vectors": "two a thread only where the row divides evenly",
            "team_batch": f"{VECTORS_IN_FLIGHT} loads in flight a thread",
        }
    return found


def _triton(tile: Mapping[str, int], row_bytes: int) -> dict[str, str]:
    if "copy_warps" in tile:  # of pieces
        item = tile["item_lines"] * LINE_BYTES
        plans = "a program that plans computes single numbers"
        if "chained" in tile:
            plans = f"a program that plans takes {tile['chained']} entries at once, which are alike"
        found = {
            "plan_warps": plans,
            "copy_warps": f"at most {LINES_PER_LANE} lines of {LINE_BYTES} B in flight a lane",
            "item_lines": f"lines that a program takes from a counter, {item:,} B",
        }
        if "holding_warps" in tile:
            found["holding_warps"] = "of dispatch: a small call computes where lines lie in advance"
        return found
    planned = {
        "plan_points": "points that a program compares with each other, one a lane",
        "plan_tiles": "tiles of so many points that it takes one after the other",
        "plan_block": "keys whose counts it holds at once",
    }
    if tile["sorted_rows"] > 1:
        planned = {
            "plan_points": "points whose keys a program counts at once",
            "sorted_rows": f"rows that a program sorts by key at once, of {SORTED_KEYS} keys at "
            "most",
        }
    return planned | {
        "plan_keys": "keys whose counts a program exchanges, or all if they are fewer",
        "row_parts": f"the fewest parts of a row, at its longest {row_bytes:,} B, that fit into "
        f"registers, {PART_BYTES:,} B",
        "row_warps": f"a power of two that holds a part, {BYTES_PER_LANE} B a lane",
        "tile_rows": "rows that a program moves at once: several where none has more than "
        f"{TILE_ROW_BYTES:,} B, and each goes to one slot and comes back as it is",
    }
