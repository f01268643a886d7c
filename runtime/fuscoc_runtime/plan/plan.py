"""The plan of all ranks together: to look at, to save, to bake into an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.files import whole_file
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.choose import arrange_stages, check_rule
from fuscoc_runtime.plan.cost import CostModel, Prediction, oracle, predict_assignment
from fuscoc_runtime.plan.flows import Assignment
from fuscoc_runtime.plan.links import cost_model, segment_bytes
from fuscoc_runtime.plan.planner import plan_rank
from fuscoc_runtime.plan.schedule import Schedule, predict
from fuscoc_runtime.plan.store import read, write
from fuscoc_runtime.plan.summary import HopLoad, NicLoad, PlanSummary
from fuscoc_runtime.plan.traffic import Traffic
from fuscoc_runtime.plan.types import PlanContext, Points, RankPlan
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Plan:
    """What every rank does in one shuffle, ``ranks`` in rank order, in arrays of numpy.

    ``model`` is what times are predicted with. ``schedule``: stages of the network hop, if it has
    any; without, all nodes send at once.
    """

    shuffle: ShuffleSpec
    topology: Topology
    ranks: tuple[RankPlan, ...]
    model: CostModel
    schedule: Schedule | None = None

    @cached_property
    def traffic(self) -> Traffic:
        """Segments over every wire."""
        return Traffic.of(self.topology, self.ranks)

    @property
    def forwarders(self) -> Assignment:
        """Which rank of a node receives how many of the rows of every flow."""
        return self.traffic.forwarders

    @cached_property
    def predicted(self) -> Prediction:
        """Seconds that dispatch takes on ``model``."""
        demand = self.traffic.demand
        if self.schedule is not None:
            return predict(demand, self.schedule, self.model)
        return predict_assignment(demand, self.forwarders, self.model)

    @property
    def oracle(self) -> float:
        """Seconds that no forwarders and no stages can beat; see ``cost.oracle``."""
        return oracle(self.traffic.demand, self.model)

    def summary(self) -> PlanSummary:
        """Rows and bytes by hop, NIC loads and predicted times; ``print`` it."""
        traffic, schedule = self.traffic, self.schedule
        naive = traffic.without_dedup()
        size = segment_bytes(self.shuffle.program)
        # A row that stays on its rank is copied inside its memory, by whichever list.
        stays, stays_before = int(np.trace(traffic.nvlink)), int(np.trace(naive.nvlink))
        local = int(traffic.local.sum()) + stays
        network = int(traffic.network.sum())
        nvlink, handed = traffic.nvlink_rows, int(traffic.handed.sum())
        return PlanSummary(
            shuffle=self.shuffle.name,
            topology=str(self.topology),
            balance=self.rules.forwarder,
            num_segments=sum(each.num_sources for each in self.ranks),
            num_points=int(traffic.points.sum()),
            segment_bytes=size,
            network=HopLoad("network", network, int(naive.network.sum()), network * size),
            carried=HopLoad("NVLink, to senders", handed, 0, handed * size),
            nvlink=HopLoad("NVLink", nvlink, naive.nvlink_rows, nvlink * size),
            local=HopLoad("local", local, stays_before, local * size),
            nic_before=NicLoad.of(traffic.unbalanced()),
            nic=NicLoad.of(traffic),
            schedule=schedule.kind if schedule is not None else None,
            num_stages=schedule.num_stages if schedule is not None else None,
            predicted=self.predicted.completion,
            oracle=self.oracle,
        )

    @property
    def rules(self) -> Rules:
        """How the rows of the network hop travel."""
        return self.shuffle.program.exchange

    def save(self, path: str | Path) -> None:
        """Write an ``.npz`` file, in one step, so that no reader sees half of it."""
        with whole_file(path) as file:
            self.write(file)

    def write(self, file: IO[bytes]) -> None:
        """Write the bytes of an ``.npz`` file; the same plan gives the same ones."""
        write(file, self.shuffle, self.topology, self.ranks, self.model, self.schedule)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read what ``save`` wrote; nothing in the file is executed.

        Raises:
            ArtifactError: no such file, or not a plan of this version.
        """
        return cls(*read(Path(path)))


def plan_all(
    shuffle: ShuffleSpec,
    topology: Topology,
    points: Sequence[Points | FuscoRuntimeError],
    model: CostModel | None = None,
    *,
    schedule: str | None = None,
) -> Plan:
    """Plan every rank of ``topology`` in this process, on the host.

    ``points``: what the relation puts out on every rank. ``schedule``: one of ``schedule.KINDS`` or
    ``auto``, to have the network hop in stages.

    Raises:
        FuscoRuntimeError: what any rank finds wrong, or ``schedule`` is none.
    """
    if schedule is not None:
        check_rule("schedule", schedule)
    wires = model if model is not None else cost_model(shuffle.program)
    contexts = [PlanContext(shuffle, topology, rank, model=wires) for rank in range(len(points))]
    given = [each.on_host() if isinstance(each, Points) else each for each in points]
    ranks = tuple(run_lockstep(list(map(plan_rank, contexts, given))))
    plan = Plan(shuffle, topology, ranks, wires)
    if schedule is None or topology.num_nodes == 1:
        return plan
    stages = arrange_stages(plan.traffic.demand, plan.forwarders, schedule, wires)
    return Plan(shuffle, topology, ranks, wires, stages)
