"""A model of transformers on one rank, with parallel experts beside the unmodified one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fuscoc.torch import expert_parallel, whole_state_dict
from tests.adapters.transformers_models import EXPERTS, batch, build, prompts

TIMEOUT = 60.0
STEPS, RATE = 10, 0.05
EMPTY = 2
"""The rank that trains on nothing."""
TOLERANCE = 2e-5


def spread(group: Any, name: str, options: Mapping[str, Any], **settings: Any) -> Any:
    return expert_parallel(build(name, **settings), group, timeout=TIMEOUT, **options)


def differences(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], group: Any) -> list[str]:
    """What of ``found`` differs from ``wanted``, of which experts are cut to this rank's."""
    local = EXPERTS // dist.get_world_size(group)
    own = slice(dist.get_rank(group) * local, (dist.get_rank(group) + 1) * local)
    wrong = []
    for name, value in wanted.items():
        expected = value[own] if ".experts." in name else value
        error = float((found[name] - expected).abs().max())
        if not error <= TOLERANCE * max(1.0, float(expected.abs().max())):
            wrong.append(f"{name} is off by {error:.1e}")
    assert found.keys() == wanted.keys()
    return wrong


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters()}


class Alone:
    """The unmodified model, trained on the batches of all ranks one after the other."""

    def __init__(self, name: str, num_ranks: int, **settings: Any) -> None:
        self.model = build(name, **settings)
        self.num_ranks = num_ranks

    def backward(self, aux: Mapping[str, Any]) -> list[float]:
        """Leaves the gradients of the mean of the ranks' losses, which are returned."""
        losses = []
        for rank in range(self.num_ranks):
            loss = loss_of(self.model, rank, self.num_ranks, aux)
            (loss / self.num_ranks).backward()
            losses.append(loss.item())
        return losses


def loss_of(model: Any, rank: int, num_ranks: int, aux: Mapping[str, Any]) -> Any:
    """Of a rank's batch, as a trainer has it: the ranks' mean is the mean over all their labels."""
    labels = [batch(each, EMPTY)["labels"][:, 1:] for each in range(num_ranks)]
    count = sum(int((each != -100).sum()) for each in labels)
    return model(**batch(rank, EMPTY), num_items_in_batch=count / num_ranks, **aux).loss


def train(
    group: Any, name: str, options: Mapping[str, Any], checkpointing: bool = False
) -> list[str]:
    """What differs: logits, the first gradients, the loss of ten steps and the weights after."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    aux = {} if name == "DeepseekV3" else {"output_router_logits": True}
    alone, model = Alone(name, num_ranks), spread(group, name, options)
    given = prompts(rank)
    wrong = differences(
        {"logits": model(**given).logits}, {"logits": alone.model(**given).logits}, group
    )
    for each in (alone.model, model):
        each.train()
        if checkpointing:
            each.gradient_checkpointing_enable()
    parallel = DistributedDataParallel(model, process_group=group)
    optimizers = [
        torch.optim.SGD(each.parameters(), RATE, momentum=0.9) for each in (alone.model, model)
    ]
    for step in range(STEPS):
        wanted = alone.backward(aux)[rank]
        loss = loss_of(parallel, rank, num_ranks, aux)
        loss.backward()
        if abs(loss.item() - wanted) > TOLERANCE * max(1.0, abs(wanted)):
            wrong.append(f"the loss of step {step} is {loss.item()} and not {wanted}")
        if step == 0:
            wrong += differences(gradients(model), gradients(alone.model), group)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return wrong + differences(model.state_dict(), alone.model.state_dict(), group)


def generate(group: Any, name: str, options: Mapping[str, Any]) -> list[str]:
    """What differs of the tokens; ranks end after different numbers of steps."""
    rank = dist.get_rank(group)
    alone, model = build(name), spread(group, name, options)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    wrong = []
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"do_sample": False},
        "sampled": {"do_sample": True},
        "beams": {"do_sample": False, "num_beams": 2},
    }
    for kind, settings in kinds.items():
        settings |= {"max_new_tokens": 2 + 2 * rank}
        torch.manual_seed(rank)
        wanted = alone.generate(**prompts(rank), **settings)
        torch.manual_seed(rank)
        found = model.generate(**prompts(rank), **settings)
        if not torch.equal(found, wanted):
            wrong.append(f"{kind}: {found.tolist()} and not {wanted.tolist()}")
    most = 2 + 2 * (dist.get_world_size(group) - 1)
    if len(passes) < len(kinds) * most:
        wrong.append(f"{len(passes)} passes, fewer than the rank with most tokens needs")
    return wrong


def save(group: Any, name: str, folder: str) -> list[str]:
    """What differs between files of the whole model and of the unmodified one, or is not loaded."""
    rank = dist.get_rank(group)
    alone, model = build(name), spread(group, name, {})
    whole = whole_state_dict(model)
    assert whole.keys() == (alone.state_dict().keys() if rank == 0 else set())
    model.save_pretrained(Path(folder, "spread"))
    if rank == 0:
        alone.save_pretrained(Path(folder, "alone"))
    dist.barrier(group)
    wrong = [
        f"{path.name} differs"
        for path in sorted(Path(folder, "alone").iterdir())
        if path.read_bytes() != Path(folder, "spread", path.name).read_bytes()
    ]
    own = {label: value.clone() for label, value in model.state_dict().items()}
    for loaded in (alone.state_dict(), own):
        for weight in model.parameters():
            weight.data.zero_()
        model.load_state_dict(loaded)
        wrong += differences(model.state_dict(), alone.state_dict(), group)
    return wrong
