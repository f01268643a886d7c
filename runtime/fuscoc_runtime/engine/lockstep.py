"""All ranks in one process, on the CPU: any topology on a laptop, step by step, no timing.

Kernels run under Triton's interpreter. Windows are ordinary tensors, so peers' stores are real
stores through real addresses; ranks take turns between requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.artifact import Artifact, load_artifact
from fuscoc_runtime.comm.lockstep import Handler, run_lockstep
from fuscoc_runtime.comm.requests import Transfer, Window, Windows
from fuscoc_runtime.comm.windows import Allocate, WindowPool
from fuscoc_runtime.engine.combine import combine
from fuscoc_runtime.engine.dispatch import Dispatched, dispatch
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.errors import ProtocolError
from fuscoc_runtime.topology import Topology

CPU = torch.device("cpu")


class LockstepShuffle:
    """One shuffle of an artifact on all ranks of ``topology`` at once.

    Arguments and results are those of ``fuscoc_runtime.Shuffle``, in sequences by rank.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        name: str | None = None,
        *,
        topology: Topology,
        num_programs: int = 2,
    ) -> None:
        opened = artifact if isinstance(artifact, Artifact) else load_artifact(artifact)
        self.spec = opened.shuffle(name)
        self.topology = topology
        self.machines = [
            Machine(opened, self.spec, topology, rank, CPU, num_programs)
            for rank in range(topology.num_ranks)
        ]
        nodes = [_Node(topology.ranks_per_node) for _ in range(topology.num_nodes)]
        self._pools = [
            WindowPool(nodes[topology.node(rank)].allocator(topology.local_rank(rank)))
            for rank in range(topology.num_ranks)
        ]
        self._handlers: dict[type, Handler] = {Windows: self._windows, Transfer: self._transfer}

    def dispatch(
        self, positional: Sequence[Sequence[Tensor]], named: Sequence[Mapping[str, Any]]
    ) -> list[Dispatched]:
        """``positional[rank]`` and ``named[rank]`` are the arguments of one rank."""
        generators = [
            dispatch(machine, fields, given)
            for machine, fields, given in zip(self.machines, positional, named, strict=True)
        ]
        results = run_lockstep(generators, self._handlers)
        self._check_waits()
        return results

    def combine(
        self,
        rows: Sequence[Tensor | Mapping[str, Tensor]],
        handles: Sequence[Handle],
        named: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Tensor]]:
        """``rows[rank]``, ``handles[rank]`` and ``named[rank]`` are the arguments of one rank."""
        generators = [
            combine(*arguments)
            for arguments in zip(self.machines, rows, handles, named, strict=True)
        ]
        results = run_lockstep(generators, self._handlers)
        self._check_waits()
        return results

    def _check_waits(self) -> None:
        for machine in self.machines:
            late = machine.late()
            if late is not None:
                raise ProtocolError(f"rank {machine.context.rank} was not signalled: {late}")

    def _windows(self, requests: Sequence[Windows]) -> list[dict[str, Window]]:
        # Addresses are complete only when the last rank of a node has allocated its part.
        for pool, request in zip(self._pools, requests, strict=True):
            pool.get(request.nbytes)
        return [pool.get(r.nbytes) for pool, r in zip(self._pools, requests, strict=True)]

    def _transfer(self, requests: Sequence[Transfer]) -> list[None]:
        for source, sent in enumerate(requests):
            for destination, received in enumerate(requests):
                count = sent.send_counts[destination]
                if count != received.recv_counts[source]:
                    raise ProtocolError(
                        f"rank {source} sends {count} rows to rank {destination}, which expects "
                        f"{received.recv_counts[source]}"
                    )
                begin, at = sum(sent.send_counts[:destination]), sum(received.recv_counts[:source])
                for name, rows in sent.send.items():
                    received.recv[name][at : at + count] = rows[begin : begin + count]
        return [None] * len(requests)


class _Node:
    """The windows of one node's ranks, which fill in each other's addresses."""

    def __init__(self, num_peers: int) -> None:
        self._bases: list[Tensor] = []
        self._num_peers = num_peers
        self._allocated = [0] * num_peers

    def allocator(self, local_rank: int) -> Allocate:
        """Allocates the windows of one rank: its n-th belongs to the n-th of the others."""

        def allocate(nbytes: int) -> Window:
            index = self._allocated[local_rank]
            self._allocated[local_rank] += 1
            if index == len(self._bases):
                self._bases.append(torch.zeros(self._num_peers, dtype=torch.int64))
            memory = torch.zeros(max(nbytes, 1), dtype=torch.uint8)
            self._bases[index][local_rank] = memory.data_ptr()
            return Window(memory[:nbytes], self._bases[index])

        return allocate
