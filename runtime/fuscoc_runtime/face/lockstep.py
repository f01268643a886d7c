"""All ranks in one process, on the CPU: any topology on a laptop, step by step, no timing.

Kernels run under Triton's interpreter. Windows are ordinary tensors, so peers' stores are real
stores through real addresses; ranks take turns between requests.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fuscoc_runtime.comm.lockstep import Handler, run_lockstep
from fuscoc_runtime.comm.requests import (
    Crossing,
    HeldWindows,
    Request,
    Window,
    Windows,
)
from fuscoc_runtime.comm.windows import Allocate, WindowPool
from fuscoc_runtime.engine.combine import combine
from fuscoc_runtime.engine.dispatch import Dispatched, dispatch
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.into import Given, Into
from fuscoc_runtime.engine.linear import GeneralMaps, weight_input
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.errors import FuscoRuntimeError, ProtocolError
from fuscoc_runtime.face import ops, tickets
from fuscoc_runtime.face.complexes import as_complex, as_reals, rows_as_reals
from fuscoc_runtime.face.into import put
from fuscoc_runtime.face.traced import (
    bind,
    bind_rows,
    bind_weights,
    needs_grad,
    saves_unchecked,
    weights_of,
)
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.topology import Topology

T = TypeVar("T")

CPU = torch.device("cpu")


class LockstepShuffle:
    """One shuffle of an artifact on all ranks of ``topology`` at once.

    Arguments and results are those of ``fuscoc_runtime.Shuffle``, in sequences by rank; gradients
    flow as there. ``spec`` is one of the artifact's that has no name of its own: a reply.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        name: str | None = None,
        *,
        topology: Topology,
        num_programs: int = 2,
        spec: ShuffleSpec | None = None,
    ) -> None:
        opened = artifact if isinstance(artifact, Artifact) else load_artifact(artifact)
        self.spec = opened.shuffle(name) if spec is None else spec
        self.topology = topology
        self.machines = [
            Machine(opened, self.spec, topology, rank, CPU, num_programs)
            for rank in range(topology.num_ranks)
        ]
        self._into = [
            Into(opened, self.spec, rank, topology.num_ranks, CPU, raises=True)
            for rank in range(topology.num_ranks if self.spec.into is not None else 0)
        ]
        for machine in self.machines:
            # Ranks take turns: what has not come when one of them waits never does.
            machine.waits.abort_word[0] = 1
        nodes = [_Node(topology.ranks_per_node) for _ in range(topology.num_nodes)]
        self._pools = [
            WindowPool(nodes[topology.node(rank)].allocator(topology.local_rank(rank)))
            for rank in range(topology.num_ranks)
        ]
        self._handlers: dict[type, Handler] = {
            Windows: self._windows,
            HeldWindows: lambda _: [pool.held for pool in self._pools],
            Crossing: self._cross,
        }
        self._observer = Observer(f"{self.spec.name} in lockstep")
        maps = GeneralMaps(self.machines, self._run, self._observer)
        self._registered = ops.Registered(maps, 0, topology.num_ranks, None, None, None)
        self._key = ops.register(self._registered, opened.manifest.spec.sha256)
        self._reply: LockstepShuffle | None = None
        if self.spec.reply is not None:
            self._reply = LockstepShuffle(
                opened, topology=topology, num_programs=num_programs, spec=self.spec.reply
            )
            for asks, answers in zip(self.machines, self._reply.machines, strict=True):
                asks.answered_by(answers)

    def dispatch(
        self, positional: Sequence[Sequence[Tensor]], named: Sequence[Mapping[str, Any]]
    ) -> list[Dispatched]:
        """``positional[rank]`` and ``named[rank]`` are the arguments of one rank."""
        specs = self.spec.declared.source.fields
        given = [as_reals(specs, *each) for each in zip(positional, named, strict=True)]
        fields, by_name = [each for each, _ in given], [each for _, each in given]
        if self._into:
            return self._dispatch_into(fields, by_name)
        done = self._dispatch(fields, by_name)
        specs = self.spec.declared.fields
        return [Dispatched(dict(as_complex(specs, each.rows)), each.handle) for each in done]

    def _dispatch_into(
        self, positional: Sequence[Sequence[Tensor]], named: Sequence[Mapping[str, Any]]
    ) -> list[Dispatched]:
        """As ``calls`` does it; rows are the memory that every rank was given, by field."""
        given: list[Given | FuscoRuntimeError] = []
        others: list[dict[str, Any]] = []
        for into, fields, each in zip(self._into, positional, named, strict=True):
            own, rest = into.split(each)
            found = attempt(len(given), partial(into.prepare, own, [*fields, *rest.values()]))
            if isinstance(found, Given):
                found = into.fault(found) or found
            given.append(found)
            others.append(rest if isinstance(found, FuscoRuntimeError) else into.told(rest, found))
        right = [each for each in given if isinstance(each, Given)]
        if len(right) < len(given):
            problems = [each if isinstance(each, FuscoRuntimeError) else None for each in given]
            return self._dispatch(positional, others, problems)
        memory = chain(*(each.memory.values() for each in right))
        done = self._dispatch(positional, others, beside=[*memory])
        kept = [
            put(into, each, arrived.rows, arrived.handle)
            for into, each, arrived in zip(self._into, right, done, strict=True)
        ]
        field = self.spec.declared.fields[0].name
        return [
            Dispatched(rows if isinstance(rows, dict) else {field: rows}, arrived.handle)
            for rows, arrived in zip(kept, done, strict=True)
        ]

    def _dispatch(
        self,
        positional: Sequence[Sequence[Tensor]],
        named: Sequence[Mapping[str, Any]],
        problems: Sequence[FuscoRuntimeError | None] = (),
        beside: Sequence[Tensor] = (),
    ) -> list[Dispatched]:
        arguments = [*chain(*positional), *chain(*(given.values() for given in named)), *beside]
        wants = needs_grad(arguments) or saves_unchecked()
        if wants and self.spec.sends_differentiably and not problems:
            return self._dispatch_op(positional, named)
        known = problems or [None] * len(self.machines)
        generators = [
            dispatch(machine, fields, given, problem=problem)
            for machine, fields, given, problem in zip(
                self.machines, positional, named, known, strict=True
            )
        ]
        self._observer.begins_dispatch()
        done = self._run(generators)
        done = [
            Dispatched({name: rows.detach() for name, rows in each.rows.items()}, each.handle)
            for each in done
        ]
        self._observer.lend([rows for each in done for rows in each.rows.values()])
        return done

    def combine(
        self,
        rows: Sequence[Tensor | Mapping[str, Tensor]],
        handles: Sequence[Handle],
        named: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Tensor]]:
        """``rows[rank]``, ``handles[rank]`` and ``named[rank]`` are the arguments of one rank."""
        if self._reply is not None:
            return self._reply.combine(rows, handles, named)
        specs = self.spec.declared.source.fields
        given = [rows_as_reals(specs, each) for each in rows]
        return [dict(as_complex(specs, each)) for each in self._combine(given, handles, named)]

    def _combine(
        self,
        rows: Sequence[Tensor | Mapping[str, Tensor]],
        handles: Sequence[Handle],
        named: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Tensor]]:
        by_rank = [each.values() if isinstance(each, Mapping) else [each] for each in rows]
        tensors = [*chain(*by_rank), *chain(*(given.values() for given in named))]
        tensors += chain(*(weights_of(handle) for handle in handles))
        if needs_grad(tensors) and self.spec.is_differentiable:
            bound = [bind_rows(self.spec, rank, each) for rank, each in enumerate(rows)]
            return self._combine_op(bound, handles, named)
        generators = [
            combine(*arguments)
            for arguments in zip(self.machines, rows, handles, named, strict=True)
        ]
        return self._run(generators)

    def _dispatch_op(
        self, positional: Sequence[Sequence[Tensor]], named: Sequence[Mapping[str, Any]]
    ) -> list[Dispatched]:
        """As autograd sees it: one operator for all ranks."""
        bound = [
            bind(self.spec, rank, fields, given, reuses=False)
            for rank, (fields, given) in enumerate(zip(positional, named, strict=True))
        ]
        arguments = (
            [*chain(*(getattr(each, part) for each in bound))]
            for part in ("fields", "inputs", "extents", "weights")
        )
        done = ops.dispatch(self._key, *arguments, [])
        names = [field.name for field in self.spec.program.buffers["target"]]
        handles = tickets.redeem(done[len(names) * len(bound)])
        return [
            Dispatched(
                dict(zip(names, done[rank * len(names) :], strict=False)),
                replace(handle, weights=weight_input(self.spec, bound[rank].weights)),
            )
            for rank, handle in enumerate(handles)
        ]

    def _combine_op(
        self,
        rows: Sequence[list[Tensor]],
        handles: Sequence[Handle],
        named: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Tensor]]:
        weights = [
            bind_weights(self.spec, rank, handle, given, may_be_late=True)
            for rank, (handle, given) in enumerate(zip(handles, named, strict=True))
        ]
        token = tickets.issue(handles)
        done = ops.combine(self._key, [*chain(*rows)], token, [*chain(*weights)], [])
        names = [field.name for field in self.spec.program.buffers["source"]]
        return [
            dict(zip(names, done[rank * len(names) :], strict=False)) for rank in range(len(rows))
        ]

    def _run(self, generators: Sequence[Generator[Request, Any, T]]) -> list[T]:
        results = run_lockstep(generators, self._handlers)
        self._check_waits()
        return results

    def _check_waits(self) -> None:
        for machine in self.machines:
            machine.waits.tell()
            late = machine.late()
            if late is not None:
                raise ProtocolError(f"rank {machine.context.rank} was not signalled: {late}")

    def _windows(self, requests: Sequence[Windows]) -> list[dict[str, Window]]:
        # Addresses are complete only when the last rank of a node has allocated its part.
        for pool, request in zip(self._pools, requests, strict=True):
            pool.get(request.nbytes)
        return [pool.get(r.nbytes) for pool, r in zip(self._pools, requests, strict=True)]

    def _cross(self, requests: Sequence[Crossing]) -> list[None]:
        stages = {request.stage for request in requests}
        if len(stages) > 1:
            raise ProtocolError(f"ranks are out of step: in stages {sorted(stages)}")
        sent = {
            (source, rows.peer): rows.fields
            for source, request in enumerate(requests)
            for rows in request.sends
        }
        for destination, request in enumerate(requests):
            for rows in request.receives:
                found = sent.pop((rows.peer, destination), ())
                if [len(each) for each in found] != [len(each) for each in rows.fields]:
                    raise ProtocolError(
                        f"rank {destination} expects {len(rows.fields[0])} bytes of rank "
                        f"{rows.peer} in stage {request.stage}"
                    )
                for here, there in zip(rows.fields, found, strict=True):
                    here.copy_(there)
        if sent:
            raise ProtocolError(f"nobody expects the rows of {sorted(sent)} (source, destination)")
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
