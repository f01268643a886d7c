"""Weights of a combine, on their way from the ranks of segments to those of rows.

Weights that come with dispatch can travel beside its rows, so that combine need not wait for them.
All ranks have to exchange them at the same time, whatever each of them was given when: in every
combine all ranks tell whether theirs came with dispatch, and if all did, those of the next dispatch
travel with it. A rank that has none by then takes part with zeros, and tells that in combine.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllToAll, Request
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.plan import RankPlan

MISSING, CAME = 1, 2
"""What a rank tells in combine: the others do not have its weights; they came with dispatch."""

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class SentWeights:
    """What has travelled with a dispatch: the weights that were ``given``, as they were then, and
    those of this rank's rows, which it ``received`` for them."""

    given: Tensor | None
    version: int
    received: Tensor

    def are(self, weights: Tensor) -> bool:
        """Whether ``weights`` have travelled, and have not been changed since."""
        return self.given is weights and self.version == version(weights) != UNKNOWN


def travelling(machine: Machine, weights: Mapping[str, Tensor], num_sources: int) -> Tensor | None:
    """[num_points]: the weights that travel with this dispatch, in domain order; ``None`` if none
    do, on any rank: the latest combine has told."""
    weight = machine.shuffle.program.weight
    if not machine.sends_weights or weight is None:
        return None
    given = weights.get(weight.name)
    if given is None:
        dtype = TORCH_DTYPES[weight.dtype]
        num_points = num_sources * machine.shuffle.program.num_points_each(
            machine.context.topology.num_ranks
        )
        return torch.zeros(num_points, dtype=dtype, device=machine.device)
    return given.detach().reshape(-1)


def exchange(weights: Tensor, plan: RankPlan) -> AllToAll:
    """Weights [num_points] in domain order, to the ranks of the rows."""
    ordered = weights[plan.point_order]
    return AllToAll(ordered, plan.point_send_counts, plan.point_recv_counts)


def sent_weights(
    machine: Machine, weights: Mapping[str, Tensor], received: Tensor | None
) -> SentWeights | None:
    """What has travelled with a dispatch that was given ``weights``."""
    weight = machine.shuffle.program.weight
    if received is None or weight is None:
        return None
    given = weights.get(weight.name)
    return SentWeights(given, 0 if given is None else version(given), received)


def word(sent: SentWeights | None, came: Mapping[str, Tensor], given: Mapping[str, Any]) -> int:
    """What this rank tells in combine. ``came``: weights of dispatch; ``given``: those of combine,
    which are taken instead."""
    if given or not came:
        return MISSING
    [weights] = came.values()
    return CAME if sent is not None and sent.are(weights) else CAME | MISSING


def weights_of_rows(
    machine: Machine,
    weights: Tensor | None,
    plan: RankPlan,
    sent: SentWeights | None,
    words: Sequence[int],
) -> Generator[Request, Any, dict[str, Tensor]]:
    """The weights of this rank's rows; collective, unless all have travelled with dispatch.

    ``words``: what all ranks have told.
    """
    if weights is None:
        return {}
    machine.sends_weights = all(each & CAME for each in words)
    if sent is not None and not any(each & MISSING for each in words):
        return named_weights(machine, sent.received)
    return named_weights(machine, (yield exchange(weights.reshape(-1), plan)))


def named_weights(machine: Machine, received: Tensor) -> dict[str, Tensor]:
    """The weights of this rank's rows, as a step binds them."""
    weight = machine.shuffle.program.weight
    assert weight is not None
    return {f"weights.{weight.name}": received}


def version(tensor: Tensor) -> int:
    """Grows when the tensor is changed, where torch counts that."""
    return UNKNOWN if tensor.is_inference() else tensor._version


def with_weights(handle: Any, weights: Mapping[str, Tensor]) -> Any:
    """A handle of any engine for the same routing, with these weights by name; its reply has them,
    too, by which rows come back there."""
    if handle.reply is not None:
        handle = replace(handle, reply=with_weights(handle.reply, weights))
    return replace(handle, weights=weights)
