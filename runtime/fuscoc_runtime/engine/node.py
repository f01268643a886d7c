"""The CUDA kernels of one node behind the face of a shuffle: arguments, handles and errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.artifact import Artifact
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.engine import nvlink
from fuscoc_runtime.engine.arguments import Checker, aligned
from fuscoc_runtime.engine.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.nvlink import Limits, NodeProgram, NodeShuffle, Schedule
from fuscoc_runtime.engine.watch import ErrorWatch
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.kernels.cuda import headers_digest
from fuscoc_runtime.plan import key_to_rank
from fuscoc_runtime.scalar import Scope, evaluate
from fuscoc_runtime.schema import CudaVariant, PackedTarget, ShuffleSpec


@dataclass(frozen=True, eq=False)
class NodeHandle:
    """The routing of one dispatch, to be combined until ``num_handles`` further dispatches.

    Everything about it stays on the device: nothing here waits for the dispatch, unless a table
    places the keys; then the first use of ``keys`` reads it.

    Attributes:
        num_slots: rows that dispatch returned, the capacity; those from ``key_offsets[-1]`` on are
            unused.
        extents: run-time extents of this rank.
        source_shapes: shape of every source field.
    """

    engine: NodeEngine
    launched: nvlink.Handle
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]
    source_shapes: Mapping[str, torch.Size]

    @property
    def num_slots(self) -> int:
        return self.engine.node.limits.capacity

    @cached_property
    def keys(self) -> Tensor:
        """int64 [num_local_keys], the keys that live here, ascending."""
        return self.engine.local_keys(self.inputs)

    @property
    def key_counts(self) -> Tensor:
        """int64 [num_local_keys], rows of each."""
        self.check_live()
        return self.launched.key_counts[: len(self.keys)].long()

    @property
    def key_offsets(self) -> Tensor:
        """int64 [num_local_keys + 1], first slot of each; the last is the end of the last one."""
        self.check_live()
        if not len(self.keys):
            return torch.zeros(1, dtype=torch.int64, device=self.keys.device)
        align = self.engine.target.align
        starts = self.launched.key_starts[: len(self.keys)].long()
        end = starts[-1:] + (self.key_counts[-1:] + align - 1) // align * align
        return torch.cat([starts, end])

    def check_live(self) -> None:
        """Raise if the handle's memory has been reused."""
        if not self.engine.node.is_live(self.launched):
            raise self.engine.checker.problem(
                "handle", "is outdated: later dispatches have taken its memory"
            )

    def __repr__(self) -> str:
        return f"<NodeHandle of {self.engine.shuffle.name}: {self.num_slots} slots>"


@dataclass(frozen=True, eq=False)
class NodeDispatched:
    """Rows by field, [capacity, *field shape], valid until this rank's next dispatch."""

    rows: dict[str, Tensor]
    handle: NodeHandle


