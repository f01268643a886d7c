"""From routing to descriptor lists, for any topology: on the device, or in arrays of numpy."""

from fuscoc_runtime.plan.placement import key_to_rank, keys_of_rank
from fuscoc_runtime.plan.plan import Plan, plan_all
from fuscoc_runtime.plan.planner import plan_rank
from fuscoc_runtime.plan.types import (
    BufferRows,
    DescriptorList,
    PlanContext,
    Points,
    RankPlan,
)
from fuscoc_runtime.plan.wire import Wire

__all__ = [
    "BufferRows",
    "DescriptorList",
    "Plan",
    "PlanContext",
    "Points",
    "RankPlan",
    "Wire",
    "key_to_rank",
    "keys_of_rank",
    "plan_all",
    "plan_rank",
]
