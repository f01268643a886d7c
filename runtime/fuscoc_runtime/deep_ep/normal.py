"""Dispatch and combine of DeepEP's normal kernels: a row for a token and a rank, added without
weights on the way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.back import Back
from fuscoc_runtime.deep_ep.refusals import refusal
from fuscoc_runtime.deep_ep.rows import Kind, Tokens, kind_of, pack, unpack
from fuscoc_runtime.deep_ep.specs import Shuffles, check_fixed
from fuscoc_runtime.face.shuffle import Shuffle

NUM_HANDLES = 16
"""Dispatches with ``num_worst_tokens`` after which a handle is outdated; others last."""


@dataclass(frozen=True)
class Way:
    """How rows travel: their kind, and what their shuffle is opened with."""

    kind: Kind
    device: torch.device
    num_sms: int
    options: dict[str, int]

    @property
    def back_options(self) -> dict[str, int]:
        """Those of the shuffle that brings rows back as they are."""
        rows = self.options.get("capacity")
        return {"max_sources": rows, "capacity": rows} if rows else {}


@dataclass(frozen=True, eq=False)
class Handle:
    """The routing of a dispatch, for combine and for dispatches that go the same way.

    Attributes:
        is_token_in_rank: bool [num_tokens, num_ranks], as it was given.
        route: int64 [num_tokens, num_ranks], every rank that a token has gone to, else -1.
        rank_prefix_matrix: int32 [num_ranks, num_ranks], how many tokens the ranks 0 to i send to
            rank j; None with ``num_worst_tokens``, which asks nobody.
    """

    way: Way
    shuffle: Shuffle
    routing: Any
    is_token_in_rank: Tensor
    route: Tensor
    rank_prefix_matrix: Tensor | None

    @property
    def is_fixed(self) -> bool:
        """Whether the dispatch had memory of a fixed size, so that no call waits on the host."""
        return bool(self.way.options)

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
        """All that are in memory of their own."""
        x = self.x if isinstance(self.x, tuple) else (self.x,)
        prefixes = None if self.handle is None else self.handle.rank_prefix_matrix
        return [*x, self.topk_idx, self.topk_weights, prefixes]


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
        kind = kind_of(x, 0 if topk_idx is None else topk_idx.shape[1])
        rows, beside = pack(x)
        if topk_idx is not None and topk_weights is not None:
            beside += [topk_idx.float(), topk_weights]
        goes = layout.is_token_in_rank
        route = torch.where(goes, torch.arange(self.num_ranks, device=goes.device), -1)
        options = self._fixed(rows.shape[0], num_worst_tokens) if num_worst_tokens else {}
        way = Way(kind, rows.device, num_sms, options)
        counts = None if num_worst_tokens else self._counts(layout)
        shuffle, arrived, routing = self._send(way, kind.rows(rows, *beside), route)
        prefixes, per_expert = None, list[int]()
        if counts is not None:
            prefixes, per_expert = self._received(counts, expert_alignment)
            if int(prefixes[-1, self.rank]) != routing.num_slots:
                raise refusal(
                    f"num_tokens_per_rank of all ranks say {int(prefixes[-1, self.rank])} tokens "
                    f"for rank {self.rank}, and is_token_in_rank brought {routing.num_slots}"
                )
            prefixes = prefixes.to(rows.device)
        handle = Handle(way, shuffle, routing, goes, route, prefixes)
        received, with_them = parts_of(arrived)
        idx = weights = None
        if topk_idx is not None and with_them is not None:
            num_rows = routing.key_counts if num_worst_tokens else None
            local = layout.num_tokens_per_expert.shape[0] // self.num_ranks
            gates = with_them[:, kind.num_scales :]
            idx, weights = localised(gates, num_rows, self.rank * local, local, topk_idx.dtype)
        return Received(unpack(received, with_them, x), idx, weights, per_expert, handle)

    def dispatch_again(self, x: Tokens, handle: Handle) -> Received:
        """The same way as an earlier dispatch, without what the router says. Rows of another kind
        than that one's are planned anew."""
        rows, beside = pack(x)
        kind = kind_of(x, handle.way.kind.num_topk)
        fields = kind.rows(rows, *beside)
        if kind == handle.way.kind:
            arrived, _ = handle.shuffle.dispatch(**fields, handle=handle.routing)
        else:
            way = replace(handle.way, kind=kind)
            _, arrived, _ = self._send(way, fields, handle.route)
        return Received(unpack(*parts_of(arrived), x), None, None, None, None)

    def combine(
        self, x: Tensor, handle: Handle, topk_weights: Tensor | None, biases: list[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        kind = handle.way.kind
        if kind_of(x, 0) != Kind(kind.hidden, 0, 0) or len(x) != handle.routing.num_slots:
            raise refusal(
                f"x has the shape {list(x.shape)}; dispatch returned rows of "
                f"[{handle.routing.num_slots}, {kind.hidden}]"
            )
        if topk_weights is not None and topk_weights.shape != (len(x), kind.num_topk):
            raise refusal(
                f"topk_weights have the shape {list(topk_weights.shape)}; the handle is of a "
                f"dispatch with {kind.num_topk} choices a token, which returned {len(x)} rows"
            )
        given = [] if topk_weights is None else [topk_weights]
        if biases:
            goes, way = handle.route >= 0, handle.way
            back = Back(self.shuffles, goes, None, way.num_sms, way.back_options)
            return back.combine(x, topk_weights, biases)
        rows = kind.rows(x.contiguous(), *given)
        result, sums = parts_of(handle.shuffle.combine(rows, handle.routing))
        if topk_weights is None or sums is None:
            return result, None
        return result, sums[:, : kind.num_topk].contiguous()

    def _send(self, way: Way, fields: dict[str, Any], route: Tensor) -> tuple[Shuffle, Any, Any]:
        """The shuffle of rows that travel so, what has arrived, and their routing."""
        constants = way.kind.constants(self.num_ranks)
        shuffle = self.shuffles.get(
            way.kind.spec, constants, way.device, way.num_sms, **way.options
        )
        if way.options:
            check_fixed(shuffle)
        arrived, routing = shuffle.dispatch(**fields, rank_idx=route)
        return shuffle, arrived, routing

    def _fixed(self, num_tokens: int, num_worst_tokens: int) -> dict[str, int]:
        """Options of a shuffle whose ranks have rows for so many tokens."""
        most = num_worst_tokens // self.num_ranks
        if num_tokens > most:
            raise refusal(
                f"num_worst_tokens={num_worst_tokens} leaves {most} tokens to each of "
                f"{self.num_ranks} ranks, and this one has {num_tokens}"
            )
        limits = {"max_sources": most, "capacity": num_worst_tokens}
        return {**limits, "num_handles": NUM_HANDLES}

    def _counts(self, layout: Layout) -> Tensor:
        """int64 [num_ranks, num_ranks + num_experts]: what every rank sends to ranks and experts,
        on the CPU, which needs it to say how many rows there are."""
        mine = torch.cat([layout.num_tokens_per_rank, layout.num_tokens_per_expert]).long()
        return self.shuffles.of_all(mine).cpu()

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


def parts_of(rows: Any) -> tuple[Tensor, Tensor | None]:
    """Rows and what has travelled beside them."""
    return (rows, None) if isinstance(rows, Tensor) else (rows["x"], rows["beside"])
