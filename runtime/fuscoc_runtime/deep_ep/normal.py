"""Dispatch and combine of DeepEP's normal kernels: a row for a token and a rank, added without
weights on the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.comm.group import all_gather
from fuscoc_runtime.deep_ep.refusals import refusal
from fuscoc_runtime.deep_ep.rows import Tokens, pack, unpack
from fuscoc_runtime.deep_ep.specs import Shuffles
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.face.shuffle import Shuffle

NUM_HANDLES = 16
"""Dispatches with ``num_worst_tokens`` after which a handle is outdated; others last."""


@dataclass(frozen=True, eq=False)
class Handle:
    """The routing of a dispatch, for combine and for dispatches that go the same way.

    Attributes:
        is_token_in_rank: bool [num_tokens, num_ranks].
        rank_prefix_matrix: int32 [num_ranks, num_ranks], how many tokens the ranks 0 to i send to
            rank j; None with ``num_worst_tokens``, which asks nobody.
        num_rows: rows that dispatch returned.
        num_topk: experts of a token that travelled with it; 0 if none did.
    """

    shuffle: Shuffle
    routing: Any
    is_token_in_rank: Tensor
    rank_prefix_matrix: Tensor | None
    num_rows: int
    num_topk: int

    @property
    def is_fixed(self) -> bool:
        """Whether the dispatch had memory of a fixed size, so that no call waits on the host."""
        return self.rank_prefix_matrix is None

    def __getitem__(self, index: int) -> Tensor:
        """The parts of DeepEP's tuple that there are here: 0 and 4."""
        if index == 0 and self.rank_prefix_matrix is not None:
            return self.rank_prefix_matrix
        if index == 4:
            return self.is_token_in_rank
        raise refusal(
            f"handle[{index}] is not here: a handle has rank_prefix_matrix at 0, but not with "
            "num_worst_tokens, and is_token_in_rank at 4"
        )


@dataclass(frozen=True)
class Layout:
    """What a caller has counted of the routing; see ``Buffer.get_dispatch_layout``."""

    num_tokens_per_rank: Tensor
    num_tokens_per_expert: Tensor
    is_token_in_rank: Tensor


@dataclass(frozen=True)
class Received:
    """What a dispatch has brought; see ``Buffer.dispatch``."""

    x: Tokens
    topk_idx: Tensor | None
    topk_weights: Tensor | None
    num_tokens_per_expert: list[int] | None
    handle: Handle | None

    def tensors(self) -> list[Tensor | None]:
        """All of them."""
        x = self.x if isinstance(self.x, tuple) else (self.x,)
        return [*x, self.topk_idx, self.topk_weights]


