"""Hypothesis strategies: topologies, specs, routings and plans. They shrink towards nothing to do.

A routing's numbers are drawn as bytes, one draw for a whole tensor: fast, and a failing example
shrinks to few ranks, few rows and points that are dropped but for those that matter.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from fuscoc.testing.draws import digits
from fuscoc.testing.facts import AnyPlan
from fuscoc.testing.planning import plan_of
from fuscoc.testing.routing import Routing
from fuscoc.testing.sizes import draw_sizes
from fuscoc.testing.spec import Spec, load_spec
from fuscoc.testing.routes import draw_routes
from fuscoc.testing.texts import texts
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
