"""What holds for every plan, whatever the spec, the routing and the topology.

Each check takes ``PlanFacts`` and raises ``PlanViolation``. Later checks rely on earlier ones in
``INVARIANTS``; ``check_plan`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuscoc.planning.files import Routing
from fuscoc.testing.facts import PlanFacts
from fuscoc.testing.invariants.combine import (
    check_combine_rows,
    check_combine_terms,
    check_points_sent,
)
from fuscoc.testing.invariants.delivery import (
    check_delivery,
    check_node_dedup,
    check_rank_dedup,
    check_writes,
)
from fuscoc.testing.invariants.lists import check_buffers, check_exchanges, check_lists
from fuscoc.testing.invariants.network import (
    check_forwarders,
    check_groups,
    check_hops,
    check_schedule,
    check_senders,
)
from fuscoc.testing.invariants.round_trip import check_round_trip
from fuscoc.testing.invariants.slots import check_capacity, check_keys, check_row_index
from fuscoc_runtime.plan import Plan

Check = Callable[[PlanFacts], None]

INVARIANTS: tuple[Check, ...] = (
    check_lists,
    check_exchanges,
    check_capacity,
    check_writes,
    check_delivery,
    check_buffers,
    check_keys,
    check_row_index,
    check_hops,
    check_node_dedup,
    check_rank_dedup,
    check_groups,
    check_forwarders,
    check_senders,
    check_schedule,
    check_points_sent,
    check_combine_rows,
    check_combine_terms,
    check_round_trip,
)

__all__ = ["INVARIANTS", "Check", "check_plan", *(check.__name__ for check in INVARIANTS)]


def check_plan(plan: Plan, routing: Routing, checks: Sequence[Check] = INVARIANTS) -> None:
    """Check every invariant of a plan made for ``routing``, or some, in the order of INVARIANTS.

    Raises:
        PlanViolation: the first invariant that is broken, with the list, rank, hop and index of
            the descriptor at fault.
    """
    facts = PlanFacts(plan, routing)
    for check in checks:
        check(facts)
