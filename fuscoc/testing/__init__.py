"""Property tests for shuffles: strategies, invariants of every plan, and execution in lockstep.

::

    from hypothesis import given
    from fuscoc.testing import check_plan, load_spec, plans

    spec = load_spec("moe.fsc")

    @given(plans(spec))
    def test_plans(planned):
        check_plan(*planned)

Names are loaded when first used: the pytest plugin lives here, and must not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuscoc.planning.files import Routing, RoutingFileError
    from fuscoc.testing.execution import (
        LockstepRun,
        check_execution,
        check_relation,
        run_lockstep_shuffle,
    )
    from fuscoc.testing.facts import PlanFacts
    from fuscoc.testing.invariants import INVARIANTS, check_plan
    from fuscoc.testing.planning import check_planning, plan_of
    from fuscoc.testing.points import points_of
    from fuscoc.testing.report import Failure, PropertyReport, TestReport
    from fuscoc.testing.routing import with_sources
    from fuscoc.testing.runner import EXECUTION_LIMITS, run_tests
    from fuscoc.testing.spec import Spec, load_spec, load_specs
    from fuscoc.testing.strategies import Planned, cases, plans, routings, specs, topologies
    from fuscoc.testing.violations import PlanViolation
    from fuscoc_runtime import reference

_HOMES = {
    "fuscoc.testing.execution": (
        "LockstepRun",
        "check_execution",
        "check_relation",
        "run_lockstep_shuffle",
    ),
    "fuscoc.testing.facts": ("PlanFacts",),
    "fuscoc.testing.invariants": ("INVARIANTS", "check_plan"),
    "fuscoc.testing.planning": ("check_planning", "plan_of"),
    "fuscoc.testing.points": ("points_of",),
    "fuscoc.testing.report": ("Failure", "PropertyReport", "TestReport"),
    "fuscoc.planning.files": ("Routing", "RoutingFileError"),
    "fuscoc.testing.routing": ("with_sources",),
    "fuscoc.testing.runner": ("EXECUTION_LIMITS", "run_tests"),
    "fuscoc.testing.spec": ("Spec", "load_spec", "load_specs"),
    "fuscoc.testing.strategies": ("Planned", "cases", "plans", "routings", "specs", "topologies"),
    "fuscoc.testing.violations": ("PlanViolation",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "EXECUTION_LIMITS",
    "INVARIANTS",
    "Failure",
    "LockstepRun",
    "PlanFacts",
    "PlanViolation",
    "Planned",
    "PropertyReport",
    "Routing",
    "RoutingFileError",
    "Spec",
    "TestReport",
    "cases",
    "check_execution",
    "check_plan",
    "check_planning",
    "check_relation",
    "load_spec",
    "load_specs",
    "plan_of",
    "plans",
    "points_of",
    "reference",
    "routings",
    "run_lockstep_shuffle",
    "run_tests",
    "specs",
    "topologies",
    "with_sources",
]


def __getattr__(name: str) -> Any:
    if name == "reference":
        return import_module("fuscoc_runtime.reference")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
