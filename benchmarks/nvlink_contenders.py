"""What `benchmarks/nvlink.py` compares: inputs, the face of a contender, and fuscoc's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.moe_bound import Bound
from benchmarks.moe_cases import (
    Expected,
    Model,
    check_combine,
    check_rows,
    expert_outputs,
    gather_ragged,
)
from fuscoc_runtime import Shuffle


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's inputs, and what must come out."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    weights: torch.Tensor
    all_idx: list[torch.Tensor]
    expected: Expected

    def which_choice(self) -> torch.Tensor:
        """int64 [rows here]: for which of its token's choices a row came."""
        expected = self.expected
        which = torch.empty_like(expected.slots)
        for r, idx in enumerate(self.all_idx):
            mine = expected.ranks == r
            chosen = idx[expected.tokens[mine]] == expected.keys[mine].unsqueeze(1)
            which[mine] = chosen.float().argmax(1)
        return which

    def row_weights(self) -> torch.Tensor:
        """f32 [rows here]: the weight of each; collective."""
        expected, which = self.expected, self.which_choice()
        found = torch.empty(expected.slots.numel(), device=self.x.device)
        for r, weights in enumerate(gather_ragged(self.weights, None)):
            mine = expected.ranks == r
            found[mine] = weights[expected.tokens[mine], which[mine]]
        return found


@dataclass(frozen=True, eq=False)
class Contender:
    """Two calls to time: ``dispatch()`` and ``combine()``, if there is one; ``verify()`` says what
    is wrong.

    ``plan()`` is what a call needs but ``dispatch`` was given for free, if anything. ``bound`` is
    that of a contender whose rows are not the others'.
    """

    name: str
    dispatch: Callable[[], object]
    combine: Callable[[], object] | None
    verify: Callable[[], list[str]]
    plan: Callable[[], object] | None = None
    bound: Bound | None = None


class Fuscoc:
    """A compiled artifact, as a user runs it: planning, counts and weights included."""

    def __init__(self, shuffle: Shuffle, model: Model, batch: Batch) -> None:
        self.shuffle, self.model, self.batch = shuffle, model, batch
        self.dispatch()
        self.outputs = self.rows.new_zeros(self.handle.num_slots, model.hidden)

    def dispatch(self) -> None:
        batch = self.batch
        self.rows, self.handle = self.shuffle.dispatch(
            batch.x, topk_idx=batch.topk_idx, topk_weights=batch.weights
        )

    def combine(self) -> None:
        self.result = self.shuffle.combine(self.outputs, self.handle)

    def verify(self) -> list[str]:
        self.rows.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        dist.barrier()
        self.dispatch()
        batch = self.batch
        wrong = check_rows(self.handle, [self.rows], [batch.x], batch.expected, None)
        index = self.handle.row_index
        self.outputs = expert_outputs(self.rows, batch.expected, self.model.experts, index)
        self.combine()
        wrong += check_combine(
            self.result, batch.x, batch.topk_idx, batch.weights, self.model.experts
        )
        self.shuffle.check()
        return wrong

    def contender(self, name: str, bound: Bound | None = None) -> Contender:
        return Contender(name, self.dispatch, self.combine, self.verify, bound=bound)
