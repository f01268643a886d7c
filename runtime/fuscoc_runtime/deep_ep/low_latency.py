"""Dispatch and combine of DeepEP's low-latency kernels: for every local expert a block of slots, of
which the first are filled, and the weighted sum back.

Every rank gathers which experts all tokens have, and counts by itself: so slots are known wherever
they are needed, and blocks begin where the consumer wants them. Memory has a fixed size, between
nodes where slabs carry that: nothing waits on the host, and a CUDA graph can capture the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fuscoc_runtime.deep_ep.quantised import Quantised
from fuscoc_runtime.deep_ep.refusals import refusal, refuse_capture
from fuscoc_runtime.deep_ep.specs import Shuffles
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.weights import combine_weighed
from fuscoc_runtime.errors import AdapterError
from fuscoc_runtime.face.shuffle import Shuffle


@dataclass(frozen=True, eq=False)
class LowLatencyHandle:
    """The routing of a dispatch.

    Attributes:
        src_info: int32 [num_local_experts, slots of an expert], the source's number of the token.
        layout_range: int64 [num_local_experts, num_ranks], where the rows of a rank begin among the
            slots of an expert, times 2^32, plus how many they are.
        choices: (tokens of this rank, topk).
        buffer: bf16 [num_local_experts, slots of an expert, hidden], if somebody has asked for it:
            see ``Buffer.get_next_low_latency_combine_buffer``.
    """

    shuffle: Shuffle
    routing: Any
    kind: Quantised
    src_info: Tensor
    layout_range: Tensor
    hidden: int
    choices: torch.Size
    buffer: list[Tensor]

    def __getitem__(self, index: int) -> Tensor:
        """The parts of DeepEP's tuple that are tensors: 0 and 1."""
        if index not in (0, 1):
            raise refusal(f"handle[{index}] is not here: src_info is at 0, layout_range at 1")
        return self.src_info if index == 0 else self.layout_range


@dataclass(frozen=True)
class Places:
    """Where tokens go: ``places`` int64 [num_tokens, topk, 2], the rank, -1 if it is dropped, and
    the slot there; ``counts`` int32 [num_local_experts], rows of this rank's experts. The others
    are those of ``LowLatencyHandle``."""

    places: Tensor
    counts: Tensor
    src_info: Tensor
    layout_range: Tensor


