"""Which engine executes a shuffle: pure decisions from what is known when it is opened."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc_runtime.engine.node.crossing import crossing
from fuscoc_runtime.engine.node.places import MOST_FLOWING, have_ways
from fuscoc_runtime.engine.node.slabs import (
    bytes_sent,
    lay_out_back,
    lay_out_slab,
    num_places,
)
from fuscoc_runtime.engine.sizes import fixed_length, fixed_sources
from fuscoc_runtime.errors import DivisorError
from fuscoc_runtime.face.options import ENGINE_VARIABLE
from fuscoc_runtime.manifest.schema import CudaVariant, NodeSpec, ShuffleSpec
from fuscoc_runtime.room import LEAST, MOST, MOST_DESTINATIONS, num_slot_bits, room_for
from fuscoc_runtime.topology import Topology

MAX_SLAB_BYTES = 64 << 20
"""What a rank sends other nodes in a call of fixed capacity, however few segments there are: what
50 GB/s carry in 1.3 ms, half of what the general engine takes to plan what is to be sent."""
MAX_PACKED_BYTES = 1 << 30
"""Of slabs for all nodes that hold what crosses of a static shuffle: nothing else is sent, so what
matters is memory, of which a rank has four times as much for them."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: its compute capability and the most shared memory of a CTA, in bytes."""

    capability: tuple[int, int]
    shared_bytes: int

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


def choose_cuda(
    shuffle: ShuffleSpec, topology: Topology, gpu: Gpu | None, max_sources: int | None
) -> CudaVariant | str:
    """The CUDA kernels to use, or the reason for not using any.

    They work among the GPUs of one node, in memory whose size the user fixed by ``max_sources``.
    """
    if shuffle.cuda is None:
        return shuffle.cuda_note or "its artifact has no CUDA kernels"
    if gpu is None:
        return "the ranks do not compute on CUDA devices"
    elsewhere = _beyond_a_node(topology, "CUDA kernels", LEAST)
    if elsewhere is not None:
        return elsewhere
    number = gpu.capability[0] * 10 + gpu.capability[1]
    for variant in shuffle.cuda.variants:
        fits = variant.shared_bytes <= gpu.shared_bytes
        if fits and int(variant.arch.removeprefix("sm_")) <= number:
            if max_sources is None:
                return "it was loaded without `max_sources`, the most source segments of a rank"
            return variant
    return f"{gpu.arch} with {gpu.shared_bytes} bytes of shared memory is too small a GPU"


def choose_triton(
    shuffle: ShuffleSpec, topology: Topology, max_sources: int | None = None
) -> NodeSpec | str:
    """The Triton kernels for memory of a fixed size, or the reason for not using any. Between nodes
    they need ``max_sources``."""
    shuffle = shuffle.among(topology.num_ranks)
    if shuffle.node is None:
        return shuffle.node_note or "its artifact has no Triton kernels for one node"
    if (problem := _beyond_a_program(shuffle)) is not None:
        return problem
    if topology.num_nodes > 1:
        if max_sources is None:
            return f"there are {topology.num_nodes} nodes, and nobody says how large calls are"
        node = shuffle.node.between or shuffle.node
        return (
            _between_nodes(shuffle, topology)
            or _beyond_memory(shuffle, node, topology, max_sources)
            or node
        )
    return _beyond_a_node(topology, "these kernels", MOST) or shuffle.node


def choose_static(
    shuffle: ShuffleSpec,
    topology: Topology,
    gpu: Gpu | None,
    wanted: str | None = None,
) -> int | str:
    """The source segments that memory of a fixed size has room for in calls without `max_sources`,
    whose number ranks alone decide; or the reason for not taking it."""
    return _beyond_fused(gpu, wanted) or static_sources(shuffle, topology)


def static_sources(shuffle: ShuffleSpec, topology: Topology) -> int | str:
    """Those of ``choose_static``, wherever kernels run."""
    shuffle = shuffle.among(topology.num_ranks)
    program, node = shuffle.program, shuffle.node
    if not program.is_static:
        return "calls decide its sizes"
    if program.target.kind != "dense" or node is None:
        return "where its rows end is planned"
    if program.weight is not None:
        return "its weights may come as late as with combine"
    if shuffle.into is not None:
        return "its rows go on into memory of the caller's"
    if topology.num_nodes == 1 and node.pieces is None:
        return "its plan is made once, and then its host waits for nothing"
    if topology.num_nodes > 1 and have_ways(program.exchange, topology):
        return "between nodes its policy chooses the ways of its rows"
    try:
        fixed_length(shuffle, topology.num_ranks)
    except DivisorError:
        return "calls say what is wrong with its length on so many ranks"
    return fixed_sources(shuffle, topology.num_ranks) or "on so many ranks it has no segments"