class Normal:
    """Dispatches and combines of one buffer."""

    def __init__(self, shuffles: Shuffles) -> None:
        self.shuffles, self.group = shuffles, shuffles.group
        self.rank, self.num_ranks = self.group.rank(), self.group.size()

    def dispatch(
        self,
        x: Tokens,
        layout: Layout,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        expert_alignment: int,
        num_worst_tokens: int,
        num_sms: int,
    ) -> Received:
        rows = pack(x)
        num_topk = 0 if topk_idx is None else topk_idx.shape[1]
        constants = {"hidden": rows.shape[1], "peers": self.num_ranks}
        kind = "ranks" if topk_idx is None else "gated"
        if num_topk:
            constants = {"hidden": rows.shape[1], "topk": num_topk, "peers": self.num_ranks}
        options = {}
        if num_worst_tokens:
            most = num_worst_tokens // self.num_ranks
            if rows.shape[0] > most:
                raise refusal(
                    f"num_worst_tokens={num_worst_tokens} leaves {most} tokens to each of "
                    f"{self.num_ranks} ranks, and this one has {rows.shape[0]}"
                )
            options = {"max_sources": most, "capacity": num_worst_tokens}
            options["num_handles"] = NUM_HANDLES
        shuffle = self.shuffles.get(kind, constants, rows.device, num_sms, **options)
        if num_worst_tokens and not isinstance(shuffle.engine, NodeEngine):
            raise refusal(
                f"num_worst_tokens={num_worst_tokens} is not supported for {shuffle.topology}: "
                "memory of a fixed size is of one node"
            )
        counts = None if num_worst_tokens else self._counts(layout, rows.device)
        ranks = torch.arange(self.num_ranks, device=rows.device)
        arrived, routing = shuffle.dispatch(
            **_fields(rows, _gates(topk_idx, topk_weights)),
            rank_idx=torch.where(layout.is_token_in_rank, ranks, -1),
        )
        arrived, gates = _parts(arrived)
        prefixes, per_expert = None, list[int]()
        if counts is not None:
            prefixes, per_expert = self._received(counts, expert_alignment)
            if int(prefixes[-1, self.rank]) != arrived.shape[0]:
                raise refusal(
                    f"num_tokens_per_rank of all ranks say {int(prefixes[-1, self.rank])} tokens "
                    f"for rank {self.rank}, and is_token_in_rank brought {arrived.shape[0]}"
                )
            prefixes = prefixes.to(rows.device)
        handle = Handle(
            shuffle, routing, layout.is_token_in_rank, prefixes, arrived.shape[0], num_topk
        )
        idx = weights = None
        if gates is not None and topk_idx is not None:
            num_rows = routing.key_counts if num_worst_tokens else None
            local = layout.num_tokens_per_expert.shape[0] // self.num_ranks
            idx, weights = localised(gates, num_rows, self.rank * local, local, topk_idx.dtype)
        return Received(unpack(arrived, x), idx, weights, per_expert, handle)

    def dispatch_again(self, x: Tokens, handle: Handle) -> Received:
        """The same way as an earlier dispatch, without what the router says."""
        rows = pack(x)
        gates = None
        if handle.num_topk:
            gates = rows.new_zeros(rows.shape[0], 2 * handle.num_topk, dtype=torch.float32)
        arrived, _ = handle.shuffle.dispatch(**_fields(rows, gates), handle=handle.routing)
        return Received(unpack(_parts(arrived)[0], x), None, None, None, None)

    def combine(
        self, x: Tensor, handle: Handle, topk_weights: Tensor | None, biases: list[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        rows, gates = pack(x), None
        if rows.shape[0] != handle.num_rows:
            raise refusal(f"x has {rows.shape[0]} rows; dispatch returned {handle.num_rows}")
        if topk_weights is not None and topk_weights.shape != (
            handle.num_topk and x.shape[0],
            handle.num_topk,
        ):
            raise refusal(
                f"topk_weights have the shape {list(topk_weights.shape)}; the handle is of a "
                f"dispatch of {handle.num_topk} experts a token, which returned {x.shape[0]} rows"
            )
        if handle.num_topk:
            gates = rows.new_zeros(rows.shape[0], 2 * handle.num_topk, dtype=torch.float32)
            if topk_weights is not None:
                gates[:, handle.num_topk :] = topk_weights
        result, gates = _parts(handle.shuffle.combine(_fields(rows, gates), handle.routing))
        if biases:
            result = sum((bias.float() for bias in biases), result.float()).to(result.dtype)
        if topk_weights is None or gates is None:
            return result, None
        return result, gates[:, handle.num_topk :].contiguous()

    def _counts(self, layout: Layout, device: torch.device) -> Tensor:
        """int64 [num_ranks, num_ranks + num_experts]: what every rank sends to ranks and experts,
        on the CPU, which needs it to say how many rows there are."""
        mine = torch.cat([layout.num_tokens_per_rank, layout.num_tokens_per_expert]).long()
        if "nccl" not in dist.get_backend(self.group):
            mine = mine.cpu()
        return all_gather(mine, self.group).cpu()

    def _received(self, counts: Tensor, alignment: int) -> tuple[Tensor, list[int]]:
        """``rank_prefix_matrix``, and rows of every local expert, rounded up."""
        prefixes = counts[:, : self.num_ranks].cumsum(0).int()
        experts = counts[:, self.num_ranks :].sum(0).view(self.num_ranks, -1)[self.rank]
        return prefixes, (-(-experts // alignment) * alignment).tolist()


def localised(
    gates: Tensor, num_rows: Tensor | None, first: int, num_local: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Experts and weights [n, topk] of rows, from f32 [n, 2 * topk]: experts are numbered from
    ``first`` on; those of other ranks are -1 and weigh 0, and so are all from row ``num_rows`` on.
    """
    experts, weights = gates.chunk(2, dim=1)
    experts = experts - first
    here = (experts >= 0) & (experts < num_local)
    if num_rows is not None:  # of others, rows hold anything
        here &= (torch.arange(len(gates), device=gates.device) < num_rows)[:, None]
    return torch.where(here, experts, -1).to(dtype), torch.where(here, weights, 0)


def _gates(topk_idx: Tensor | None, topk_weights: Tensor | None) -> Tensor | None:
    if topk_idx is None or topk_weights is None:
        return None
    return torch.cat([topk_idx.float(), topk_weights], dim=1)


def _fields(rows: Tensor, gates: Tensor | None) -> dict[str, Any]:
    return {"x": rows} if gates is None else {"x": rows, "gates": gates}


def _parts(rows: Any) -> tuple[Tensor, Tensor | None]:
    """Rows and what the router says of them, if that travels."""
    return (rows, None) if isinstance(rows, Tensor) else (rows["x"], rows["gates"])
