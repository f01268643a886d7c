"""How much memory of a fixed size has room for."""

from __future__ import annotations

from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.sizes import fixed_length, worst_capacity
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.face.options import Options, check_count
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.room import num_slot_bits, room_for
from fuscoc_runtime.scalar import render
from fuscoc_runtime.topology import Topology

MAX_WORST = 1 << 30
"""Slots that points ask for are counted in 32 bits, whether there is room for them or not."""


def limits_of(
    shuffle: ShuffleSpec, topology: Topology, options: Options, max_sources: int
) -> Limits:
    """What memory of a fixed size has room for.

    Raises:
        OptionError: more slots than the kernels can count, or a dense target whose length differs
            from call to call and no ``capacity``.
    """
    num_ranks, bits = topology.num_ranks, num_slot_bits(room_for(topology.ranks_per_node))
    if shuffle.program.target.kind == "dense":
        capacity = _dense_capacity(shuffle, num_ranks, options, bits)
        return Limits(max_sources, capacity, options.num_handles)
    segments = shuffle.segments_answered  # a reply has room for whole rows of them
    max_sources = -(-max_sources // segments) * segments
    worst = worst_capacity(shuffle, num_ranks, max_sources)
    if worst > MAX_WORST:
        problem = f"is {max_sources}: a rank might need {worst} slots; kernels count {MAX_WORST}"
        raise OptionError("max_sources", problem)
    capacity = min(options.capacity or shuffle.program.target.capacity or worst, worst)
    if capacity >> bits:
        problem = f"is {capacity}, by default all that can be needed; it must be < 2**{bits}"
        raise OptionError("capacity", problem)
    return Limits(max_sources, capacity, options.num_handles)


def _dense_capacity(shuffle: ShuffleSpec, num_ranks: int, options: Options, bits: int) -> int:
    """The most slots of any rank and call, which have room in so many bits."""
    length = fixed_length(shuffle, num_ranks)
    if length is None and options.capacity is None:
        target = shuffle.declared.target
        assert target.kind == "dense"
        problem = (
            f"is missing: `{render(target.length)}`, the length of `{target.layout}`, differs "
        )
        raise OptionError("capacity", problem + "from call to call; give the most that it can be")
    if length is not None and options.capacity is not None and options.capacity < length:
        problem = f"is {options.capacity}, and every call needs {length}, the length of its target"
        raise OptionError("capacity", problem)
    capacity = max(1, min(each for each in (options.capacity, length) if each is not None))
    if capacity >> bits:
        raise OptionError("capacity", f"is {capacity}; it must be < 2**{bits}")
    return capacity


def slots_for(shuffle: ShuffleSpec, num_ranks: int, num_sources: int) -> int:
    """``Shuffle.capacity_for``."""
    check_count("num_sources", num_sources, 0)
    if shuffle.program.target.kind != "packed" or shuffle.program.is_compact:
        problem = f"cannot tell slots of {shuffle.name}, whose target is not packed, or is compact"
        raise OptionError("num_sources", problem)
    return worst_capacity(shuffle, num_ranks, num_sources)
