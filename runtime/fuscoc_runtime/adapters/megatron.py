"""Megatron-Core: token dispatchers that shuffle with fuscoc.

A ``MoELayer`` leaves to its dispatcher what lies between its router and its experts, and between
these and the sum. One that is on a shuffle gets rows in the order of the experts, so the two hooks
that permute them have nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import nn

from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.adapters.megatron_dispatcher import Dispatcher
from fuscoc_runtime.adapters.megatron_experts import can_stay_on_device, keep_on_device
from fuscoc_runtime.adapters.megatron_options import find_refused
from fuscoc_runtime.adapters.moe import MoeShuffle, Sizes
from fuscoc_runtime.face.shuffle import Shuffle

Model = TypeVar("Model", bound=nn.Module)

VERSION = "0.19.2"

DISPATCHER = Interface(
    "megatron-core",
    VERSION,
    "megatron.core.transformer.moe.token_dispatcher",
    {
        "MoETokenDispatcher": ("config", "pg_collection"),
        "MoETokenDispatcher.dispatch_preprocess": ("tokens", "routing_map", "probs"),
        "MoETokenDispatcher.token_dispatch": ("hidden_states", "probs"),
        "MoETokenDispatcher.dispatch_postprocess": ("hidden_states", "probs"),
        "MoETokenDispatcher.combine_preprocess": ("hidden_states",),
        "MoETokenDispatcher.token_combine": ("hidden_states",),
        "MoETokenDispatcher.combine_postprocess": ("hidden_states",),
        "MoETokenDispatcher.set_shared_experts": ("shared_experts",),
    },
)

LAYER = Interface(
    "megatron-core",
    VERSION,
    "megatron.core.transformer.moe.moe_layer",
    {
        "MoELayer": None,
        "MoELayer.dispatch": ("hidden_states", "probs"),
        "MoELayer.routed_experts_compute": ("hidden_states", "probs"),
        "MoELayer.combine": ("output",),
    },
)


def token_dispatcher(
    shuffle: Shuffle,
    num_local_experts: int,
    local_expert_indices: list[int],
    config: Any,
    pg_collection: Any,
    experts: nn.Module | None = None,
) -> Any:
    """A ``MoETokenDispatcher`` on ``shuffle``, to be a ``MoELayer``'s ``token_dispatcher``.

    The shuffle's group is the layer's TP x EP group, and its spec is ``examples/moe.fsc`` with
    ``hidden``, ``experts`` and ``topk`` of the layer, the latter two times the expert tensor
    parallel size. Routing probabilities are applied by combine, in f32: experts get ones.

    With ``max_sources`` and the layer's ``experts``, if they are of a class that
    ``megatron_experts`` knows, these are changed to take counts on the device, and the host waits
    for nothing. Without, or of another class, it waits for the counts of every dispatch.

    Raises:
        AdapterError: Megatron-Core is missing or its interface has changed; the spec does not fit
            the layer; or ``config`` asks for what cannot be done.
    """
    made = _dispatcher(
        shuffle, num_local_experts, local_expert_indices, config, pg_collection, experts
    )
    if experts is not None and not made.waits:
        keep_on_device(experts)
    return made


def _dispatcher(
    shuffle: Shuffle,
    num_local_experts: int,
    local_expert_indices: list[int],
    config: Any,
    pg_collection: Any,
    experts: nn.Module | None,
) -> Any:
    base = DISPATCHER.load().MoETokenDispatcher
    moe = MoeShuffle(shuffle, "megatron-core")
    on_device = experts is not None and moe.is_fixed and can_stay_on_device(experts)
    _check(config, waits=not on_device)
    made = DISPATCHER.implement(Dispatcher, base)(
        moe, not on_device, num_local_experts, local_expert_indices, config, pg_collection
    )
    moe.expect(
        num_experts=made.tp_size * config.num_moe_experts,
        topk=made.tp_size * config.moe_router_topk,
        hidden=config.moe_latent_size or config.hidden_size,
        num_ranks=made.tp_size * made.ep_size,
    )
    return made


def replace_dispatchers(model: Model, open_shuffle: Callable[[Sizes, Any], Shuffle]) -> Model:
    """``model`` itself, whose ``MoELayer``s now dispatch by shuffles.

    ``open_shuffle(sizes, group)`` opens one like ``examples/moe.fsc``'s, of this group of ranks;
    layers of one size and group share it. It is collective.

    Raises:
        AdapterError: as for ``token_dispatcher``; or the model has no ``MoELayer``. Nothing has
            been changed then.
    """
    DISPATCHER.load()
    kind = LAYER.load().MoELayer
    layers: list[Any] = [each for each in model.modules() if isinstance(each, kind)]
    if not layers:
        raise LAYER.problem(f"{type(model).__name__} has no MoELayer")
    for layer in layers:
        _check(layer.config, waits=False)
    shuffles: dict[tuple[Sizes, Any], Shuffle] = {}
    made = []
    for layer in layers:
        old, config = layer.token_dispatcher, layer.config
        sizes = Sizes(
            config.moe_latent_size or config.hidden_size,
            old.tp_size * config.num_moe_experts,
            old.tp_size * config.moe_router_topk,
            next(layer.experts.parameters()).dtype,
        )
        key = sizes, old.tp_ep_group
        if key not in shuffles:
            shuffles[key] = open_shuffle(*key)
        groups = SimpleNamespace(ep=old.ep_group, expt_tp=old.tp_group, tp_ep=old.tp_ep_group)
        place = layer.num_local_experts, layer.local_expert_indices
        made.append(_dispatcher(shuffles[key], *place, config, groups, layer.experts))
    for layer, dispatcher in zip(layers, made, strict=True):
        layer.token_dispatcher = dispatcher
        if not dispatcher.waits:
            keep_on_device(layer.experts)
    return model


def _check(config: Any, waits: bool) -> None:
    refused = find_refused(config, waits)
    if refused is not None:
        raise DISPATCHER.problem(refused)