class LowLatency:
    """Dispatches and combines of one buffer. The rows of two dispatches last side by side."""

    def __init__(self, shuffles: Shuffles) -> None:
        self.shuffles, self.group = shuffles, shuffles.group
        self.rank, self.num_ranks = self.group.rank(), self.group.size()
        self._turn = 0

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        max_tokens: int,
        num_experts: int,
        kind: Quantised,
        num_sms: int,
    ) -> tuple[Any, Tensor, LowLatencyHandle]:
        """Rows by local expert and slot, the counts, and the handle; see ``Buffer``."""
        (num_tokens, hidden), num_topk = x.shape, topk_idx.shape[1]
        kind.check(hidden)
        if num_tokens > max_tokens:
            raise refusal(
                f"x has {num_tokens} tokens; num_max_dispatch_tokens_per_rank={max_tokens}"
            )
        if num_experts % self.num_ranks:
            raise refusal(f"{self.num_ranks} ranks do not divide num_experts={num_experts}")
        self._turn ^= 1
        local = num_experts // self.num_ranks
        spec = kind.spec(hidden, num_topk)
        limits: dict[str, Any] = {"max_sources": max_tokens, "capacity": num_experts * max_tokens}
        both = [self.shuffles.get(*spec, x.device, num_sms, copy, **limits) for copy in (0, 1)]
        shuffle = both[self._turn]
        if not isinstance(shuffle.engine, NodeEngine):
            refuse_capture(f"low-latency calls of {shuffle.topology}")
        experts = self._of_all(topk_idx.long(), max_tokens, -1)
        found = count_places(experts, self.rank, num_experts)
        # Combine is told the weights: those that dispatch of a fixed size has to be given are none.
        unit = torch.ones(num_tokens, num_topk, device=x.device, dtype=torch.float32)
        arrived, routing = shuffle.dispatch(
            **kind.fields(x),
            places=found.places[:num_tokens],
            slots=num_experts * max_tokens,
            topk_weights=unit,
        )
        rows = kind.received(arrived, local, self.num_ranks * max_tokens)
        info = found.src_info, found.layout_range
        handle = LowLatencyHandle(shuffle, routing, kind, *info, hidden, topk_idx.shape, [])
        return rows, found.counts, handle

    def combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: LowLatencyHandle
    ) -> Tensor:
        """bf16 [num_tokens, hidden]: the weighted sums of the rows [local, slots, hidden]."""
        max_tokens, engine = handle.src_info.shape[1] // self.num_ranks, handle.shuffle.engine
        try:
            self._check(x, topk_weights, handle)
        except AdapterError:
            if isinstance(engine, NodeEngine):  # the other ranks have joined the call
                with engine.order.turn():
                    self._of_all(x.new_zeros(handle.choices, dtype=torch.float32), max_tokens, 0)
                    engine.refuse_combine(handle.routing)
            raise
        weights = topk_weights.masked_fill(topk_idx < 0, 0)
        rows, shuffle = handle.kind.rows(x), handle.shuffle
        if isinstance(engine, NodeEngine):
            gather = partial(self._of_all, weights, max_tokens, 0)
            return combine_weighed(engine, rows, handle.routing, gather)["x"]
        result = shuffle.combine(rows, handle.routing, topk_weights=weights)
        return result if isinstance(result, Tensor) else result["x"]

    def _check(self, x: Tensor, topk_weights: Tensor, handle: LowLatencyHandle) -> None:
        wanted = (*handle.src_info.shape, handle.hidden)
        if x.shape != wanted or x.dtype != torch.bfloat16:
            raise refusal(
                f"x is {x.dtype} of the shape {list(x.shape)}; it is torch.bfloat16 {list(wanted)}"
            )
        if topk_weights.shape != handle.choices or topk_weights.dtype != torch.float32:
            raise refusal(
                f"topk_weights are {topk_weights.dtype} of the shape {list(topk_weights.shape)}; "
                f"they are torch.float32 {list(handle.choices)}"
            )

    def _of_all(self, of_tokens: Tensor, max_tokens: int, padding: int) -> Tensor:
        """[num_ranks, max_tokens, topk] of all ranks' tokens, with ``padding`` behind them."""
        missing = max_tokens - len(of_tokens)
        return self.shuffles.of_all(pad(of_tokens, (0, 0, 0, missing), value=padding))


def count_places(experts: Tensor, rank: int, num_experts: int) -> Places:
    """Where the tokens of ``rank`` go, and what its own experts get.

    ``experts`` int64 [num_ranks, tokens, topk] are those of all ranks' tokens, -1 for none. The
    slots of an expert are in the order of (rank, token, choice). Nothing waits for a GPU.
    """
    num_ranks, max_tokens, num_topk = experts.shape
    local, num_slots = num_experts // num_ranks, num_ranks * max_tokens
    flat, device = experts.reshape(-1), experts.device
    known = flat.clamp(min=-1, max=num_experts)  # those that are none come to the ends
    ones = torch.ones_like(known, dtype=torch.int64)
    per_rank = torch.zeros(num_ranks, num_experts + 2, dtype=torch.int64, device=device)
    per_rank.scatter_add_(1, known.view(num_ranks, -1) + 1, ones.view(num_ranks, -1))
    starts = per_rank.sum(0).cumsum(0) - per_rank.sum(0)
    by_expert, order = known.sort(stable=True)
    among = torch.empty_like(order)
    among[order] = torch.arange(len(order), device=device) - starts[by_expert + 1]
    is_there = flat >= 0  # the shuffle refuses an expert that is too large: no rank has it
    owner = torch.where(is_there, flat // local, -1)
    # Tokens that name an expert twice may want more slots than it has: the shuffle refuses those.
    slot = torch.where(among < num_slots, flat % local * num_slots + among, local * num_slots)

    counts = per_rank[:, 1 + rank * local : 1 + (rank + 1) * local].T
    begins = counts.cumsum(1) - counts
    token = torch.arange(len(flat), device=device) // num_topk % max_tokens
    src_info = torch.zeros(local * num_slots + 1, dtype=torch.int32, device=device)
    src_info[torch.where(owner == rank, slot, local * num_slots)] = token.int()
    places = torch.stack([owner, slot], dim=-1).view(num_ranks, max_tokens, num_topk, 2)
    return Places(
        places[rank],
        counts.sum(1).int(),
        src_info[:-1].view(local, num_slots),
        begins << 32 | counts,
    )