def choose_exact(
    shuffle: ShuffleSpec,
    topology: Topology,
    gpu: Gpu | None,
    wanted: str | None = None,
) -> NodeSpec | str:
    """The same kernels for calls whose sizes are exact, or the reason for the general engine, which
    may be the one that is ``wanted``."""
    if (reason := _beyond_fused(gpu, wanted)) is not None:
        return reason
    if topology.num_nodes == 1 and shuffle.program.is_static:
        return "its plan is made once, and then its host waits for nothing"
    return exact_kernels(shuffle, topology)


def exact_kernels(shuffle: ShuffleSpec, topology: Topology) -> NodeSpec | str:
    """Those of ``choose_exact``, wherever they run."""
    shuffle = shuffle.among(topology.num_ranks)
    if (problem := _beyond_a_program(shuffle)) is not None:
        return problem
    if shuffle.program.is_compact and shuffle.reply is not None and shuffle.segments_answered > 1:
        return "its target is compact, and rows of its reply, for several each, are not counted"
    if topology.num_nodes == 1 or shuffle.node is None:
        if shuffle.node is not None and shuffle.node.pieces is not None:
            return "inside a node its pieces are planned in memory of a fixed size"
        return choose_triton(shuffle, topology)
    node, most = shuffle.node.between or shuffle.node, MOST_FLOWING
    return (
        _between_nodes(shuffle, topology) or _beyond_slabs(shuffle, node, topology, 1, most) or node
    )


def _beyond_fused(gpu: Gpu | None, wanted: str | None) -> str | None:
    """Why calls without `max_sources` are the general engine's, whatever their shuffle is."""
    if gpu is None:
        return "interpreted, they take longer than the general engine's"
    if wanted is not None:
        return f"${ENGINE_VARIABLE} is {wanted}"
    return None


def _beyond_a_program(shuffle: ShuffleSpec) -> str | None:
    """Why one program cannot hold the points of a segment that goes to every rank."""
    most = max(shuffle.program.fanout, shuffle.back.program.fanout)
    if most > MOST_DESTINATIONS:
        return f"a segment has {most} destinations, more than {MOST_DESTINATIONS}"
    return None


def _beyond_a_node(topology: Topology, kernels: str, most: int) -> str | None:
    """Why kernels whose ranks address each other's memory, ``most`` of them, cannot be used."""
    if topology.num_nodes > 1:
        return f"there are {topology.num_nodes} nodes, and {kernels} only work inside one"
    if topology.ranks_per_node > most:
        return f"the node has {topology.ranks_per_node} ranks, more than {most}"
    return None


def _between_nodes(shuffle: ShuffleSpec, topology: Topology) -> str | None:
    """Why the kernels cannot be used among the ranks of several nodes."""
    target = shuffle.program.target
    if topology.ranks_per_node > MOST:
        return f"the nodes have {topology.ranks_per_node} ranks, more than {MOST}"
    bits = num_slot_bits(room_for(topology.ranks_per_node))
    if target.kind == "packed" and target.num_keys >> bits:
        return f"it has {target.num_keys} keys, and a slab counts {(1 << bits) - 1}"
    return None


def _beyond_memory(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, max_sources: int
) -> str | None:
    """Why slabs of a fixed capacity would be too large."""
    crosses = crossing(shuffle, topology)
    if crosses is None:
        return _beyond_slabs(shuffle, node, topology, max_sources)
    most = int(crosses.amax())
    _, forth = lay_out_slab(shuffle, node, topology, max_sources, most)
    _, back = lay_out_back(shuffle, node, max_sources, most)
    held = topology.num_nodes * max(forth, back)
    if held > MAX_PACKED_BYTES:
        return f"slabs of what crosses would take {held} bytes, more than {MAX_PACKED_BYTES}"
    return None


def _beyond_slabs(
    shuffle: ShuffleSpec,
    node: NodeSpec,
    topology: Topology,
    max_sources: int,
    most: int = MAX_SLAB_BYTES,
) -> str | None:
    """Why slabs with a place for every segment would be too large."""
    sent = bytes_sent(shuffle, node, topology, max_sources)
    if sent > most:
        room = f"room for {max_sources} segments a rank"
        return f"{room} would send {sent} bytes to other nodes in every call, more than {most}"
    if (reply := shuffle.reply) is not None:
        assert reply.node is not None, "kernels are there for both or none"
        answers = num_places(shuffle, node, max_sources) // shuffle.segments_answered
        found = _beyond_slabs(reply, reply.node, topology, answers, most)
        return found and f"in its reply {found}"
    return None


def missing_dtype(shuffle: ShuffleSpec, gpu: Gpu | None) -> str | None:
    """Why a GPU cannot run the shuffle's Triton kernels: f8e4m3 is cast from sm_89 on."""
    if gpu is None or gpu.capability >= (8, 9):
        return None
    leaving = {field.name: field.dtype for field in shuffle.program.buffers["source"]}
    arriving = {field.name: field.dtype for field in shuffle.program.buffers["target"]}
    ends = ({leaving[name], arriving[name]} for name in leaving.keys() & arriving.keys())
    if not any(len(dtypes) > 1 and "f8e4m3" in dtypes for dtypes in ends):
        return None
    return f"Triton can do so from sm_89 on, and this is {gpu.arch}"
