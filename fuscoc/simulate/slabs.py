"""A path as calls of fixed capacity carry it out between nodes: slabs along rails, and the kernels
of one node for what they bring (``fuscoc_runtime/engine/node/rails.py``).

Every rank packs a slab for each other node and sends it to the rank of its own place there, which
takes the segments on as if they were its own; what stays in its node is moved from where it lies.
Sizes of slabs are fixed, and everything is in one stream, so nothing is hidden behind the wire. A
combine sends slabs of sums back the same way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate import in_node
from fuscoc.simulate.contenders import SimulationError
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.steps import Wires
from fuscoc_runtime.engine.node.slabs import COUNT_BYTES, HEADER_BYTES, POINT_BYTES
from fuscoc_runtime.face.choice import MAX_SLAB_BYTES
from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.plan.links import row_bytes
from fuscoc_runtime.plan.summary import human_bytes

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

FLAG_BYTES = 4
PACKING, PLANNING, FORWARDING = 2, 3, 1
"""Kernels of a dispatch as it was measured: relation and packing; counting, exchanging and
assigning; moving. Since then packing evaluates the relation and counts. A combine has one before
the wire and one behind it."""


def slab_bytes(program: Program, counts: Counts) -> tuple[Int64Array, Int64Array]:
    """Of the slabs that each rank sends each node in a dispatch and in a combine, [R, N]: a place
    for every segment of the rank that has most; of a static shuffle with given slots for those that
    cross. Counts of keys, a few kilobytes, are left out.

    Raises SimulationError where the runtime would take exact sizes.
    """
    is_dense = program.target.kind == "dense"
    places = np.full_like(counts.flows, counts.sources.max(initial=0))
    if program.is_static and is_dense:
        places = counts.flows
    num_points = program.num_points_each(counts.topology.num_ranks)
    point = num_points * (POINT_BYTES + COUNT_BYTES * (not is_dense))
    forth = HEADER_BYTES + places * (row_bytes(program.buffers["slices"]) + point)
    n, m = counts.topology.num_nodes, counts.topology.ranks_per_node
    returned = places.reshape(n, m, n).transpose(2, 1, 0).reshape(n * m, n)  # to whence it came
    back = HEADER_BYTES + returned * (row_bytes(program.buffers.get("staging", ())) + FLAG_BYTES)
    own = np.arange(n * m) // m
    forth[np.arange(len(places)), own] = back[np.arange(len(places)), own] = 0
    sent = int(forth.sum(axis=1).max())
    if sent > MAX_SLAB_BYTES:
        raise SimulationError(
            f"slabs of fixed capacity would be {human_bytes(sent)} a rank and call, and beyond "
            f"{human_bytes(MAX_SLAB_BYTES)} the runtime takes exact sizes"
        )
    return forth, back


def num_bytes(program: Program, counts: Counts) -> int:
    """Of all slabs of a rank."""
    largest = sum(int(each.max()) for each in slab_bytes(program, counts))
    return 2 * counts.topology.num_nodes * largest


def taken_on(counts: Counts) -> Counts:
    """What ranks do for others of their rail: the segments of other nodes, where they landed."""
    topology = counts.topology
    n, m = topology.num_nodes, topology.ranks_per_node
    away = ~counts.same_node

    def landed(matrix: Int64Array) -> Int64Array:
        by_place = (matrix * away).reshape(n, m, n, m).sum(axis=0)  # [place, node, place there]
        found = np.zeros((n, m, n, m), np.int64)
        found[np.arange(n), :, np.arange(n), :] = by_place.transpose(1, 0, 2)
        return found.reshape(n * m, n * m)

    return replace(
        counts,
        points=landed(counts.points),
        pairs=landed(counts.pairs),
        shared=landed(counts.shared),
        sources=counts.flows.reshape(n, m, n).sum(axis=0).T.ravel(),
    )


def own(counts: Counts) -> Counts:
    """What stays inside the node of its source."""
    same = counts.same_node
    return replace(
        counts,
        points=counts.points * same,
        pairs=counts.pairs * same,
        shared=counts.shared * same,
        sources=counts.near,
    )


class Slabs:
    """The tasks of both calls on all ranks."""

    def __init__(self, wires: Wires, counts: Counts) -> None:
        self._wires, self._builder, self._counts = wires, wires.builder, counts
        self._ranks = np.arange(wires.cluster.num_ranks)
        self._own, self._taken_on = own(counts), taken_on(counts)
        self._forth, self._back = slab_bytes(wires.program, counts)

    def dispatch(self) -> Int64Array:
        """Pack, send, plan, move; the last task of every rank, [R]."""
        wires, counts = self._wires, self._counts
        packed = self._kernels("pack", PACKING)
        written = counts.flows.sum(axis=1)
        read = np.minimum(written, counts.sources)  # once, however many nodes a segment goes to
        sizes = [float(wires.row_bytes(each)) for each in ("source", "slices")]
        wires.hbm(packed, self._ranks, read * sizes[0] + written * sizes[1])
        landed = self._cross(packed, self._forth)
        planned = self._kernels("plan", PLANNING + FORWARDING)
        self._builder.after(self._of_node(landed), planned)  # all of a node plan together
        both = replace(
            self._own,
            points=self._own.points + self._taken_on.points,
            pairs=self._own.pairs + self._taken_on.pairs,
            shared=self._own.shared + self._taken_on.shared,
            sources=self._own.sources + self._taken_on.sources,
        )
        return in_node.build_dispatch(wires, both, planned)

    def combine(self) -> Int64Array:
        """Sums for other nodes, slabs of them, and this rank's own; likewise."""
        wires, counts = self._wires, self._counts
        begin = self._kernels("collect", 1)
        collected = in_node.build_combine(wires, self._taken_on, begin, "staging")
        back = self._cross(collected, self._back)
        finish = self._kernels("finish", 1)
        self._builder.after(back, finish)
        result = replace(self._own, sources=counts.sources)
        return in_node.build_combine(wires, result, finish, further=counts.flows.sum(axis=1))

    def _kernels(self, name: str, number: int) -> Int64Array:
        """Some kernels, one behind the other: what they take besides their bytes."""
        latency = number * self._wires.cluster.costs.slab_kernel
        return self._builder.add(self._ranks, "kernels", (name,), latency)

    def _cross(self, ready: Int64Array, sizes: Int64Array) -> Int64Array:
        """Slabs of so many bytes [R, N] to all ranks of a rail at once, behind ``ready`` [R]; done
        by rank, [R]."""
        builder, topology = self._builder, self._counts.topology
        n, m = topology.num_nodes, topology.ranks_per_node
        sender, node = np.nonzero(self._ranks[:, None] // m != np.arange(n))
        receiver = node * m + sender % m
        ids = builder.add(sender, "wire 0", ("slabs",), self._wires.cluster.latency)
        self._wires.network(ids, sender, receiver, sizes[sender, node].astype(np.float64))
        done = builder.add(self._ranks)
        for rank in (sender, receiver):
            builder.after(ready[rank], ids)
            builder.after(ids, done[rank])
        builder.after(ready, done)
        return done

    def _of_node(self, tasks: Int64Array) -> Int64Array:
        """A join of a node's tasks for each of its ranks, [R]."""
        m = self._counts.topology.ranks_per_node
        return np.repeat(self._builder.join(tasks.reshape(-1, m)), m)
