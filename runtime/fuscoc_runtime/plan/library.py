"""The planner's C files as one library."""

from __future__ import annotations

import ctypes
from functools import cache

from fuscoc_runtime.ccompiler import BuildError
from fuscoc_runtime.native import PLAN

__all__ = ["PLAN", "BuildError", "is_there", "load"]


@cache
def load() -> ctypes.CDLL:
    """The library, once a process.

    Raises BuildError as ``NativeLibrary.load`` does.
    """
    library = PLAN.load()
    size, array = ctypes.c_int64, ctypes.c_void_p
    library.fuscoc_rebalance.argtypes = [size, size, array, array, array]
    library.fuscoc_rebalance.restype = None
    library.fuscoc_lpt.argtypes = [size, size, array, array]
    library.fuscoc_lpt.restype = size
    library.fuscoc_decompose.argtypes = [size, array, size, array, array, array]
    library.fuscoc_decompose.restype = size
    library.fuscoc_stages.argtypes = [size, size, array, size, *[array] * 5]
    library.fuscoc_stages.restype = size
    library.fuscoc_slots.argtypes = [size, array, size, array, array, size, size, *[array] * 4]
    library.fuscoc_slots.restype = None
    library.fuscoc_loads.argtypes = [size, size, array, array, array, size, *[array] * 7]
    library.fuscoc_loads.restype = size
    library.fuscoc_pipeline.argtypes = [size, size, *[array] * 5, size]
    library.fuscoc_pipeline.restype = ctypes.c_double
    library.fuscoc_network.argtypes = (
        [size] * 2 + [array] * 4 + [size, size] + [size, array] * 2 + [size] + [array] * 5
    )
    library.fuscoc_network.restype = size
    library.fuscoc_ways.argtypes = [size] * 4 + [array] * 2 + [size] + [array] * 8
    library.fuscoc_ways.restype = size
    return library


@cache
def is_there() -> bool:
    """Whether there is a library, or a compiler for it; where none is needed, numpy serves."""
    try:
        load()
    except BuildError:
        return False
    return True
