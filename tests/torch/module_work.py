"""What the ranks of ``test_modules.py`` do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from fuscoc_runtime import FuscoRuntimeError, Shuffle
from tests.torch.rank_work import HIDDEN, KEYS, TIMEOUT, TOPK


class Block(nn.Module):
    """A router and a dense part, the same on all ranks, and this rank's experts."""

    def __init__(self, shuffle: Shuffle, num_local: int) -> None:
        super().__init__()
        self.shuffle = shuffle
        self.router = nn.Linear(HIDDEN, KEYS)
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.experts = nn.Parameter(torch.rand(num_local, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        weights, idx = self.router(x).softmax(-1).topk(TOPK)
        rows, handle = self.shuffle.dispatch(self.dense(x), idx=idx, weights=weights)
        slots = torch.arange(len(rows))
        key = torch.searchsorted(handle.key_offsets[1:], slots, right=True)
        experts = self.experts[key.clamp(max=len(self.experts) - 1)]
        return x + self.shuffle.combine((rows * experts).tanh(), handle)


def wrapped(group: Any, artifact: str, wrapper: str, options: dict[str, Any]) -> float:
    """The largest difference of a dense weight's gradient from the mean over the ranks."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    with Shuffle(artifact, group=group, timeout=TIMEOUT, **options) as shuffle:
        torch.manual_seed(0)
        model = nn.Sequential(Block(shuffle, KEYS // num_ranks))
        x = torch.randn(5 + rank, HIDDEN)
        model(x).square().sum().backward()
        expected = {}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            if not name.endswith("experts"):
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= num_ranks
            expected[name] = parameter.grad
        model.zero_grad()
        if wrapper == "ddp":
            local = [name for name in expected if name.endswith("experts")]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, local)
            parallel = DistributedDataParallel(model, process_group=group)
            parallel(x).square().sum().backward()
        else:
            mesh = DeviceMesh.from_group(group, "cpu")
            for block in model:
                fully_shard(block, mesh=mesh, ignored_params={block.experts})
            model(x).square().sum().backward()
    errors = []
    for name, parameter in model.named_parameters():
        found: Any = parameter.grad
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        errors.append(float((found - expected[name]).abs().max()))
    return max(errors)


def distributed_tensors(group: Any, artifact: str) -> list[str]:
    """What is said of a DTensor, with and without a gradient."""
    mesh = DeviceMesh.from_group(group, "cpu")
    shuffle = Shuffle(artifact, group=group, timeout=TIMEOUT)
    messages = []
    for wanted in (False, True):
        x = distribute_tensor(torch.randn(8, HIDDEN), mesh, [Shard(0)]).requires_grad_(wanted)
        idx = torch.zeros(4, TOPK, dtype=torch.int64)
        try:
            shuffle.dispatch(x, idx=idx, weights=torch.ones(4, TOPK))
        except FuscoRuntimeError as error:
            messages.append(str(error))
    assert len(messages) == 2
    return messages
