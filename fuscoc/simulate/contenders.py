"""Contenders as programs: what to change in a spec's policies, and how its steps are carried out.

The simulator knows the rewrites, not the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l0 import Dispatch, Shuffle
from fuscoc.pipeline import PASSES, parse_module
from fuscoc.program import program_json
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.program import Program

DESTINATION, AT_ONCE = "destination", "at once"


class SimulationError(ValueError):
    """What is asked for cannot be simulated; the message says why."""


@dataclass(frozen=True)
class Rewrite:
    """``None``: as the spec says. ``dedup``: the tiers that a segment crosses once. ``balance``,
    ``schedule``: policies of the language, or ``DESTINATION``: rows go straight to the rank that
    wants them, and ``AT_ONCE``: one round with all peers, as collectives do.

    ``execution``: ``fused``: steps and their signals are a pipeline, straight from layout to
    layout; ``wrapped``: such a pipeline between two permutes, as of an all-to-all that knows no
    layouts; ``staged``: every step is a permute, a collective and a permute, each behind the one
    before; ``hops``: every hop is a collective behind the one before, straight from layout to
    layout, and sums are operators behind them; ``slabs``: calls of fixed capacity, which plan on
    the device and, between nodes, send slabs of one size. ``reuses_plan``: an earlier one is used.
    """

    dedup: tuple[str, ...] | None = None
    balance: str | None = None
    schedule: str | None = None
    execution: Literal["fused", "wrapped", "staged", "hops", "slabs"] = "fused"
    reuses_plan: bool = False

    @property
    def words(self) -> str:
        """In the spec's words, for people."""
        found = []
        if self.dedup is not None:
            found.append(f"dedup({', '.join(self.dedup) or 'none'})")
        if self.balance is not None:
            found.append(f"balance {self.balance}")
        if self.schedule is not None:
            found.append(f"schedule {self.schedule}")
        if self.execution == "wrapped":
            found.append("between permutes")
        if self.execution == "hops":
            found.append("hops one by one")
        if self.execution == "staged":
            found.append("steps one by one, with permutes")
        if self.execution == "slabs":
            found.append("slabs of fixed capacity")
        if self.reuses_plan:
            found.append("an earlier plan")
        return ", ".join(found) or "as the spec says"


FUSCOC = "fuscoc"
AUTO = Rewrite(dedup=("node", "rank"), balance="auto", schedule="auto")
CONTENDERS: Mapping[str, Rewrite] = {
    FUSCOC: AUTO,
    "spec": Rewrite(),
    "fixed": Rewrite(dedup=("node", "rank"), balance="none", schedule=AT_ONCE, execution="slabs"),
    "naive": Rewrite(dedup=(), balance=DESTINATION, schedule=AT_ONCE, execution="staged"),
    "deduplicated": Rewrite(
        dedup=("rank",), balance=DESTINATION, schedule=AT_ONCE, execution="staged"
    ),
    "fusco": Rewrite(dedup=("node",), balance="greedy", schedule="pairwise", execution="hops"),
    "fast": Rewrite(dedup=(), balance="rebalance", schedule="fast", execution="wrapped"),
}
"""What ``--against`` knows; a table of programs for people to add to."""


def ablated(whole: Rewrite) -> Mapping[str, Rewrite]:
    """FUSCO's three parts, switched off one by one as its paper does (arXiv 2512.22036, section
    5.4): permutes and collectives in place of fused copies; every row by itself and straight to the
    rank that wants it, in place of the planner; forwarders of equal local index in place of the
    balancer."""
    return {
        "fused copies": replace(whole, execution="staged"),
        "planner": replace(whole, dedup=(), balance=DESTINATION, schedule=AT_ONCE),
        "balancer": replace(whole, balance="none"),
    }


@dataclass(frozen=True)
class Contender:
    """A program, and how it is planned and carried out: ``balance`` and ``schedule`` are those that
    the language lacks, or None."""

    name: str
    rewrite: Rewrite
    program: Program

    @property
    def goes_straight(self) -> bool:
        return self.rewrite.balance == DESTINATION

    @property
    def at_once(self) -> bool:
        return self.rewrite.schedule == AT_ONCE


def contender(name: str, rewrite: Rewrite, module: Any) -> Contender:
    """The program of a shuffle, rewritten. ``module``: the shuffle's own at L0."""
    return Contender(name, rewrite, rewritten(module, rewrite))


def rewritten(module: Any, rewrite: Rewrite) -> Program:
    """Lower a module at L0 with other policies. The module stays as it is."""
    copy = parse_module(str(module))
    with copy.context:
        (dispatch,) = ops_of(copy, Dispatch)
        (shuffle,) = ops_of(copy, Shuffle)
        _write(shuffle, "node", ())  # kernels of one node, which only some policies can have
        if rewrite.dedup is not None:
            _write(dispatch, "dedup", rewrite.dedup)
        if rewrite.balance is not None:
            _write(
                dispatch, "balance", rewrite.balance if rewrite.balance != DESTINATION else "none"
            )
        if rewrite.schedule is not None:
            _write(
                dispatch,
                "schedule",
                rewrite.schedule if rewrite.schedule != AT_ONCE else "pairwise",
            )
        for step in PASSES:
            if step.level != "L0":
                step.run(copy)
        return decode(Program, program_json(copy, lambda name: name))


def _write(op: Any, name: str, value: Any) -> None:
    """Set an attribute; an empty one is left out."""
    if value:
        op.attributes[name] = op.attrs[name].encode(value)
    elif name in op.attributes:
        del op.attributes[name]
