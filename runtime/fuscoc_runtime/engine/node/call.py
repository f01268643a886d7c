"""The one argument of the CUDA kernels."""

from __future__ import annotations

import ctypes

from fuscoc_runtime.room import LEAST

MAX_FIELDS = 8
MAX_INPUTS = 8


class Call(ctypes.Structure):
    """``Call`` of kernels/include/call.cuh: same order, same types."""

    _fields_ = [
        ("window", ctypes.c_uint64 * LEAST),
        ("source", ctypes.c_uint64 * MAX_FIELDS),
        ("inputs", ctypes.c_uint64 * MAX_INPUTS),
        ("extents", ctypes.c_int64 * MAX_INPUTS),
        ("rows_at", ctypes.c_int64 * MAX_FIELDS),
        ("staged_at", ctypes.c_int64 * MAX_FIELDS),
        ("ready_at", ctypes.c_int64),
        ("counts_at", ctypes.c_int64),
        ("dispatch_flags_at", ctypes.c_int64),
        ("combine_flags_at", ctypes.c_int64),
        ("barrier_at", ctypes.c_int64),
        ("refused_at", ctypes.c_int64),
        ("points_at", ctypes.c_int64),
        ("staging_at", ctypes.c_int64),
        ("row_index_at", ctypes.c_int64),
        ("claims_at", ctypes.c_int64),
        ("boxes_at", ctypes.c_int64),
        ("marks_at", ctypes.c_int64),
        ("told_at", ctypes.c_int64),
        ("arrived_at", ctypes.c_int64),
        ("state", ctypes.c_uint64),
        ("page", ctypes.c_uint64),
        ("routing", ctypes.c_uint64),
        ("cta_counts", ctypes.c_uint64),
        ("codes", ctypes.c_uint64),
        ("point_rows", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("places", ctypes.c_uint64),
        ("boxes_forth", ctypes.c_uint64),
        ("boxes_back", ctypes.c_uint64),
        ("num_boxes", ctypes.c_uint64),
        ("moved", ctypes.c_uint64),
        ("made_of", ctypes.c_uint64),
        ("filled", ctypes.c_uint64),
        ("cell_marks", ctypes.c_uint64),
        ("begun", ctypes.c_uint64),
        ("outer", ctypes.c_uint64),
        ("points_before", ctypes.c_uint64),
        ("cells_before", ctypes.c_uint64),
        ("num_points", ctypes.c_uint64),
        ("key_counts", ctypes.c_uint64),
        ("key_starts", ctypes.c_uint64),
        ("weights", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
        ("num_sources", ctypes.c_int64),
        ("max_sources", ctypes.c_int64),
        ("staged_sources", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("num_slots", ctypes.c_int64),
        ("result_bytes", ctypes.c_int64),
        ("num_cells", ctypes.c_int64),
        ("max_entries", ctypes.c_int64),
        ("max_boxes", ctypes.c_int64),
        ("staging_bytes", ctypes.c_int64),
        ("max_flags", ctypes.c_int64),
        ("ticket", ctypes.c_uint32),
        ("rows_ticket", ctypes.c_uint32),
        ("refuses", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("num_ranks", ctypes.c_int),
        ("columns", ctypes.c_int),
        ("plan_ctas", ctypes.c_int),
        ("send_ctas", ctypes.c_int),
        ("send_warps", ctypes.c_int),
        ("reduce_teams", ctypes.c_int),
        ("dispatch_group", ctypes.c_int),
        ("combine_group", ctypes.c_int),
        ("kept", ctypes.c_uint64),
        ("covered", ctypes.c_uint64),
    ]
