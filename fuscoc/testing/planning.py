from __future__ import annotations
from dataclasses import dataclass
import torch
from fuscoc.testing.points import points_of
from fuscoc.testing.routing import Routing
from fuscoc_runtime.plan import plan_rank, PlanContext, RankPlan
from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
@dataclass(frozen=True, eq=False)
class Plan:
    shuffle: ShuffleSpec
    topology: Topology
    ranks: tuple[RankPlan, ...]
    forwarders: torch.Tensor
    schedule: None
def plan_all(spec, topology, points):
    ranks = run_lockstep([plan_rank(PlanContext(spec, topology, r), p) for r, p in enumerate(points)])
    r=torch.arange(topology.num_ranks)[:,None]; m=topology.ranks_per_node
    return Plan(spec, topology, tuple(ranks), torch.arange(topology.num_nodes)*m + r%m, None)
def plan_of(shuffle: ShuffleSpec, routing: Routing) -> Plan:
    topology = routing.topology
    return plan_all(shuffle, topology, points_of(shuffle, topology, routing.ranks))
