"""Megatron-Core's experts, for rows whose numbers stay on the device.

All of them split their rows on the host. What they do between their linear layers is not replaced:
their own ``forward`` runs once, on the rows of all local experts, with layers that do for all of
them what each one's would do for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fuscoc_runtime.adapters.grouped import bias_of_rows, grouped_linear
from fuscoc_runtime.adapters.interface import specialise

LINEARS = ("linear_fc1", "linear_fc2")
"""The layers of an expert, in ``MLP`` and in ``TEGroupedMLP``."""

KNOWN = {
    "SequentialMLP": {"ColumnParallelLinear", "RowParallelLinear"},
    "TEGroupedMLP": {"TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear"},
}
"""Classes of experts, and of linear layers whose output is a product with their weight, and a bias:
of expert tensor parallelism the dispatcher takes care."""

OWN_GEMMS = {
    "fp8", "fp4", "delay_wgrad_compute", "use_transformer_engine_op_fuser",
    "moe_single_grouped_weight",
}  # fmt: skip
"""Options with which the layers do, or keep, something else."""


def can_stay_on_device(experts: nn.Module) -> bool:
    """Whether ``keep_on_device`` knows these experts of a ``MoELayer``, and what they are to do."""
    config: Any = experts.config
    kind = next((each for each in KNOWN if _is_one_of(experts, {each})), None)
    return (
        kind is not None
        and not any(getattr(config, option, False) for option in OWN_GEMMS)
        and all(
            _is_one_of(linear, KNOWN[kind]) and getattr(linear, "gtp_remat_size", 1) == 1
            for name in LINEARS
            for linear in _linears(experts, name)
        )
    )


def keep_on_device(experts: nn.Module) -> None:
    """Let them take ``tokens_per_expert`` on the device, and more rows than it counts. What they
    return for those holds anything."""
    if isinstance(experts, _OnDevice):
        return
    for name in LINEARS:
        for linear in _linears(experts, name):
            specialise(linear, _Parameters)
    specialise(experts, _OnDevice)


def _is_one_of(module: nn.Module, names: set[str]) -> bool:
    """Whether it is Megatron-Core's, and no subclass."""
    kind = type(module)
    return kind.__name__ in names and kind.__module__.startswith("megatron.core.")


def _linears(experts: Any, name: str) -> list[nn.Module]:
    owners = getattr(experts, "local_experts", [experts])
    return [getattr(owner, name) for owner in owners]


class _Parameters(nn.Module):
    """A linear layer that is called for its parameters: hooks before a call may gather them."""

    def forward(self) -> tuple[list[Tensor], list[Tensor]]:
        weights, biases = list[Tensor](), list[Tensor]()
        for name, parameter in self.named_parameters(recurse=False):
            (biases if name.startswith("bias") else weights).append(parameter)
        return weights, biases


class _Together(nn.Module):
    """A linear layer of all local experts, on the rows up to the end of each."""

    def __init__(self, linears: Iterable[nn.Module], ends: Tensor) -> None:
        super().__init__()
        self._linears, self._ends = tuple(linears), ends

    def forward(self, rows: Tensor, counts: Any = None) -> tuple[Tensor, None]:
        weights, biases = list[Tensor](), list[Tensor]()
        for linear in self._linears:
            for found, more in zip((weights, biases), linear(), strict=True):
                found += more
        outputs = grouped_linear(rows, self._ends, weights)
        if biases:
            outputs = outputs + bias_of_rows(torch.stack(biases), self._ends, rows.shape[0])
        return outputs, None


class _Counts:
    """In the place of counts, for code that hands a list of them to linear layers."""

    def tolist(self) -> _Counts:
        return self


class _OnDevice(nn.Module):
    """``SequentialMLP`` or ``TEGroupedMLP``."""

    def forward(
        self, rows: Tensor, tokens_per_expert: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        ends = tokens_per_expert.to(rows.device).cumsum(0, dtype=torch.int32)
        layers = {name: _Together(_linears(self, name), ends) for name in LINEARS}
        owners = getattr(self, "local_experts", None)
        one: Any = copy.copy(self if owners is None else owners[0])
        one._modules = {**one._modules, **layers}
        outputs: tuple[Tensor, Tensor | None]
        if owners is None:
            outputs = super(_OnDevice, one).forward(rows, _Counts(), probs)
        else:
            outputs = one.forward(rows, probs)
        return outputs
