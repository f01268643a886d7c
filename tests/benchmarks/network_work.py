"""What the tests of the network's benchmarks let ranks do; every function runs on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from benchmarks import network, network_ways
from benchmarks.network_bound import RawWire
from benchmarks.network_cases import Batch, Model, make_batch, routing
from benchmarks.network_report import Entry
from benchmarks.network_timing import COLUMNS
from fuscoc_runtime.topology import Topology

MODEL, TOKENS, FEW, SLICE_BYTES = Model(hidden=64, experts=16, topk=2), 50, 4, 512


def raw_wire(_: Any, text: str, kind: str, count: int) -> tuple[list[list[int]], dict[int, int]]:
    """Whose experts this rank's tokens want, and bytes that have come from every rank, on ``count``
    communicators; those of a combine go back the same way."""
    topology, rank = Topology.parse(text), dist.get_rank()
    batch = _batch(kind, TOKENS, topology)
    groups = [None] if count == 1 else [dist.new_group() for _ in range(count)]
    raw = RawWire("raw", batch, MODEL, SLICE_BYTES, groups)
    came = _bytes_from(raw.out, raw.back, raw.dispatch, rank)
    assert _bytes_from(raw.back, raw.out, raw.combine, rank) == {
        peer: message.numel() for peer, message in raw.out.items() if message.numel()
    }
    return batch.moe.topk_idx.tolist(), came


def _bytes_from(sent: Any, received: Any, call: Any, rank: int) -> dict[int, int]:
    for message in sent.values():
        message.fill_(rank + 1)
    for message in received.values():
        message.zero_()
    call()
    for peer, message in received.items():
        assert bool((message == peer + 1).all())
    return {peer: message.numel() for peer, message in received.items() if message.numel()}


def _batch(kind: str, tokens: int, topology: Topology) -> Batch:
    idx = routing(kind, tokens, MODEL, topology, dist.get_rank())
    return make_batch(MODEL, idx, topology, torch.device("cpu"))


def case(
    _: Any, folder: str, text: str, words: list[str], spoils: str
) -> tuple[list[Entry], dict[str, str]]:
    """A case on the CPU, which has nothing to time by. ``spoils``: of whom the last rank's first
    row comes out wrong."""
    options, topology = network.arguments(words), Topology.parse(text)
    batch = _batch("imbalanced", FEW, topology)
    dispatch = network_ways.Fuscoc.dispatch

    def spoiled(contender: network_ways.Fuscoc) -> None:
        dispatch(contender)
        if contender.name == spoils and batch.rank == topology.num_ranks - 1:
            contender.rows[batch.expected[0][0]] += 1

    def times(contenders: list[Any], *_: Any) -> list[dict[str, float]]:
        return [dict.fromkeys(COLUMNS, 10.0 + number) for number in range(len(contenders))]

    with (
        mock.patch.object(network_ways, "ARTIFACTS", Path(folder)),
        mock.patch.object(network, "measure", times),
        mock.patch.object(network_ways.Fuscoc, "dispatch", spoiled),
    ):
        return network.run_case(
            batch, MODEL, [[None], [dist.new_group(), dist.new_group()]], options
        )
