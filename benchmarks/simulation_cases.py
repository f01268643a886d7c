"""The inputs of the measured tables, simulated: the same routings, the same contenders."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks import layouts, moe_cases, network_cases
from benchmarks.simulation_tables import LAYOUTS, Measured
from fuscoc.planning.command import open_shuffle
from fuscoc.simulate.clusters import Cluster, load_cluster
from fuscoc.simulate.command import Workload
from fuscoc.simulate.contenders import AUTO, CONTENDERS, Contender, Rewrite, contender
from fuscoc.simulate.costs import Costs
from fuscoc.simulate.record import Run
from fuscoc.simulate.runs import simulate
from fuscoc_runtime import Topology
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.links import row_bytes
from fuscoc_runtime.reference import RankData

REWRITES: Mapping[str, Rewrite] = {
    **CONTENDERS,
    "fuscoc, plan for free": replace(AUTO, reuses_plan=True),
    "unfused": replace(AUTO, balance="split", execution="staged", reuses_plan=True),
    "split": replace(AUTO, balance="split"),
    "static": replace(AUTO, balance="none"),
    "undeduplicated": Rewrite(dedup=(), balance="none", schedule="pairwise"),
    "stages": replace(AUTO, schedule="fast"),
    "pairwise": replace(AUTO, schedule="pairwise"),
}
"""The contenders of ``benchmarks/network.py`` and ``benchmarks/nvlink.py``, as rewrites."""


@cache
def open_shape(name: str) -> tuple[ShuffleSpec, Any]:
    """The compiled shuffle of a model, and its module; ``compact`` may stand behind its name. Or an
    example of ``benchmarks/layouts.py``."""
    if name in LAYOUTS:
        example, constants = layouts.SPECS[LAYOUTS[name]]
        return open_shuffle(layouts.EXAMPLES / f"{example}.fsc", None, dict(constants))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "moe.fsc"
        model, _, compact = name.partition(" ")
        shape = replace(moe_cases.SHAPES[model], compact=bool(compact))
        path.write_text(moe_cases.spec(shape), encoding="utf-8")
        return open_shuffle(path, None, {})


@cache
def _contender(shape: str, name: str) -> Contender:
    return contender(name, REWRITES[name], open_shape(shape)[1])


def expert_ids(shape: str, kind: str, tokens: int, topology: Topology, rank: int) -> torch.Tensor:
    """``topk_idx`` of one rank, int64 [tokens, topk], as the benchmark of its cluster drew it."""
    model, kind = moe_cases.SHAPES[shape.split(" ")[0]], kind.split(",")[0]
    if topology.num_nodes > 1:
        return network_cases.routing(
            kind, tokens, network_cases.Model(model.hidden, model.experts, model.topk), topology,
            rank,
        )  # fmt: skip
    generator = torch.Generator().manual_seed(1000 + rank)
    return moe_cases.routing(kind, tokens, model, topology.num_ranks, generator)


def layout_inputs(shape: str, topology: Topology, rank: int) -> RankData:
    """What the benchmark gives a layout's shuffle besides its source."""
    if shape != "kv_pages":
        return RankData({}, {}, {})
    inputs = layouts.pages(rank, topology.num_ranks, torch.device("cpu")).inputs
    tables = {name: each for name, each in inputs.items() if isinstance(each, torch.Tensor)}
    moves = len(tables["destination"])
    return RankData({}, tables, {"moves": moves, "slots": moves, "pages": layouts.PAGES})


@dataclass(frozen=True)
class Case:
    """One routing on one cluster of the project's. ``wire``: seconds that raw sends of a call's
    rows take, in place of the cluster's NICs and their latency."""

    cluster: str
    shape: str
    routing: str
    tokens: int
    wire: float | None = None

    @classmethod
    def of(cls, row: Measured) -> Case:
        """The case of a row; the same one for rows of the same inputs, which are made once."""
        return _case(row.cluster, row.shape, row.routing, row.tokens, row.wire)

    @cached_property
    def _workload(self) -> Workload:
        shuffle, module = open_shape(self.shape)
        return Workload(shuffle, module, load_cluster(self.cluster))

    @cached_property
    def _ranks(self) -> list[RankData]:
        topology, found = self._workload.topology, list[RankData]()
        for rank in range(topology.num_ranks):
            if self.shape in LAYOUTS:
                found.append(layout_inputs(self.shape, topology, rank))
                continue
            idx = expert_ids(self.shape, self.routing, self.tokens, topology, rank)
            weights = torch.ones(idx.shape)
            inputs = {"topk_idx": idx, "topk_weights": weights}
            found.append(RankData({}, inputs, {"tokens": self.tokens}))
        return found

    def run(self, name: str, costs: Costs | None = None) -> Run:
        """Simulate one contender; ``costs`` in place of those of the package."""
        workload = self._workload
        cluster: Cluster = workload.cluster
        if costs is not None:
            cluster = replace(cluster, costs=costs)
        made = _contender(self.shape, name)
        counts = workload.counts(made, self._ranks)
        if self.wire is not None:
            size = counts.flows.sum(axis=1).max() * row_bytes(made.program.buffers["slices"])
            cluster = replace(cluster, nic=size / self.wire, latency=0.0)
        return simulate(made, counts, cluster, detailed=False)


@cache
def _case(cluster: str, shape: str, routing: str, tokens: int, wire: float | None) -> Case:
    return Case(cluster, shape, routing, tokens, wire)


def seconds(run: Run, row: Measured) -> float:
    """What is predicted for a row, of the run of its contender."""
    if row.part in ("dispatch", "combine"):
        leg = run.dispatch if row.part == "dispatch" else run.combine
        assert leg is not None
        return leg.seconds
    return run.seconds - (2 * (row.wire or 0.0) if row.part == "beyond" else 0.0)
