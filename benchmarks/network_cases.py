"""What `benchmarks/network.py` runs on: routings, batches, and what must come out of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu_check import Moe, apply_expert, expected_rows, gather
from fuscoc_runtime.topology import Topology

KINDS = ("uniform", "single-node", "imbalanced", "skewed", "cyclic")
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Model:
    """The shuffle of a model, bf16, experts by block."""

    hidden: int = 7168
    experts: int = 256
    topk: int = 8
    align: int = 128

    @property
    def row_bytes(self) -> int:
        return 2 * self.hidden

    def spec(self, options: str) -> str:
        return f"""shuffle moe {{
  const hidden = {self.hidden}, experts = {self.experts}, topk = {self.topk}
  index t : tokens
  index k : topk
  index e : experts
  segment token {{ x : bf16[hidden] }}
  layout  by_token[t]     of token
  layout  by_expert[e, s] of token packed(s) align {self.align}
  place   e on rank by block
  route   r(t, k) -> e = input topk_idx : int64
  weight  w(t, k) : f32 = input topk_weights
  dispatch by_token[t] -> by_expert[r(t, k), *] {options}
  combine  reverse reduce sum(w)
}}
"""


def routing(kind: str, tokens: int, model: Model, topology: Topology, rank: int) -> Tensor:
    """``topk_idx``, int64 [tokens, topk], on the host, by a fixed seed.

    ``uniform``: random experts. ``single-node``: all of a token's on one random node.
    ``imbalanced``: the first half of a node's ranks send 95 % of their tokens to other nodes, the
    rest 5 %; all of a token's experts are on one node. ``skewed``: Zipf(1.0) popularity.
    ``cyclic``: all of a token's experts are on the next node for 80 %, on any one for the rest.
    """
    random = torch.Generator().manual_seed(1000 + rank)
    scores = torch.rand(tokens, model.experts, generator=random)
    nodes, m = topology.num_nodes, topology.ranks_per_node
    node_of_expert = torch.arange(model.experts) * nodes // model.experts
    if kind == "single-node":
        chosen = torch.randint(nodes, (tokens, 1), generator=random)
        scores = torch.where(node_of_expert == chosen, scores, scores - 1)
    elif kind == "imbalanced":
        mine = topology.node(rank)
        leaves = 0.95 if topology.local_rank(rank) < max(1, m // 2) else 0.05
        away = torch.rand(tokens, 1, generator=random) < leaves
        other = (mine + torch.randint(1, nodes, (tokens, 1), generator=random)) % nodes
        chosen = torch.where(away, other, mine)
        scores = torch.where(node_of_expert == chosen, scores, scores - 1)
    elif kind == "cyclic":
        follows = torch.rand(tokens, 1, generator=random) < 0.8
        anywhere = torch.randint(nodes, (tokens, 1), generator=random)
        chosen = torch.where(follows, (topology.node(rank) + 1) % nodes, anywhere)
        scores = torch.where(node_of_expert == chosen, scores, scores - 1)
    elif kind == "skewed":
        order = torch.randperm(model.experts, generator=torch.Generator().manual_seed(11))
        popularity = 1.0 / (order + 1).float()
        # Gumbel top-k draws without replacement in proportion to popularity.
        scores = popularity.log() - (-scores.clamp(1e-9, 1 - 1e-9).log()).log()
    elif kind != "uniform":
        raise ValueError(f"no routing is called {kind}")
    return scores.topk(model.topk, dim=1).indices


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's inputs, and what every contender must make of them."""

    moe: Moe
    topology: Topology
    rank: int

    @cached_property
    def expected(self) -> tuple[Tensor, Tensor, int]:
        """(slots, the rows they must hold, number of slots) of this rank; collective."""
        return expected_rows(self.moe, self.rank, self.topology.num_ranks)

    @cached_property
    def all_idx(self) -> Tensor:
        """int64 [ranks, tokens, topk]; collective."""
        return gather(self.moe.topk_idx)

    def wrong_rows(self, rows: Tensor) -> list[str]:
        """What is wrong with expert-major rows; bit by bit."""
        slots, wanted, num_slots = self.expected
        if len(rows) != num_slots:
            return [f"{len(rows)} slots instead of {num_slots}"]
        same = (rows[slots].view(torch.int16) == wanted.view(torch.int16)).all(1)
        return [] if bool(same.all()) else [f"{int((~same).sum())} rows are wrong"]

    def wrong_result(self, result: Tensor) -> list[str]:
        """What is wrong with the weighted sums of ``apply_expert``'s rows, against f64."""
        moe = self.moe
        total = torch.zeros(moe.x.shape, dtype=torch.float64, device=moe.x.device)
        for expert, weight in zip(moe.topk_idx.unbind(1), moe.topk_weights.unbind(1), strict=True):
            total += apply_expert(moe.x, expert).double() * weight.double().unsqueeze(1)
        error = float((result.double() - total).norm() / total.norm())
        return [] if error < TOLERANCE else [f"the sums are off by {error:.1e}"]

    def work(self, rows: Tensor) -> Tensor:
        """What the experts make of the rows; padding stays."""
        slots, _, _ = self.expected
        done = rows.clone()
        done[slots] = apply_expert(rows[slots], self.expert_of_row)
        return done

    @cached_property
    def expert_of_row(self) -> Tensor:
        """int64 [rows here], the expert of each of ``expected``'s slots."""
        per_rank = self.moe.num_experts // self.topology.num_ranks
        idx = self.all_idx.flatten()
        here = idx[idx // per_rank == self.rank]
        return here.sort(stable=True).values

    def crossing(self) -> Tensor:
        """int64 [nodes, nodes], rows from a node to another if every token goes once to every node
        that wants it; collective."""
        nodes, m = self.topology.num_nodes, self.topology.ranks_per_node
        node = self.all_idx // (self.moe.num_experts // nodes)  # [ranks, tokens, topk]
        wanted = torch.stack([(node == target).any(2).sum(1) for target in range(nodes)], 1)
        tile = wanted.view(nodes, m, nodes).sum(1).cpu()
        return tile.fill_diagonal_(0)


def make_batch(model: Model, idx: Tensor, topology: Topology, device: torch.device) -> Batch:
    """Random rows and weights for a routing."""
    rank = dist.get_rank()
    random = torch.Generator(device).manual_seed(rank)
    x = torch.randn(len(idx), model.hidden, generator=random, device=device).bfloat16()
    weights = torch.rand(len(idx), model.topk, generator=random, device=device)
    weights /= weights.sum(1, keepdim=True)
    moe = Moe(model.experts, model.align, x, idx.to(device), weights)
    return Batch(moe, topology, rank)
