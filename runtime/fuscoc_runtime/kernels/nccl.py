"""Functions of the NCCL that torch uses, which torch has no calls for that are as quick."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

ABORTED = -1  # as commands.c has it


class NcclError(RuntimeError):
    """NCCL refuses, or a connection has failed."""


@cache
def function(name: str) -> Any:
    """A function, of type ``int (...)``. There may be several NCCLs in a process; this is the one
    that torch's communicators belong to, since a library is searched with what it is linked to.

    Raises:
        NcclError: torch has an NCCL inside that only torch can call.
    """
    try:
        torch_cuda = ctypes.CDLL("libtorch_cuda.so", mode=os.RTLD_NOLOAD)
        return getattr(torch_cuda, name)
    except (OSError, AttributeError) as error:
        problem = f"torch shows no {name}; it must be linked to NCCL as a shared library"
        raise NcclError(f"{problem} ({error})") from error


def reason(status: int) -> str:
    """What a status means."""
    if status == ABORTED:
        return "the communicator was aborted when a rank was lost"
    describe = function("ncclGetErrorString")
    describe.restype = ctypes.c_char_p
    text: bytes = describe(status)
    return text.decode()
