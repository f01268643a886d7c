"""The experts of one layer, of which this rank has a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from fuscoc_runtime.adapters.grouped import bias_of_rows
from fuscoc_runtime.adapters.moe import MoeShuffle
from fuscoc_runtime.adapters.transformers_replicas import Replicas
from fuscoc_runtime.errors import AdapterError


class ParallelExperts(nn.Module):
    """A class of experts that transformers has, on the rows of its own experts.

    Parameters keep their names and order; the first dimension is [experts_per_rank].
    """

    moe: MoeShuffle
    replicas: Replicas
    is_transposed: bool
    has_bias: bool
    _apply_gate: Callable[[Tensor], Tensor]

    def keep_own(self, moe: MoeShuffle, replicas: Replicas) -> None:
        """Let go of the experts of other ranks. Parameters stay the same objects."""
        self.moe, self.replicas = moe, replicas
        for parameter in self.parameters():
            parameter.data = self._own(parameter.data).clone()
            parameter.grad = None

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Weighted sums of the experts' outputs, [num_tokens, hidden]; collective.

        ``hidden_states`` [num_tokens, hidden] are this rank's, ``top_k_index`` [num_tokens, topk]
        names experts among all.
        """
        rows, handle = self.moe.dispatch(
            hidden_states.to(self.moe.dtype), top_k_index, top_k_weights
        )
        ends = handle.key_offsets[1:]
        gated = self._apply_gate(self._linear(rows, "gate_up_proj", ends))
        combined = self.moe.combine(self._linear(gated, "down_proj", ends), handle)
        return combined.to(hidden_states.dtype)

    def _linear(self, rows: Tensor, name: str, ends: Tensor) -> Tensor:
        """Expert i on the rows up to ``ends[i]``. Rows behind the last end hold anything, as do
        their gradients, which nothing adds up."""
        weight = self._averaged(name)
        weight = weight if self.is_transposed else weight.transpose(-2, -1)
        outputs = F.grouped_mm(rows, weight, offs=ends.to(torch.int32))
        if not self.has_bias:
            return outputs
        return outputs + bias_of_rows(self._averaged(f"{name}_bias"), ends, rows.shape[0])

    def _averaged(self, name: str) -> Tensor:
        parameter = getattr(self, name)
        if parameter.dtype != self.moe.dtype:
            raise self.moe.problem(
                f"{name} of {type(self).__name__} has become {parameter.dtype}, and rows of "
                f"{self.moe.dtype} are dispatched: convert the model before its experts are spread"
            )
        averaged: Tensor = _Averaged.apply(parameter, self.moe.num_ranks, self.replicas)  # type: ignore[no-untyped-call]
        return averaged

    def _own(self, whole: Tensor) -> Tensor:
        return whole.narrow(0, self.moe.first_expert, self.moe.experts_per_rank)

    def gather(self, parameter: Tensor) -> Tensor | None:
        """Of all experts, on the CPU of the group's rank 0; None on others. Collective.

        Rank after rank, as a device has room for its own experts, but hardly for all of them.
        """
        members = self.moe.engine.members
        own = parameter.detach().to(members.device).contiguous()
        if members.rank:
            dist.send(own, group=members.group, group_dst=0)
            return None
        whole = own.new_empty((self.moe.num_experts, *own.shape[1:]), device="cpu")
        self._own(whole).copy_(own)
        part = torch.empty_like(own)
        for rank in range(1, self.moe.num_ranks):
            dist.recv(part, group=members.group, group_src=rank)
            whole.narrow(0, rank * self.moe.experts_per_rank, len(part)).copy_(part)
        return whole

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take this rank's experts out of an ordinary checkpoint, or those that it has saved."""
        own = dict(state_dict)
        for name, _ in self.named_parameters():
            loaded = state_dict.get(f"{prefix}{name}")
            if loaded is not None and loaded.shape[:1] == (self.moe.num_experts,):
                own[f"{prefix}{name}"] = self._own(loaded).clone()  # `assign` would keep all
        super()._load_from_state_dict(own, prefix, *arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        plain = type(value) in (nn.Parameter, type(None))
        if name in self._parameters and not plain and _is_distributed(value):
            raise self._sharded(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._parameters:
            raise self._sharded(name)
        super().__delattr__(name)

    def _sharded(self, name: str) -> AdapterError:
        """FSDP shards what all ranks have; it would take a part of every rank's experts."""
        return self.moe.problem(
            f"{name} is being replaced, as FSDP does, which takes a rank's experts for those of all"
        )

    def extra_repr(self) -> str:
        first = self.moe.first_expert
        last = first + self.moe.experts_per_rank - 1
        return f"experts {first} to {last} of {self.moe.num_experts}"


def _is_distributed(value: Any) -> bool:
    from torch.distributed.tensor import DTensor  # takes a second, and is rarely asked for

    return isinstance(value, DTensor)


class _Averaged(torch.autograd.Function):
    """A weight whose gradient, which is the sum over all ranks' tokens, becomes the ranks' mean."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, num_ranks: int, replicas: Replicas) -> Tensor:
        ctx.num_ranks, ctx.replicas = num_ranks, replicas
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.replicas.mean(gradient / ctx.num_ranks), None, None
