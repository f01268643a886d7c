"""Which kernels can run a shuffle, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc_runtime.face.choice import (
    MAX_SLAB_BYTES,
    Gpu,
    choose_cuda,
    choose_exact,
    choose_static,
    choose_triton,
)
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology

TRITON_FIXED = "Triton, one node", "Triton, fixed capacity"
"""Kernels whose memory has a fixed size, in one node and in several."""
LOADED, KNOWN = "if loaded with `max_sources`", "with `max_sources` or without: ranks decide sizes"


@dataclass(frozen=True)
class Backend:
    """A kind of kernels: whether it can run the shuffle, and how or why not."""

    name: str
    usable: bool
    note: str


def backends(shuffle: ShuffleSpec, topology: Topology | None) -> list[Backend]:
    """What the runtime would choose from, best first; ``topology``: of the ranks, if known.

    The GPUs are taken to be as large as any that the kernels are for, and the shuffle to be loaded
    with ``max_sources``, unless its sizes are exact or ranks alone decide them.
    """
    ranks, gpu = topology or Topology(1, 1), _largest_gpu(shuffle)
    known = choose_static(shuffle, ranks, gpu)
    most, how = (1, LOADED) if isinstance(known, str) else (known, KNOWN)
    cuda = choose_cuda(shuffle, ranks, gpu, most)
    found = [_backend("CUDA", cuda, f"on the GPUs of one node, {how}")]
    node = choose_triton(shuffle, ranks, most)
    several = ranks.num_nodes > 1
    name = TRITON_FIXED[several]
    if several and how == LOADED:
        how = f"{how}, of {MAX_SLAB_BYTES >> 20} MiB to other nodes"
    found.append(_backend(name, node, how))
    exact = choose_exact(shuffle, ranks, gpu)
    found.append(_backend("Triton, exact sizes", exact, "on GPUs, without `max_sources`"))
    wants_cuda = shuffle.cuda is not None and shuffle.cuda.required
    note = "the spec says `backend cuda`" if wants_cuda else "anywhere, on GPUs or CPUs"
    return [*found, Backend("Triton, general engine", not wants_cuda, note)]


def _backend(name: str, chosen: object, how: str) -> Backend:
    """What the runtime's choice says: kernels, or the reason for having none."""
    if isinstance(chosen, str):
        return Backend(name, False, chosen)
    return Backend(name, True, how)


def _largest_gpu(shuffle: ShuffleSpec) -> Gpu:
    variants = shuffle.cuda.variants if shuffle.cuda else ()
    shared = max((each.shared_bytes for each in variants), default=0)
    return Gpu((99, 9), shared)
