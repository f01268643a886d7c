"""Who takes part in `network.py`, by name, and how: what is compiled for whom, and who opens it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.network_cases import Batch, Model
from benchmarks.network_contenders import Captured, Contender, Fuscoc, InLine, KnownRouting
from benchmarks.network_nccl import Naive, RankDeduplicated
from benchmarks.network_permutes import SeparatePermutes
from benchmarks.network_wire import NIC, NIC_LIBRARY, compile_nic
from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine.node.engine import NodeEngine

ARTIFACTS = Path("build/network")
PLAIN, POLICIES, SPLIT = (
    "backend triton",
    "balance auto schedule auto",
    "balance split schedule auto",
)


@dataclass(frozen=True)
class Way:
    """Of fuscoc's.

    Attributes:
        options: of the dispatch.
        calls: who makes them.
        is_fixed: whether the capacity is, by ``max_sources``.
        by_hosts: whether the general engine has it, for which hosts plan.
    """

    options: str
    calls: type[Fuscoc] = Fuscoc
    is_fixed: bool = False
    by_hosts: bool = False


WAYS = {
    "fixed capacity": Way(PLAIN, is_fixed=True),
    "fixed capacity, in line": Way(PLAIN, InLine, is_fixed=True),
    "fixed capacity, captured": Way(PLAIN, Captured, is_fixed=True),
    "exact sizes": Way(PLAIN),
    "exact sizes, in line": Way(PLAIN, InLine),
    "general engine": Way(PLAIN, by_hosts=True),
    "policies": Way(POLICIES),
    "policies, plan for free": Way(POLICIES, KnownRouting),
    "policies, general engine": Way(POLICIES, by_hosts=True),
    "balancer off": Way("balance none schedule auto"),
    "planner off": Way("dedup(none) balance none"),
    "FAST stages": Way("balance auto schedule fast"),
    "pairwise stages": Way("balance auto schedule pairwise"),
    "senders as they are": Way(SPLIT, by_hosts=True),
}
"""*Policies* are ``balance auto schedule auto``, which *balancer off*, the stages and *senders as
they are* change in part; *planner off* sends every row once for each of its points."""
NCCL = {"naive NCCL": Naive, "rank-deduplicated NCCL": RankDeduplicated}
PERMUTES = "fused copies off"
CONTENDERS = (*WAYS, PERMUTES, *NCCL)


def artifact(options: str) -> Path:
    return ARTIFACTS / re.sub(r"\W+", "-", options).strip("-")


def compile_all(model: Model) -> list[Path]:
    """The artifacts of all ways, and the NIC."""
    import fuscoc  # ranks need no compiler

    options = dict.fromkeys(way.options for way in WAYS.values())
    found = [fuscoc.compile(model.spec(each), artifact(each)) for each in options]
    return [*found, compile_nic(ARTIFACTS / NIC_LIBRARY)]


@dataclass(frozen=True)
class Opener:
    """Lets contenders take part on one batch.

    Attributes:
        wire: that of all of them.
        num_sms: for fuscoc's copies.
    """

    batch: Batch
    wire: str
    num_sms: int | None

    def open(self, names: Sequence[str]) -> tuple[list[Contender], dict[str, str]]:
        """Those that can take part, and why the others cannot; collective."""
        found: list[Contender] = []
        skipped: dict[str, str] = {}
        with ExitStack() as opened:
            for name in names:
                made = self._contender(name)
                if isinstance(made, str):
                    skipped[name] = made
                    continue
                found.append(made)
                opened.callback(made.close)
            opened.pop_all()
        return found, skipped

    def _contender(self, name: str) -> Contender | str:
        if name in NCCL:
            return NCCL[name](name, self.batch)
        if name == PERMUTES:
            shuffle = self._shuffle(Way(SPLIT, by_hosts=True))
            own = Fuscoc(name, self.batch, shuffle, is_fixed=False)
            return SeparatePermutes(name, self.batch, own)
        way = WAYS[name]
        if way.calls is Captured and self.wire == NIC:
            return "graphs are of nodes of one host"
        shuffle = self._shuffle(way)
        if way.is_fixed and not isinstance(shuffle.engine, NodeEngine):
            shuffle.close()
            return "there is no fixed capacity, as the log says"
        return way.calls(name, self.batch, shuffle, is_fixed=way.is_fixed)

    def _shuffle(self, way: Way) -> Shuffle:
        batch = self.batch
        given: dict[str, Any] = {"topology": batch.topology, "device": batch.moe.x.device}
        if way.is_fixed:
            given["max_sources"] = len(batch.moe.x)
        engine = {"FUSCOC_ENGINE": "general"} if way.by_hosts else {}
        with mock.patch.dict(os.environ, engine):
            return Shuffle(artifact(way.options), num_sms=self.num_sms, **given)


def sms_for(num_ranks: int, device: torch.device) -> int:
    """For copies: all SMs, or a share that leaves some free where ranks share GPUs, as kernels that
    wait must leave room for those they wait for, whichever rank's they are."""
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    sharing = -(-num_ranks // torch.cuda.device_count())
    return num_sms if sharing == 1 else num_sms // (sharing + 1)
