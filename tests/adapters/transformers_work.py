"""A model of transformers on one rank, with parallel experts beside the unmodified one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from fuscoc.torch import clip_grad_norm_, expert_parallel, whole_state_dict
from fuscoc_runtime.adapters.transformers_model import find_moe
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.process import ProcessEngine
from tests.adapters.transformers_models import (
    EXPERTS,
    FIRST,
    HIDDEN,
    TOPK,
    VOCABULARY,
    batch,
    build,
    prompts,
)

TIMEOUT = 60.0
RATE, MOST_NORM = 0.05, 0.5
EMPTY = 2
"""The rank that trains on nothing."""
TOLERANCE = 2e-5
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 2},
    "static": {"do_sample": False, "cache_implementation": "static"},
}


def device_of(group: Any) -> torch.device:
    on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def alone_and_spread(group: Any, name: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The unmodified model, and one with parallel experts."""
    device = device_of(group)
    model = expert_parallel(build(name).to(device), group, timeout=TIMEOUT, **options)
    engines = (NodeEngine,) if "max_sources" in options else (ProcessEngine, ExactEngine)
    assert isinstance(find_moe(model).engine, engines)
    return build(name).to(device), model


def on(device: torch.device, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def differences(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], group: Any) -> list[str]:
    """What of ``found`` differs from ``wanted``, of which experts are cut to this rank's."""
    assert found.keys() == wanted.keys()
    local = EXPERTS // dist.get_world_size(group)
    own = slice(dist.get_rank(group) * local, (dist.get_rank(group) + 1) * local)
    wrong = []
    for name, value in wanted.items():
        expected = (value[own] if ".experts." in name else value).detach()
        error = (found[name].detach() - expected).abs().max().item()
        if not error <= TOLERANCE * max(1.0, expected.abs().max().item()):
            wrong.append(f"{name} is off by {error:.1e}")
    return wrong


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters()}


def loss_of(model: Any, rank: int, group: Any, aux: Mapping[str, Any]) -> Any:
    """Of a rank's batch, as a trainer has it: the ranks' mean is the mean over all their labels."""
    num_ranks = dist.get_world_size(group)
    labels = [batch(each, EMPTY)["labels"][:, 1:] for each in range(num_ranks)]
    count = sum(int((each != -100).sum()) for each in labels)
    given = on(device_of(group), batch(rank, EMPTY))
    return model(**given, num_items_in_batch=count / num_ranks, **aux).loss


def halves_of(group: Any) -> tuple[Any, Any]:
    """Of the job's ranks: those of this rank's half, and those with its place in either half."""
    half = dist.get_world_size(group) // 2
    ranks = torch.arange(2 * half).view(2, half)
    (experts, _), (replicas, _) = (
        dist.new_subgroups_by_enumeration(each.tolist()) for each in (ranks, ranks.T)
    )
    return experts, replicas


def train(
    group: Any,
    name: str,
    options: Mapping[str, Any],
    steps: int,
    checkpointing: bool = False,
    halves: bool = False,
) -> list[str]:
    """What differs: logits, the first gradients, the loss of every step and the weights after.

    The unmodified model is trained on the batches of all ranks, one after the other. ``halves``:
    whether either half of the ranks has all experts.
    """
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    aux = {} if name == "DeepseekV3" else {"output_router_logits": True}
    experts, replicas = halves_of(group) if halves else (group, None)
    alone, model = alone_and_spread(experts, name, {**options, "replicas": replicas})
    given = on(device_of(group), prompts(rank))
    logits = {"logits": alone(**given).logits}
    wrong = differences({"logits": model(**given).logits}, logits, experts)
    for each in (alone, model):
        each.train()
        if checkpointing:
            each.gradient_checkpointing_enable()
    parallel = DistributedDataParallel(model, process_group=group)
    optimizers = [torch.optim.SGD(each.parameters(), RATE, momentum=0.9) for each in (alone, model)]
    for step in range(steps):
        losses = [loss_of(alone, each, group, aux) for each in range(num_ranks)]
        (sum(losses) / num_ranks).backward()
        loss = loss_of(parallel, rank, group, aux)
        loss.backward()
        wrong += differences({f"loss {step}": loss}, {f"loss {step}": losses[rank]}, experts)
        if step == 0:
            wrong += differences(gradients(model), gradients(alone), experts)
        norms = {f"norm {step}": torch.nn.utils.clip_grad_norm_(alone.parameters(), MOST_NORM)}
        wrong += differences({f"norm {step}": clip_grad_norm_(model, MOST_NORM)}, norms, experts)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return wrong + differences(model.state_dict(), alone.state_dict(), experts)


