"""Which kernels can run a shuffle, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc_runtime.face.choice import MAX_SLAB_BYTES, Gpu, choose_cuda, choose_exact, choose_triton
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology

TRITON_FIXED = "Triton, one node", "Triton, fixed capacity"
"""Kernels whose memory has a fixed size, in one node and in several."""


@dataclass(frozen=True)
class Backend:
    """A kind of kernels: whether it can run the shuffle, and how or why not."""

    name: str
    usable: bool
    note: str


def backends(shuffle: ShuffleSpec, topology: Topology | None) -> list[Backend]:
    """What the runtime would choose from, best first; ``topology``: of the ranks, if known.

    The GPUs are taken to be as large as any that the kernels are for, and the shuffle to be loaded
    with ``max_sources``, unless its sizes are exact.
    """
    ranks = topology or Topology(1, 1)
    cuda = choose_cuda(shuffle, ranks, _largest_gpu(shuffle), max_sources=1)
    found = [_backend("CUDA", cuda, "on the GPUs of one node, if loaded with `max_sources`")]
    node = choose_triton(shuffle, ranks, max_sources=1)
    several = ranks.num_nodes > 1
    name, how = TRITON_FIXED[several], "if loaded with `max_sources`"
    if several:
        how = f"{how}, of {MAX_SLAB_BYTES >> 20} MiB to other nodes"
    found.append(_backend(name, node, how))
    exact = choose_exact(shuffle, ranks, _largest_gpu(shuffle))
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
