"""A shuffle as a mixture-of-experts layer sees it, whatever its spec calls things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.errors import AdapterError
from fuscoc_runtime.face.open import Engine
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.declared import Declared, PackedTarget
from fuscoc_runtime.scalar import Scope, evaluate


@dataclass(frozen=True)
class Sizes:
    """What layers have in common that share a shuffle; ``dtype`` is that of weights and rows."""

    hidden: int
    experts: int
    topk: int
    dtype: torch.dtype


class MoeShuffle:
    """Dispatch and combine of tokens by ``topk_idx`` and ``topk_weights``.

    Attributes:
        num_experts, topk, hidden: what the spec says.
        index_dtype: of ``topk_idx``.
        num_ranks: ranks that the experts are spread over, in blocks of ``experts_per_rank``.
        first_expert: the first one of this rank.
        block: elements that share a scale, if tokens are quantised as they leave; else None.

    Raises:
        AdapterError: the shuffle is of another kind than ``examples/moe.fsc``: one field a token, a
            route of so many experts a token, a packed target with the experts in blocks, a weighted
            sum back. Or, if it ``may_quantise``, than ``examples/moe_fp8.fsc``.
    """

    def __init__(self, shuffle: Shuffle, framework: str, *, may_quantise: bool = False) -> None:
        spec, self._shuffle, self.framework = shuffle.spec, shuffle, framework
        routes = [item for item in spec.declared.inputs if item.role == "route"]
        weight = spec.declared.combine.weight if spec.declared.combine is not None else None
        fits = (
            not spec.program.is_compact
            and len(routes) == 1
            and len(routes[0].shape) == 2
            and len(spec.declared.source.fields) == 1
            and len(spec.declared.source.fields[0].shape) == 1
            and (not spec.declared.casts or (may_quantise and _quantises(spec.declared)))
            and weight is not None
        )
        target = spec.declared.target
        if not isinstance(target, PackedTarget) or not fits or target.group > 1 or weight is None:
            raise self.problem(
                f"the shuffle {spec.name} is not one of tokens to experts: it needs one field, a "
                "route of some experts a token, a target packed by experts alone that is not "
                "compact, and a weighted sum back"
            )
        if target.placement.kind != "block":
            raise self.problem(
                f"the shuffle {spec.name} places experts by {target.placement.kind}; "
                "the ranks of a layer hold them in blocks"
            )
        [route], [field] = routes, spec.declared.source.fields
        self.num_experts, self.num_ranks = target.num_keys, shuffle.topology.num_ranks
        self.experts_per_rank = self.num_experts // self.num_ranks
        self.first_expert = shuffle.rank * self.experts_per_rank
        self.topk = evaluate(route.shape[1], Scope({}))
        self.hidden = field.shape[0]
        self.dtype, self.index_dtype = TORCH_DTYPES[field.dtype], TORCH_DTYPES[route.dtype]
        self._route, self._weight = route.name, weight.input
        self._cast = next(iter(spec.declared.casts), None)
        self.block = None if self._cast is None else self._cast.block

    @property
    def engine(self) -> Engine:
        """What executes the calls; its ``members`` has this rank's place, and the group."""
        return self._shuffle.engine

    @property
    def is_fixed(self) -> bool:
        """Whether rows have a fixed capacity, and nothing waits for the host on GPUs."""
        return isinstance(self.engine, NodeEngine)

    def expect(self, **sizes: int) -> None:
        """Check that the layer's sizes are the spec's: attributes of this, by name."""
        for name, size in sizes.items():
            if getattr(self, name) != size:
                raise self.problem(
                    f"the layer has {name} = {size}; "
                    f"the spec of {self._shuffle.spec.name} says {getattr(self, name)}"
                )

    def dispatch(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> tuple[Any, Any]:
        """Rows [num_slots, hidden] of this rank's experts, and the handle; weights in f32. Of
        quantised tokens rows and scales by field: see ``parts``.

        In grad mode the rows are kept for the experts' gradients, else until the next dispatch.
        """
        inputs: dict[str, Any] = {
            self._route: topk_idx.to(self.index_dtype),
            self._weight: topk_weights.float(),
        }
        if torch.is_grad_enabled():
            rows, handle = self._shuffle.dispatch_fresh(x, **inputs)
        else:
            rows, handle = self._shuffle.dispatch(x, **inputs)
        return rows, handle

    def parts(self, rows: Any) -> tuple[Tensor, Tensor | None]:
        """The rows that dispatch returned, and their scales [num_slots, hidden / block], if any."""
        if self._cast is None:
            return rows, None
        return rows[self._cast.field], rows[self._cast.scales]

    def num_slots_for(self, num_tokens: int, num_slots: int) -> int:
        """How many of a dispatch's slots can be used if no rank has more than ``num_tokens``: work
        and combine need no others."""
        if not self.is_fixed:
            return num_slots  # as many as came
        return min(num_slots, self._shuffle.capacity_for(num_tokens))

    def combine(self, rows: Tensor, handle: Any) -> Tensor:
        """[num_tokens, hidden], weighted and summed."""
        combined: Tensor = self._shuffle.combine(rows, handle)
        return combined

    def slot_to_expert(self, handle: Any, num_slots: int) -> Tensor:
        """int64 [num_slots]: the local expert, from 0, whose row it is; -1 for padding.

        Stays on the device.
        """
        offsets, counts = handle.key_offsets, handle.key_counts
        slots = torch.arange(num_slots, device=offsets.device)
        expert = torch.searchsorted(offsets[1:], slots, right=True)
        inside = expert.clamp(max=max(counts.numel() - 1, 0))
        if not counts.numel():
            return torch.full_like(slots, -1)
        used = (expert == inside) & (slots - offsets[inside] < counts[inside])
        return torch.where(used, expert, -1)

    def local_experts(self) -> Tensor:
        """int64 [num_experts] on the CPU: every expert's number on this rank, -1 on others."""
        local = torch.arange(self.num_experts) - self.first_expert
        return torch.where((local >= 0) & (local < self.experts_per_rank), local, -1)

    def expert_of_others(self) -> int:
        """An expert of another rank, whose rows a framework's kernels pass over.

        Raises:
            AdapterError: there is no other rank.
        """
        if self.num_ranks < 2 or self.experts_per_rank == self.num_experts:
            raise self.problem("one rank has all experts: there is nothing to dispatch")
        return self.num_experts - 1 if self.first_expert == 0 else 0

    def problem(self, problem: str) -> AdapterError:
        return AdapterError(self.framework, problem)


def _quantises(declared: Declared) -> bool:
    """Whether the one field becomes an 8-bit float with scales on its way."""
    [cast] = declared.casts
    arriving = {field.name: field.dtype for field in declared.fields}
    return cast.block is not None and arriving[cast.field] == "f8e4m3"