def train_on_nan(group: Any, name: str, options: Mapping[str, Any], steps: int) -> list[str]:
    """``train``, where what torch allocates without values is NaN: rows that nobody has written."""
    torch.use_deterministic_algorithms(True)
    try:
        return train(group, name, options, steps)
    finally:
        torch.use_deterministic_algorithms(False)


def compiled(group: Any, name: str, options: Mapping[str, Any]) -> list[str]:
    """What differs in bf16 between a model and the same in ``torch.compile``, by more than that
    sums of gradients have another order."""
    model = build(name, torch.bfloat16, num_hidden_layers=1).to(device_of(group))
    expert_parallel(model, group, timeout=TIMEOUT, **options)
    given = on(device_of(group), batch(dist.get_rank(group), -1))
    outcomes = []
    for forward in (model, torch.compile(model, backend="aot_eager")):
        loss = forward(**given, use_cache=False).loss
        loss.backward()
        found = {"loss": loss.detach(), **gradients(model)}
        outcomes.append({label: each.clone() for label, each in found.items()})
        model.zero_grad()
    return far_apart({label: (outcomes[1][label], each) for label, each in outcomes[0].items()})


def generate(
    group: Any, name: str, options: Mapping[str, Any], kinds: Sequence[str], more: int
) -> list[str]:
    """What differs of the tokens. A rank wants ``more`` of them than the rank before it."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    alone, model = alone_and_spread(group, name, options)
    given = on(device_of(group), prompts(rank))
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    wrong = []
    for kind in kinds:
        settings = KINDS[kind] | {
            "max_new_tokens": 2 + more * rank, "return_dict_in_generate": True,
        }  # fmt: skip
        torch.manual_seed(rank)
        wanted = alone.generate(**given, **settings)
        torch.manual_seed(rank)
        found = model.generate(**given, **settings)
        if not torch.equal(found.sequences, wanted.sequences):
            wrong.append(f"{kind}: {found.sequences.tolist()} and not {wanted.sequences.tolist()}")
        lengths = [int(each.past_key_values.get_seq_length()) for each in (found, wanted)]
        if lengths[0] != lengths[1]:
            wrong.append(f"{kind}: a cache of {lengths[0]} and not {lengths[1]} tokens")
    if len(passes) < len(kinds) * (2 + more * (num_ranks - 1)):
        wrong.append(f"{len(passes)} passes: fewer than the last rank needs")
    return wrong


def captured(group: Any, name: str, options: Mapping[str, Any]) -> list[str]:
    """What differs, in bf16, between the logits of a forward pass and of its CUDA graph, replayed
    on other tokens."""
    device = device_of(group)
    model = build(name, torch.bfloat16).to(device)
    expert_parallel(model, group, timeout=TIMEOUT, **options)
    random = torch.Generator().manual_seed(dist.get_rank(group))
    drawn = torch.randint(FIRST, VOCABULARY, (5, 2, 6), generator=random).to(device)
    tokens, wrong = drawn[0].clone(), []
    # Masks that gpt-oss makes for itself are copied from the host.
    masks = {"attention_mask": masks_of(model, drawn.shape[-1])} if name == "GptOss" else {}
    with torch.no_grad():
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):
                model(input_ids=tokens, use_cache=False, **masks)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model(input_ids=tokens, use_cache=False, **masks).logits
        for i, each in enumerate(drawn):
            wanted = model(input_ids=each, use_cache=False).logits
            tokens.copy_(each)
            graph.replay()
            if not torch.equal(logits, wanted):
                wrong.append(f"replay {i} is off by {(logits - wanted).abs().max().item():.1e}")
    torch.cuda.synchronize()
    del graph
    return wrong


def masks_of(model: Any, length: int) -> dict[str, Tensor]:
    """What is added to the scores of each kind of attention, [1, 1, length, length]: as
    ``generate`` makes them for a compiled model."""
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    hidden = {
        "full_attention": ahead > 0,
        "sliding_attention": (ahead > 0) | (ahead <= -model.config.sliding_window),
    }
    lowest = torch.finfo(model.dtype).min
    return {
        kind: torch.zeros(1, 1, length, length, dtype=model.dtype)
        .masked_fill(each, lowest)
        .to(model.device)
        for kind, each in hidden.items()
    }


def save(group: Any, name: str, folder: str) -> list[str]:
    """What differs between files of the whole model and of the unmodified one, or is not loaded."""
    rank = dist.get_rank(group)
    alone, model = alone_and_spread(group, name, {})
    whole = whole_state_dict(model)
    assert whole.keys() == (alone.state_dict().keys() if rank == 0 else set())
    model.save_pretrained(Path(folder, "spread"))
    if rank == 0:
        alone.save_pretrained(Path(folder, "alone"))
    dist.barrier(group)
    written = sorted(Path(folder, "alone").iterdir())
    assert "model.safetensors" in [path.name for path in written]
    wrong = [
        f"{path.name} differs"
        for path in written
        if path.read_bytes() != Path(folder, "spread", path.name).read_bytes()
    ]
    own = {label: value.clone() for label, value in model.state_dict().items()}
    for loaded in (alone.state_dict(), own):
        for weight in model.parameters():
            weight.data.zero_()
        model.load_state_dict(loaded)
        wrong += differences(model.state_dict(), alone.state_dict(), group)
    return wrong


def of_unsaid_replicas(group: Any) -> None:
    """A backward pass of a model whose experts half of the job's ranks have."""
    experts, _ = halves_of(group)
    model = expert_parallel(build("Mixtral"), experts, timeout=TIMEOUT)
    model(**batch(dist.get_rank(group), EMPTY)).loss.backward()


