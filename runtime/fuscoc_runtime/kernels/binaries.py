"""Machine code of a Triton kernel for one GPU, and what its launches have to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WARP_THREADS = 32


@dataclass(frozen=True)
class Binary:
    """The function ``symbol`` of ``code``, a cubin. A program has so many ``threads`` and
    ``shared_bytes``; if it ``can_follow``, it waits by itself for what its stream has before it.
    """

    code: bytes
    symbol: str
    threads: int
    shared_bytes: int
    can_follow: bool


def binary_of(compiled: Any, num_arguments: int) -> Binary:
    """Of what ``warmup`` returned: a kernel, all of whose parameters are integers, of 64 bits or of
    the lower ones of these, and addresses."""
    metadata = compiled.metadata
    kinds = [kind for kind in compiled.src.signature.values() if kind != "constexpr"]
    assert len(kinds) == num_arguments, kinds
    assert all(kind[0] == "*" or kind in ("i32", "i64") for kind in kinds), kinds
    assert not metadata.global_scratch_size, "a kernel that needs memory of its own"
    return Binary(
        compiled.kernel,
        metadata.name,
        metadata.num_warps * WARP_THREADS,
        metadata.shared,
        # Code from a cache may have been made where `sync.follow` knew of no device.
        "griddepcontrol.wait" in compiled.asm["ptx"],
    )
