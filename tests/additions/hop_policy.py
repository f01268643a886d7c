"""A hop policy of one's own: everything for another node is forwarded by its first rank.

    python -m tests.additions.hop_policy

It takes the two places that ``docs/architecture.md`` names: the word of the language, and the
planner's rule. Run by itself, because the language and the dialect read the words when imported.
"""

from __future__ import annotations

import numpy as np

from fuscoc.lang.policy import CHOICES
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.flows import Assignment, Demand

RANKS_PER_NODE = 3


def first_rank(demand: Demand) -> Assignment:
    """[source rank, node, local rank of the forwarder]: rows by forwarder."""
    share = np.zeros((*demand.flows.shape, demand.ranks_per_node), np.int64)
    share[:, :, 0] = demand.flows
    return Assignment(share, carried=False)


CHOICES["balance"] = (*CHOICES["balance"], "first_rank")
POLICIES["first_rank"] = first_rank


def main() -> None:
    # They read the words of the language when they are imported.
    from fuscoc_runtime.demo.generate import generate
    from fuscoc_runtime.demo.verify import check_rows, expect
    from tests.engine import specs
    from tests.engine.lockstep import dispatch, lockstep

    text = specs.routed("f32", keys=24, options="dedup(node, rank) balance first_rank")
    shuffle = lockstep(text, f"2x{RANKS_PER_NODE}")
    ranks = generate(shuffle.spec, shuffle.topology, 9, 0)
    expected = expect(shuffle.spec, ranks)
    sent = 0
    for each, rows in zip(dispatch(shuffle, ranks), expected.rows, strict=True):
        check_rows(rows, each.rows, each.handle)
        counts = each.handle.plan.net_send_counts
        assert not any(count for to, count in enumerate(counts) if to % RANKS_PER_NODE)
        sent += sum(counts)
    print(f"{sent} rows by the first ranks")


if __name__ == "__main__":
    main()
