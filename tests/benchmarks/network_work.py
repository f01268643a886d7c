"""What the tests of the network's benchmarks let ranks do; every function runs on one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from benchmarks.network_cases import Model, make_batch, routing
from benchmarks.network_nccl import RawWire
from fuscoc_runtime.topology import Topology

MODEL, TOKENS, SLICE_BYTES = Model(hidden=64, experts=16, topk=2), 50, 512


def raw_wire(_: Any, text: str, kind: str, count: int) -> tuple[list[list[int]], dict[int, int]]:
    """Whose experts this rank's tokens want, and bytes that have come from every rank, on ``count``
    communicators; those of a combine go back the same way."""
    topology, rank = Topology.parse(text), dist.get_rank()
    idx = routing(kind, TOKENS, MODEL, topology, rank)
    batch = make_batch(MODEL, idx, topology, torch.device("cpu"))
    groups = [None] if count == 1 else [dist.new_group() for _ in range(count)]
    raw = RawWire(batch, MODEL, SLICE_BYTES, groups)
    came = _bytes_from(raw.out, raw.back, raw.dispatch, rank)
    assert _bytes_from(raw.back, raw.out, raw.combine, rank) == {
        peer: message.numel() for peer, message in raw.out.items() if message.numel()
    }
    return idx.tolist(), came


def _bytes_from(sent: Any, received: Any, call: Any, rank: int) -> dict[int, int]:
    for message in sent.values():
        message.fill_(rank + 1)
    for message in received.values():
        message.zero_()
    call()
    for peer, message in received.items():
        assert bool((message == peer + 1).all())
    return {peer: message.numel() for peer, message in received.items() if message.numel()}
