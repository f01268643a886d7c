"""What ``check_plan`` raises: which descriptor breaks which invariant."""

from __future__ import annotations

HOPS = {
    "carry": "NVLink, to senders",
    "carried": "network",
    "net_send": "network",
    "direct": "NVLink",
    "forward": "NVLink",
    "local": "local",
    "reduce_direct": "NVLink, back",
    "reduce_forward": "NVLink, back",
    "reduce_node": "network, back",
    "hand_back": "NVLink, back",
    "reduce_source": "local, back",
}


class PlanViolation(AssertionError):
    """A plan that breaks an invariant.

    Attributes:
        invariant: name of the check in ``fuscoc.testing.invariants``.
        problem: what is wrong, in one sentence.
        list: the descriptor list at fault, if it is one.
        rank: the rank that holds it.
        index: the descriptor's position in the list.
        hop: the leg of the path that the list describes.
    """

    def __init__(
        self,
        invariant: str,
        problem: str,
        *,
        list: str | None = None,
        rank: int | None = None,
        index: int | None = None,
        descriptor: str = "",
    ) -> None:
        self.invariant = invariant
        self.problem = problem
        self.list = list
        self.rank = rank
        self.index = index
        self.hop = HOPS.get(list) if list is not None else None
        self.descriptor = descriptor
        super().__init__(invariant, problem, list, rank, index)

    def __str__(self) -> str:
        where = ""
        if self.list is not None:
            where += self.list if self.index is None else f"{self.list}[{self.index}]"
        if self.rank is not None:
            where += f" on rank {self.rank}"
        if self.hop is not None:
            where += f" ({self.hop} hop)"
        if self.descriptor:
            where += f" {{{self.descriptor}}}"
        return (
            f"{self.invariant}: {where.strip()}: {self.problem}"
            if where
            else (f"{self.invariant}: {self.problem}")
        )
