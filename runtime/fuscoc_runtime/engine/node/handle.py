"""What a dispatch in fixed memory leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from fuscoc_runtime.engine.arguments import Checker, lacks_memory
from fuscoc_runtime.engine.handle import refuse_to_pickle
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.weights import UNKNOWN, version, with_weights
from fuscoc_runtime.errors import ClosedError
from fuscoc_runtime.padding import blocks

if TYPE_CHECKING:
    from fuscoc_runtime.engine.node.engine import NodeEngine

WENT = "went with the rows"
"""Why weights may not change behind their dispatch."""


@dataclass(eq=False)  # frozen ones take the host several times as long to make
class NodeHandle:
    """The routing of one dispatch, to be combined until ``num_handles`` further dispatches.

    Everything about it stays on the device: nothing here waits for the dispatch, unless a table
    places the keys; then the first use of ``keys`` reads it.

    Attributes:
        num_slots: rows that combine takes. Of a packed target the capacity; those from
            ``key_offsets[-1]`` on are unused. Dispatch returned as many, unless it is compact. Of a
            dense target the slots that it has on this rank.
        extents: run-time extents of this rank.
        source_shapes: shape of every source field.
        weights: the weight input as it was given, by name.
        reply: the routing of the way back, where its rows are those of a reply.
        token: what operators know the routing by, if one of them made it. Their backward passes
            leave newer handles of the same routing there.
        versions: of inputs and weights when the handle was made. Kernels read inputs again when the
            routing is used again, and weights in combine.
    """

    engine: NodeEngine
    launched: Launched
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]
    source_shapes: Mapping[str, torch.Size]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    reply: NodeHandle | None = None
    token: Tensor | None = None
    versions: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.versions = versions = {}
        for named in (self.inputs, self.weights):
            for name, tensor in named.items():
                # As `version`, in fewer steps. To ask and be refused takes forty times as long.
                versions[name] = UNKNOWN if tensor.is_inference() else tensor._version

    @property
    def num_slots(self) -> int:
        is_dense = self.engine.target.kind == "dense"
        return self.launched.num_slots if is_dense else self.engine.limits.capacity

    @property
    def keys(self) -> Tensor:
        """int64 [num_local_keys], the keys that live here, ascending; a dense target has none."""
        return self._keys.clone()

    @property
    def num_keys(self) -> int:
        """Keys that live here."""
        return len(self._keys)

    @cached_property
    def _keys(self) -> Tensor:
        target = self.engine.target
        if target.is_placed_by_table:
            self.check_inputs()
        return self.engine.local_keys(self.inputs)

    @property
    def key_counts(self) -> Tensor:
        """int64 [num_local_keys], rows of each."""
        self.check_live()
        return self.launched.key_counts[: self.num_keys].long()

    @property
    def key_offsets(self) -> Tensor:
        """int64 [num_local_keys + 1], first slot of each; the last is the end of the last one."""
        self.check_live()
        if not self.num_keys:
            return torch.zeros(1, dtype=torch.int64, device=self._keys.device)
        starts = self.launched.key_starts[: self.num_keys].long()
        return torch.cat([starts, self._end_of_keys])

    @property
    def is_in_slots(self) -> bool:
        """Whether rows are of keys, and lie in their slots."""
        in_slots = self.engine.target.kind == "packed" and self.launched.row_index is None
        return in_slots and self.num_keys > 0

    @property
    def end(self) -> Tensor | None:
        """int64 [1], where rows that lie in their slots end, ``key_offsets[-1:]``; None for others.
        Kernels make it anew each time."""
        return self._end_of_keys if self.is_in_slots else None

    @property
    def _end_of_keys(self) -> Tensor:
        assert self.engine.target.kind == "packed"
        target, last = self.engine.target, slice(self.num_keys - 1, self.num_keys)
        taken: Tensor = blocks(target, self.launched.key_counts[last].long())
        return self.launched.key_starts[last].long() + taken * target.align

    @property
    def dropped(self) -> Tensor:
        """int64 [], the points of this rank that the dispatch did not move, for want of a key or of
        a slot, or of room for their segments. Of a captured dispatch those of its latest replay; -1
        when another has taken the handle's memory. On the device: reading it there waits for
        nothing."""
        return self.launched.dropped

    @property
    def row_index(self) -> Tensor | None:
        """int64 [num_slots], which of the rows that dispatch returned every slot of a compact
        target refers to, -1 for padding; None for other targets, whose rows lie in their slots.
        A view of memory that later dispatches reuse, but a copy where autograd may keep it."""
        self.check_live()
        index = self.launched.row_index
        return index.clone() if index is not None and torch.is_grad_enabled() else index

    @property
    def is_live(self) -> bool:
        """Whether later dispatches have left the handle's memory alone."""
        return not self.engine.is_closed and self.engine.is_live(self.launched)

    def check_live(self) -> None:
        """Raise if the handle's memory has been reused."""
        if self.engine.is_closed:
            raise ClosedError(f"the shuffle {self.engine.shuffle.name}")
        if not self.is_live:
            raise self.engine.checker.problem(
                "handle", "is outdated: later dispatches have taken its memory"
            )

    def check_inputs(self) -> None:
        """Raise if the routing would be another one now."""
        check_unchanged(self.engine.checker, self.inputs, self.versions, "is read again")

    def check_weights(self) -> None:
        """Raise if combine would find other weights than dispatch has sent."""
        check_unchanged(self.engine.checker, self.weights, self.versions, WENT)

    def kept(self) -> NodeHandle:
        """The handle with inputs and weights of its own, for a backward pass: the caller may change
        theirs.

        Itself, to be refused, if they have been changed already.
        """
        for named in (self.inputs, self.weights):
            if any(version(each) != self.versions[name] for name, each in named.items()):
                return self
        inputs = {name: each.clone() for name, each in self.inputs.items()}
        reply = self.reply
        if reply is not None:
            reply = replace(reply, inputs={name: inputs[name] for name in reply.inputs})
        weights = {name: each.clone() for name, each in self.weights.items()}
        kept: NodeHandle = with_weights(replace(self, inputs=inputs, reply=reply), weights)
        return kept

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(self)

    def __repr__(self) -> str:
        return f"<NodeHandle of {self.engine.shuffle.name}: {self.num_slots} slots>"


def check_unchanged(
    checker: Checker, tensors: Mapping[str, Tensor], versions: Mapping[str, int], why: str
) -> None:
    """Raise if one of these is not as it was when its version was taken; ``why`` that matters."""
    for name, tensor in tensors.items():
        is_freed = lacks_memory(tensor)
        if version(tensor) != versions[name] or is_freed:
            what = "freed" if is_freed else "changed in place"
            problem = f"has been {what} since the handle's dispatch, and"
            raise checker.problem(name, f"{problem} {why}: give dispatch a copy")
