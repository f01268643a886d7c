"""Contenders of `nvlink.py` that need more than torch and NCCL: used where they can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from benchmarks.moe_cases import Model
from benchmarks.nvlink_contenders import Batch, Contender
from benchmarks.nvlink_nccl import AllToAll, Baseline, gather, key_starts, terms, weighted_sum

DEEP_EP_BYTES = 2_000_000_000
MOST_LOCAL_EXPERTS = 16  # that torch's all_to_all_vdev_2d takes
Make = Callable[[Model, Batch, torch.Tensor], Contender]


def use_nvshmem() -> str | None:
    """Let NVSHMEM hold all symmetric memory of this process, before any is allocated; why not, if
    that cannot be."""
    if not symmetric_memory.is_nvshmem_available():
        return "this torch finds no NVSHMEM"
    symmetric_memory.set_backend("NVSHMEM")
    return None


def find_peers(model: Model, nvshmem: str | None) -> tuple[list[Make], dict[str, str]]:
    """The contenders that can run the model here, and why the others cannot.

    ``nvshmem`` says why NVSHMEM is not in use, if it is not.
    """
    found: list[Make] = []
    skipped: dict[str, str] = {}
    local_experts = model.experts // dist.get_world_size()
    if nvshmem is not None:
        skipped["torch all_to_all_vdev_2d"] = nvshmem
    elif local_experts > MOST_LOCAL_EXPERTS:
        skipped["torch all_to_all_vdev_2d"] = (
            f"it takes at most {MOST_LOCAL_EXPERTS} experts a rank; there are {local_experts}"
        )
    else:
        found.append(lambda *given: TorchAllToAll(*given).contender("torch all_to_all_vdev_2d"))
    if find_spec("deep_ep") is not None:
        found.append(lambda *given: DeepEp(*given).contender("DeepEP + permute"))
    else:
        skipped["DeepEP"] = "`deep_ep` is not installed"
    skipped["NCCL EP"] = "it has no Python interface in this torch's NCCL, " + ".".join(
        map(str, torch.cuda.nccl.version())
    )
    return found, skipped


class TorchAllToAll(Baseline):
    """``torch.ops.symm_mem.all_to_all_vdev_2d``: splits are exchanged on the device, rows arrive in
    the order of the experts; every (token, expert) pair travels."""

    def __init__(self, model: Model, batch: Batch, owner: torch.Tensor) -> None:
        super().__init__(model, batch)
        num_ranks, device = dist.get_world_size(), batch.x.device
        if model.placement != "block" or model.experts % num_ranks:
            raise ValueError("all_to_all_vdev_2d wants equally many consecutive experts a rank")
        self.group = dist.group.WORLD.group_name
        order, splits = self.plan()
        self.token = order // model.topk
        # An expert without rows gets `align` of them all the same.
        per_rank = model.experts // num_ranks
        room = self.num_slots + per_rank * model.align
        sizes = torch.tensor([order.numel(), room], device=device)
        dist.all_reduce(sizes, op=dist.ReduceOp.MAX)
        sent, room = sizes.tolist()
        self.sent = self._symmetric((sent, model.hidden), batch.x.dtype)
        self.back = self._symmetric((sent, model.hidden), batch.x.dtype)
        self.rows = self._symmetric((room, model.hidden), batch.x.dtype)
        self.splits = self._symmetric((model.experts,), torch.int64)
        self.arrived = self._symmetric((2, model.experts), torch.int64)
        self.returned = self._symmetric((2, model.experts), torch.int64)
        self.splits.copy_(splits)
        factor = batch.weights.flatten()[order]
        position = torch.arange(order.numel(), device=device)
        self.own_terms = terms(self.token, position, factor, batch.x.shape[0])
        self.dispatch()
        starts = self.arrived[1].view(per_rank, num_ranks)[:, 0]
        expected = batch.expected
        local = expected.keys - dist.get_rank() * per_rank
        slots = expected.slots - expected.key_starts[local] + starts[local]
        self.batch = replace(batch, expected=replace(expected, slots=slots))

    def _symmetric(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = symmetric_memory.empty(*shape, dtype=dtype, device=self.batch.x.device)
        symmetric_memory.rendezvous(tensor, self.group)
        return tensor.zero_()

    def plan(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The points in the order of their experts, and how many each expert has."""
        flat = self.batch.topk_idx.flatten()
        order = torch.sort(flat, stable=True).indices[(flat < 0).sum() :]
        return order, torch.bincount(flat + 1, minlength=self.model.experts + 1)[1:]

    def dispatch(self) -> None:
        self.sent[: self.token.numel()] = gather(self.batch.x, self.token)
        torch.ops.symm_mem.all_to_all_vdev_2d(
            self.sent, self.rows, self.splits, self.arrived, self.group, self.model.align
        )

    def combine(self) -> None:
        torch.ops.symm_mem.all_to_all_vdev_2d_offset(
            self.rows, self.back, self.arrived, self.returned, self.group
        )
        self.result = weighted_sum(self.back, *self.own_terms)


class DeepEp(AllToAll):
    """DeepEP's kernels for one node, and a permutation into the order of the experts and back.

    Its own planning is part of dispatch; the permutation's is not.
    """

    def __init__(self, model: Model, batch: Batch, owner: torch.Tensor) -> None:
        super().__init__(model, batch, owner, dedup=True)
        import deep_ep

        self.buffer = deep_ep.Buffer(dist.group.WORLD, DEEP_EP_BYTES, 0)

    def plan(self) -> torch.Tensor:
        return key_starts(self.batch, self.model)

    def dispatch(self) -> None:
        batch = self.batch
        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(
            batch.topk_idx, self.model.experts
        )
        arrived, _, _, _, self.handle, _ = self.buffer.dispatch(
            batch.x,
            topk_idx=batch.topk_idx,
            topk_weights=batch.weights,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        self.rows = gather(arrived, self.row_of_slot)

    def combine(self) -> None:
        assert self.fan_in is not None
        self.result, _, _ = self.buffer.combine(weighted_sum(self.rows, *self.fan_in), self.handle)
