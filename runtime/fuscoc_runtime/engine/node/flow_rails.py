"""Exact sizes between nodes by a policy: who sends whose rows, and in which stages, is made of the
counts of a dispatch, which all ranks know.

A dispatch is launched up to what plans slots. The host then reads how large flows are, with what it
waits for in any case, finds the ways of all rows as every other host does (`ways`), and enqueues
what is left of the call. Calls along a known routing, and combines, take the ways of its dispatch
and wait for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.lanes import lanes_of
from fuscoc_runtime.engine.node.exact import Known, Work, grown
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.flow_calls import FlowCalls
from fuscoc_runtime.engine.node.flow_carry import FlowWork, Going, flow_kernels, going
from fuscoc_runtime.engine.node.flow_counts import Counts
from fuscoc_runtime.engine.node.flow_memory import FlowMemory
from fuscoc_runtime.engine.node.rail_calls import RailCall, RailCalls, RailKnown, RailWork
from fuscoc_runtime.engine.node.report import Planned
from fuscoc_runtime.engine.node.ways import find_ways
from fuscoc_runtime.engine.probe import link_between
from fuscoc_runtime.engine.relation import Ragged
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.room import LEAST
from fuscoc_runtime.topology import Topology

PROGRAMS_AN_SM = 8
"""That carry rows: enough to keep memory and NVLink busy."""


def have_ways(rules: Rules, topology: Topology) -> bool:
    """Whether a policy leaves anything to choose: who of a node sends, or which nodes first."""
    balances = rules.forwarder != "static" and topology.ranks_per_node > 1
    return balances or (rules.schedule != "pairwise" and topology.num_nodes > 2)


@dataclass(frozen=True, eq=False)
class FlowKnown(RailKnown):
    """With the ways of its rows."""

    going: Going

    @property
    def tensors(self) -> list[Tensor]:
        return [*super().tensors, self.going.parts]


class FlowRails(ExactRails):
    """A shuffle with a packed target and a policy among the ranks of several nodes; construction is
    collective over ``members``."""

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        num_sms: int | None,
        model: CostModel,
        measures: bool,
    ) -> None:
        """``model``: what the network is taken to do, the same on all ranks, or what it does
        besides, if it is measured."""
        if measures:
            self.link = link = link_between(members)
            model = link.model(model)
        self._model, self._rules = model, shuffle.program.exchange
        self._rows: FlowMemory | None = None
        super().__init__(artifact, shuffle, node, members, num_sms, measures)
        assert not self.is_judged  # flows are found before there is a verdict,
        assert members.topology.ranks_per_node <= LEAST  # and numbered in bits of a word
        self.rails.open_lanes(model.num_lanes)
        self._is_one_round = True  # stages are what rows travel in
        self._counts, self._flows = Counts(self._program), flow_kernels(self._program)
        self._rows = self._new_rows((self._num_nodes - 1) * self._places)
        self._going: Going | None = None
        self._counted = 0  # the epoch of the latest dispatch whose flows were counted

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address, now."""
        return super().window_bytes + (0 if self._rows is None else self._rows.num_bytes)

    @property
    def num_rounds(self) -> int:
        """Rounds in which rows of the latest dispatch crossed the network."""
        return 0 if self._going is None else len(self._going.ways.legs)

    def dispatch(
        self,
        number: int,
        source: Sequence[Tensor],
        inputs: Sequence[Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: Tensor | None,
        num_slots: int,
        work: Work,
        faults: Tensor | None = None,
        ragged: Ragged | None = None,
    ) -> Known | Planned | FuscoRuntimeError:
        """See `ExactRails.dispatch`."""
        made = super().dispatch(
            number, source, inputs, extents, num_sources, weights, num_slots, work, faults, ragged
        )
        if not isinstance(made, RailKnown):
            return made
        assert self._going is not None
        return FlowKnown(**vars(made), going=self._going)

    def _start(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        has_landed: bool = False,
    ) -> Planned:
        if not has_landed:
            self._counted = self._epoch
        stamped = {**given, "stamp": self._counted}
        submitted = self._enqueue(work, call, stamped, has_landed)
        planned = self.report.wait(self._epoch)
        moves = (
            not planned.is_aborted
            and min(planned.sources) >= 0
            and max(planned.sources) <= work.places
            and max(planned.slots) <= self.limits.capacity
        )
        self._going = None
        if moves:
            found = attempt(self._members.rank, self._find)
            if isinstance(found, FuscoRuntimeError):
                raise found
            self._going = found
        self._flow_calls(work.places).move(work, call, submitted, self._going)
        return planned

    def _follow_up(
        self, known: RailKnown, work: RailWork, call: RailCall, given: Mapping[str, int]
    ) -> None:
        assert isinstance(known, FlowKnown)
        calls = self._flow_calls(work.places)
        calls.move(work, call, calls.dispatch(work, call, given), known.going)

    def _start_none(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        known: RailKnown | None,
    ) -> None:
        ways = known.going if isinstance(known, FlowKnown) else None
        self._flow_calls(work.places).refuse(work, call, given, ways)

    def _combine(
        self, known: RailKnown, tells: int, fields: dict[str, int], weights: Tensor | None
    ) -> None:
        assert isinstance(known, FlowKnown)
        self._flow_calls(known.work.places).bring_back(
            known.launched, known.work, known.number, tells, fields,
            0 if weights is None else address(weights), self._routing, known.going,
        )  # fmt: skip

    def _find(self) -> Going:
        """The ways of a dispatch whose counts have come, and room for its rows; collective over all
        ranks where there has to be more.

        Raises:
            FuscoRuntimeError: a rank has none, as all of them say.
        """
        demand = self._counts.demand(self._counted)
        ways = find_ways(demand, self._rules, self._model, self._members.rank)
        assert self._rows is not None
        rows = grown(ways.most_rows, self._rows.rows)
        if rows > self._rows.rows:
            self._make_rows(rows)
        of_a_stage = ways.most_rows * self._model.segment_bytes // max(1, ways.num_stages)
        num_lanes = lanes_of(of_a_stage, self._model.num_lanes)
        return going(ways, num_lanes, self._members.device)

    def _make_rows(self, rows: int) -> None:
        if not self._program.interpreted:
            torch.cuda.current_stream(self._members.device).synchronize()
        self._meet()  # peers' kernels may still read what has landed here
        assert self._rows is not None
        self._calls.clear()
        self._rows.free()
        self._rows = None  # both at once might not fit
        made = attempt(self._members.rank, partial(self._new_rows, rows))
        self._agree_on(made)
        assert isinstance(made, FlowMemory)
        self._rows = made

    def _new_rows(self, rows: int) -> FlowMemory:
        counts = self._counts.told
        return FlowMemory(
            self._allocate, rows, self._program.row_bytes, self._spec.partial_bytes,
            told_bytes=2 * counts.nbytes,
        )  # fmt: skip

    def _flow_calls(self, places: int) -> FlowCalls:
        calls = self._calls_of(places)
        assert isinstance(calls, FlowCalls)
        return calls

    def _new_calls(self, *given: Any) -> RailCalls:
        assert self._rows is not None
        programs = PROGRAMS_AN_SM * self._programs.sms
        return FlowCalls(
            *given, memory=self._rows, counts=self._counts, flows=self._flows, num_programs=programs
        )

    def _new_work(self, num_sources: int, places: int) -> RailWork:
        work = super()._new_work(num_sources, places)
        shape = 2, self._num_nodes, places
        numbers = torch.empty(shape, dtype=torch.int32, device=self._members.device)
        return FlowWork(**vars(work), numbers=numbers)
