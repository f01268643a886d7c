"""Combine where the sum begins with biases: DeepEP rounds it once, so what engines have rounded is
no use. Rows go back as they are, and are added where their token is, in the order that DeepEP has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from fuscoc_runtime.deep_ep.refusals import refusal
from fuscoc_runtime.deep_ep.specs import Shuffles
from fuscoc_runtime.engine.row_kernels import add_rows

Bias = Tensor | tuple[Tensor | None, Tensor | None] | None


@dataclass(frozen=True, eq=False)
class Back:
    """The way back of rows that are one for a token and a rank, by source rank, then token.

    Attributes:
        goes: bool [num_tokens, num_ranks], which tokens of this rank have gone where.
        order: int64 [num_tokens, num_ranks], the ranks in the order in which their rows are added;
            None is that of their numbers.
        num_sms: as ``Shuffles.get`` takes it.
        limits: of memory of a fixed size, so that nothing waits on the host; else none.
    """

    shuffles: Shuffles
    goes: Tensor
    order: Tensor | None
    num_sms: int
    limits: dict[str, int] = field(default_factory=dict)

    def combine(
        self, x: Tensor, weights: Tensor | None, biases: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """bf16 [num_tokens, hidden], each the sum of its biases and rows in f32, rounded once, and
        the sums of the ``weights`` f32 [num_rows, topk]; collective."""
        num_tokens, num_ranks = self.goes.shape
        for bias in biases:
            if bias.dtype != x.dtype or bias.shape != (num_tokens, x.shape[1]):
                raise refusal(
                    f"bias is {bias.dtype} of the shape {list(bias.shape)}; it is {x.dtype} "
                    f"{[num_tokens, x.shape[1]]}"
                )
        counts = self.shuffles.of_all(self.goes.sum(0))
        begins = counts.cumsum(1) - counts  # of the slots that a source keeps for a rank
        beside = x.new_zeros(len(x), 1, dtype=torch.float32) if weights is None else weights
        constants = {"hidden": x.shape[1], "beside": beside.shape[1]}
        shuffle = self.shuffles.get("back", constants, x.device, self.num_sms, **self.limits)
        arrived, _ = shuffle.dispatch(
            x=x.contiguous(),
            beside=beside,
            places=self._places(len(x), counts, begins),
            slots=max(1, num_tokens * num_ranks),
        )
        place = begins[self.shuffles.group.rank()] + self.goes.cumsum(0) - 1
        index = torch.where(self.goes, place, -1)
        if self.order is not None:
            index = index.gather(1, self.order)
        result = add_rows(arrived["x"], index, biases)
        return result, None if weights is None else add_rows(arrived["beside"], index)

    def _places(self, num_rows: int, counts: Tensor, begins: Tensor) -> Tensor:
        """int64 [num_rows, 2]: where every row came from, -1 behind the last one, and its slot."""
        rank = self.shuffles.group.rank()
        ends = counts[:, rank].cumsum(0)
        rows = torch.arange(num_rows, device=counts.device)
        source = torch.searchsorted(ends, rows, right=True)
        # Behind the last row there is no rank, and any slot will do.
        first = pad(begins[:, rank] - ends + counts[:, rank], (0, 1))
        source_or_none = torch.where(source < len(counts), source, -1)
        return torch.stack([source_or_none, rows + first[source]], dim=1)


def biases_of(bias: Bias) -> list[Tensor]:
    """Those that there are."""
    several = bias if isinstance(bias, tuple) else (bias,)
    return [each for each in several if each is not None]


def by_last_choice(topk_idx: Tensor, num_ranks: int, num_local: int) -> Tensor:
    """int64 [num_tokens, num_ranks]: the ranks by the last of a token's choices that each has,
    those without any first."""
    ranks = torch.arange(num_ranks, device=topk_idx.device)
    is_there = (topk_idx // num_local)[:, :, None] == ranks
    places = torch.arange(1, topk_idx.shape[1] + 1, device=topk_idx.device)[:, None]
    return (is_there * places).amax(1).argsort(dim=1, stable=True)