class NodeEngine:
    """This process's rank of one shuffle inside one node; construction is collective.

    Calls only enqueue work on the current stream. What goes wrong on the device is raised by a
    later call or by ``check``.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        variant: CudaVariant,
        members: Membership,
        limits: Limits,
        num_sms: int | None,
        timeout: float,
    ) -> None:
        assert isinstance(shuffle.target, PackedTarget)
        self.shuffle, self.members, self.target = shuffle, members, shuffle.target
        rank, topology, device = members.rank, members.topology, members.device
        self.checker = Checker(shuffle, rank, topology.num_ranks, device)
        self._own_keys: Tensor | None = None
        if self.target.placement.kind != "table":
            self._own_keys = self.local_keys({})
        with torch.cuda.device(device):
            self.node = NodeShuffle(
                node_program(artifact, shuffle, variant),
                limits,
                members.group,
                device,
                Schedule(num_sms=num_sms or 0),
                timeout,
            )
            self._watch = ErrorWatch(self.node, shuffle, rank, timeout)
        self._rows = {
            field.name: rows.view(limits.capacity, *field.shape)
            for field, rows in zip(shuffle.fields, self.node.rows, strict=True)
        }

    def local_keys(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The keys of this rank, ascending; ``inputs`` holds the table that places them."""
        if self._own_keys is not None:
            return self._own_keys
        rank, device = self.members.rank, self.members.device
        owners = key_to_rank(self.target, self.members.topology, rank, inputs, device)
        return torch.nonzero(owners == rank).flatten()

    def dispatch(self, positional: Sequence[Tensor], named: Mapping[str, Any]) -> NodeDispatched:
        """Enqueue a dispatch; the weights of a weighted combine are among ``named``.

        Raises:
            InputError: an argument does not fit the spec or ``max_sources``; other ranks then wait
                for this one until their timeout.
        """
        assert self.shuffle.cuda is not None
        self._watch.raise_seen()
        weight = self._weight_input()
        arguments = self.checker.dispatch_arguments(
            positional, {name: value for name, value in named.items() if name != weight}
        )
        given = {weight: named[weight]} if weight is not None and weight in named else {}
        weights = self.checker.weights(given, arguments.extents) if weight is not None else None
        sizes = self.shuffle.domain[: self.shuffle.num_source_dims]
        scope = Scope(arguments.extents)
        num_sources = math.prod(evaluate(index.extent, scope) for index in sizes)
        if num_sources > self.node.limits.max_sources:
            raise self.checker.problem(
                next(iter(arguments.fields)),
                f"has {num_sources} segments; max_sources is {self.node.limits.max_sources}",
            )
        with torch.cuda.device(self.members.device):
            launched = self.node.dispatch(
                list(arguments.fields.values()),
                [arguments.inputs[name] for name in self.shuffle.cuda.inputs],
                [arguments.extents[name] for name in self.shuffle.extents],
                num_sources,
                None if weights is None else aligned(weights),
            )
        shapes = {name: tensor.shape for name, tensor in arguments.fields.items()}
        handle = NodeHandle(self, launched, arguments.inputs, arguments.extents, shapes)
        return NodeDispatched(self._rows, handle)

    def combine(
        self, rows: Tensor | Mapping[str, Tensor], handle: NodeHandle, named: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Enqueue a combine of rows [capacity, *field shape]; the weights came with dispatch."""
        self._watch.raise_seen()
        if self.shuffle.combine is None:
            raise InputError(self.shuffle.name, self.members.rank, "has no combine in its spec")
        for name in named:
            problem = "is given at dispatch, whose kernels send the weights with the rows"
            raise self.checker.problem(
                name, problem if name == self._weight_input() else "is no argument of this call"
            )
        if not isinstance(handle, NodeHandle) or handle.engine is not self:
            raise self.checker.problem("handle", "is not what this shuffle's dispatch returned")
        handle.check_live()
        [tensor] = self.checker.rows(rows, handle.num_slots).values()
        [field] = self.shuffle.source.fields
        with torch.cuda.device(self.members.device):
            result = torch.empty(
                handle.source_shapes[field.name],
                dtype=TORCH_DTYPES[field.dtype],
                device=self.members.device,
            )
            self.node.combine(tensor, handle.launched, result)
        return {field.name: result}

    def check(self) -> None:
        """Wait for everything enqueued so far and raise what went wrong."""
        self._watch.raise_all()

    def _weight_input(self) -> str | None:
        combine = self.shuffle.combine
        return combine.weight.input if combine is not None and combine.weight is not None else None


def node_program(artifact: Artifact, shuffle: ShuffleSpec, variant: CudaVariant) -> NodeProgram:
    """What a `NodeShuffle` executes. Machine code made with other device headers is left out."""
    assert shuffle.cuda is not None
    assert isinstance(shuffle.target, PackedTarget)
    headers = headers_digest()
    return NodeProgram(
        name=shuffle.name,
        text=(artifact.path / variant.file).read_text(encoding="utf-8"),
        launches={name: (c.threads, c.shared_bytes) for name, c in variant.launches.items()},
        fields=tuple((TORCH_DTYPES[field.dtype], field.num_elems) for field in shuffle.fields),
        fanout=shuffle.fanout,
        num_keys=shuffle.target.num_keys,
        weighted=shuffle.cuda.weighted,
        teams=variant.tile["teams"],
        cubins={
            cubin.arch: (artifact.path / cubin.file).read_bytes()
            for cubin in variant.cubins
            if cubin.headers == headers
        },
    )
