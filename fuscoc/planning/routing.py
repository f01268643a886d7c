"""Routings to plan for, made up by kind."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fuscoc.planning.files import RoutingError, read_routing, route_input
from fuscoc_runtime.demo.generate import generate_inputs
from fuscoc_runtime.demo.packing import NoDataError
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import key_to_rank
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Load
from fuscoc_runtime.topology import Topology

KINDS = "uniform, single-node, zipf:EXPONENT or imbalanced"
PACKED_TOKENS, DENSE_TOKENS = 4096, 32
BUSY_SHARE = 0.95
"""``imbalanced``: the part of its segments that a busy rank sends to other nodes."""
MAX_DISTINCT = 4096
"""Up to so many keys, those of a segment are drawn without repetition: a score for each of them."""

Track = Callable[[Iterable[int]], Iterable[int]]


def make_routing(
    shuffle: ShuffleSpec,
    topology: Topology,
    routing: str,
    tokens: int | None,
    seed: int,
    track: Track = iter,
) -> list[RankData]:
    """Extents and inputs of every rank, without sources.

    ``routing``: one of ``KINDS``, or the path of a ``.npy`` or ``.npz`` file (docs/planning.md).
    ``tokens``: extent of every rank's outermost index. ``track`` goes through the ranks, and may
    show how far it has come.

    Raises:
        RoutingError: an unknown kind, or a file that does not fit.
    """
    if routing.endswith((".npy", ".npz")):
        return read_routing(shuffle, topology, Path(routing))
    target = shuffle.declared.target
    if tokens is None:
        tokens = PACKED_TOKENS if target.kind == "packed" else DENSE_TOKENS
    draw = _kind(routing)
    try:
        ranks = generate_inputs(shuffle, topology, [tokens] * topology.num_ranks, seed)
    except NoDataError as error:
        raise RoutingError(f"{error}; pass a file") from error
    if target.kind == "dense" or not isinstance(target.key, Load):
        if routing != "uniform":
            computed = "slots" if target.kind == "dense" else "keys"
            raise RoutingError(
                f"`{shuffle.name}` computes its {computed}, so its routing is made up as `uniform` "
                f"or read from a file, not `{routing}`"
            )
        return ranks
    name = route_input(shuffle)
    slots = shuffle.program.target
    assert slots.kind == "packed"
    owner = key_to_rank(slots, topology, 0, ranks[0].inputs, torch.device("cpu"))
    filled = []
    for rank in track(range(topology.num_ranks)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
        data = ranks[rank]
        keys = draw(data.inputs[name].shape, owner, topology, rank, generator)
        filled.append(with_input(data, name, keys.to(data.inputs[name].dtype)))
    return filled


def with_input(data: RankData, name: str, tensor: Tensor) -> RankData:
    """The same data with one input replaced."""
    return replace(data, inputs={**data.inputs, name: tensor})


Draw = Callable[[torch.Size, Tensor, Topology, int, torch.Generator], Tensor]
"""(shape, key_to_rank, topology, rank, generator) -> keys [*shape]."""


def _kind(text: str) -> Draw:
    zipf = re.fullmatch(r"zipf:(\d+(?:\.\d+)?)", text)
    if zipf is not None:
        return lambda *given: _zipf(float(zipf[1]), *given)
    kinds: dict[str, Draw] = {
        "uniform": _uniform,
        "single-node": _single_node,
        "imbalanced": _imbalanced,
    }
    if text not in kinds:
        raise RoutingError(f"`{text}` is neither {KINDS} nor a .npy or .npz file")
    return kinds[text]


def _uniform(
    shape: torch.Size, owner: Tensor, topology: Topology, rank: int, generator: torch.Generator
) -> Tensor:
    """Every key alike."""
    everyone = torch.ones(1, len(owner), dtype=torch.bool)
    return _draw(shape, torch.zeros(len(owner)), everyone, torch.zeros(_outer(shape)), generator)


def _zipf(
    exponent: float,
    shape: torch.Size,
    owner: Tensor,
    topology: Topology,
    rank: int,
    generator: torch.Generator,
) -> Tensor:
    """Popularity 1 / place ** exponent; the places are dealt out at random, alike on all ranks."""
    place = torch.randperm(len(owner), generator=torch.Generator().manual_seed(0))
    everyone = torch.ones(1, len(owner), dtype=torch.bool)
    popularity = -exponent * (place + 1.0).log()
    return _draw(shape, popularity, everyone, torch.zeros(_outer(shape)), generator)


def _single_node(
    shape: torch.Size, owner: Tensor, topology: Topology, rank: int, generator: torch.Generator
) -> Tensor:
    """All keys of a segment on one random node."""
    node = owner // topology.ranks_per_node
    allowed = node == torch.arange(topology.num_nodes)[:, None]
    group = torch.randint(topology.num_nodes, (_outer(shape),), generator=generator)
    return _draw(shape, torch.zeros(len(owner)), allowed, group, generator)


def _imbalanced(
    shape: torch.Size, owner: Tensor, topology: Topology, rank: int, generator: torch.Generator
) -> Tensor:
    """Ranks with an even local index send nearly everything to other nodes, the others little."""
    own = owner // topology.ranks_per_node == topology.node(rank)
    away = 1 - BUSY_SHARE if topology.local_rank(rank) % 2 else BUSY_SHARE
    group = torch.rand(_outer(shape), generator=generator) < away
    return _draw(shape, torch.zeros(len(owner)), torch.stack([own, ~own]), group, generator)


def _outer(shape: torch.Size) -> int:
    return shape[0] if shape else 1


def _draw(
    shape: torch.Size,
    log_popularity: Tensor,
    allowed: Tensor,
    group: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Keys for every outer entry from those its group allows; any key if it allows none.

    ``allowed``: bool [num_groups, num_keys]; ``group``: [shape[0]]. The keys of an entry are
    distinct if there are enough and not too many to score them all (Gumbel top-k).
    """
    num_drawn = math.prod(shape[1:])
    drawn = torch.empty(len(group), num_drawn, dtype=torch.int64)
    for number, mask in enumerate(allowed):
        rows = torch.nonzero(group == number)[:, 0]
        keys = torch.nonzero(mask if mask.any() else torch.ones_like(mask))[:, 0]
        weight = log_popularity[keys]
        if num_drawn <= len(keys) <= MAX_DISTINCT:
            scores = torch.rand(len(rows), len(keys), generator=generator)
            if (weight != weight[0]).any():  # else the logarithms would change no order
                scores.log_().neg_().log_().neg_().add_(weight)
            chosen = scores.topk(num_drawn, dim=1).indices
        else:
            end = weight.double().exp().cumsum(0)
            where = (
                torch.rand(len(rows), num_drawn, generator=generator, dtype=torch.float64) * end[-1]
            )
            chosen = torch.searchsorted(end, where, right=True).clamp_(max=len(keys) - 1)
        drawn[rows] = keys[chosen]
    return drawn.view(shape)