def fully_sharded(group: Any) -> None:
    """The model by FSDP, which takes what a rank has for what all ranks have."""
    model = expert_parallel(build("Mixtral"), group, timeout=TIMEOUT)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))


def flattened(group: Any, use_orig_params: bool) -> None:
    """The same by its older kind."""
    model = expert_parallel(build("Mixtral"), group, timeout=TIMEOUT)
    FullyShardedDataParallel(
        model, group, device_id=torch.device("cpu"), use_orig_params=use_orig_params
    )


def experts_in_bf16(group: Any, name: str, options: Mapping[str, Any]) -> list[str]:
    """What of one layer's experts in bf16 is further from f32 than rounding makes it; a rank has no
    tokens."""
    device, model = device_of(group), build(name).bfloat16()
    exact = copy.deepcopy(first_experts(model)).float().to(device)
    expert_parallel(model.to(device), group, timeout=TIMEOUT, **options)
    experts = first_experts(model)
    torch.manual_seed(0)
    num_ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    counts = [5 + each if each != EMPTY else 0 for each in range(num_ranks)]
    x, gradient = torch.randn(2, sum(counts), HIDDEN, device=device).bfloat16().float()
    weights, chosen = torch.rand(sum(counts), EXPERTS, device=device).topk(TOPK)
    inputs = (x.requires_grad_(), weights.requires_grad_())
    wanted = exact(inputs[0], chosen, inputs[1])
    wanted.backward(gradient)
    mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    own = [each.detach()[mine].clone().requires_grad_() for each in inputs]
    found = experts(own[0].bfloat16(), chosen[mine], own[1])
    found.backward(gradient[mine].bfloat16())
    pairs = {
        "output": (found, wanted[mine]),
        **{f"gradient {i}": (own[i].grad, inputs[i].grad[mine]) for i in range(2)},
    }
    first = rank * EXPERTS // num_ranks
    for label, weight in experts.named_parameters():
        expected = exact.get_parameter(label).grad.narrow(0, first, weight.shape[0]) / num_ranks
        pairs[label] = (weight.grad, expected)
    return far_apart(pairs)


def far_apart(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Pairs that differ by more than a few roundings of bf16, all their elements together."""
    errors = {
        label: ((one - other).norm() / other.norm().clamp(min=2**-60)).item()
        for label, (one, other) in pairs.items()
    }
    return [f"{label} is off by {each:.1e}" for label, each in errors.items() if not each <= 2**-6]


def first_experts(model: Any) -> Any:
    return next(each for name, each in model.named_modules() if name.endswith(".experts"))
