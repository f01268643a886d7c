"""Exact sizes between nodes whose rows travel as flows: always where the spec has a policy, else in
calls that slabs would be too large for.

Who sends whose rows, and in which stages, is made of the counts of a dispatch, which all ranks
know. A dispatch is launched up to what plans slots. The host then reads how large flows are, with
what it waits for in any case, finds the ways of all rows as every other host does (`ways`), and
enqueues what is left of the call. Calls along a known routing, and combines, take the ways of its
dispatch and wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.lanes import lanes_of
from fuscoc_runtime.engine.node.agreed import agree_on
from fuscoc_runtime.engine.node.exact import Known, Work, grown
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.flow_calls import FlowCalls, FlowWork, flow_kernels
from fuscoc_runtime.engine.node.flow_counts import Counts
from fuscoc_runtime.engine.node.flow_memory import FlowMemory
from fuscoc_runtime.engine.node.flow_posts import Going
from fuscoc_runtime.engine.node.places import are_balanced
from fuscoc_runtime.engine.node.rail_calls import (
    RailCall,
    RailCalls,
    RailKnown,
    RailWork,
    Submitted,
)
from fuscoc_runtime.engine.node.report import GOES, Planned
from fuscoc_runtime.engine.node.triton_memory import uploaded
from fuscoc_runtime.engine.node.ways import Ways, find_ways
from fuscoc_runtime.engine.probe import link_between
from fuscoc_runtime.engine.relation import Ragged
from fuscoc_runtime.errors import FuscoRuntimeError, PreparationError
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Demand
from fuscoc_runtime.room import num_row_bits


@dataclass(frozen=True, eq=False)
class FlowKnown(RailKnown):
    """With the ways of its rows, and what of a reply to it will travel."""

    going: Going
    of_reply: Demand | None

    @property
    def tensors(self) -> list[Tensor]:
        return [*super().tensors, self.going.parts]


class FlowRails(ExactRails):
    """A shuffle among the ranks of several nodes; construction is collective over ``members``."""

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
        self._model, self._measures = model, measures
        self._rows: FlowMemory | None = None
        self._going: Going | None = None
        self._of_reply: Demand | None = None
        self._counted = 0  # the epoch of the latest dispatch whose flows were counted
        super().__init__(artifact, shuffle, node, members, num_sms, measures)
        if self._sizes.are_flows(self._places):
            self._be_ready()

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address, now."""
        return super().window_bytes + (0 if self._rows is None else self._rows.local.numel())

    @property
    def num_rounds(self) -> int:
        """Rounds in which rows of the latest dispatch crossed the network, or of the next size."""
        return super().num_rounds if self._going is None else self._going.ways.num_legs

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
        if not isinstance(made, RailKnown) or self._going is None:
            return made
        return FlowKnown(**vars(made), going=self._going, of_reply=self._of_reply)

    def follow(self, asked: Known, each: int, weights: Tensor | None) -> Known | FuscoRuntimeError:
        """See `ExactRails.follow`. What asks has counted the rows of answers, and numbered them."""
        known = super().follow(asked, each, weights)
        assert isinstance(known, RailKnown)
        if not self._sizes.are_flows(known.work.places):
            return known
        assert isinstance(asked, FlowKnown)
        assert isinstance(asked.work, FlowWork)
        assert self._going is not None
        none = asked.work.of_reply[:, :, :0]
        work = FlowWork(**vars(known.work), numbers=asked.work.of_reply, of_reply=none)
        self._flow_calls(work.places).settle(work, self._going)
        return FlowKnown(**{**vars(known), "work": work}, going=self._going, of_reply=None)

    def _have_room_to_answer(self, asked: RailKnown, places: int) -> None:
        super()._have_room_to_answer(asked, places)
        self._going = None
        if self._sizes.are_flows(places):
            assert isinstance(asked, FlowKnown)
            assert asked.of_reply is not None
            self._going = self._find(asked.of_reply)

    def _start(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        has_landed: bool = False,
    ) -> Planned:
        self._going = None
        if not self._sizes.are_flows(work.places):
            return super()._start(work, call, given, has_landed)
        if not has_landed:
            self._counted = self._epoch
        stamped, calls = {**given, "stamp": self._counted}, self._flow_calls(work.places)
        submitted = self._enqueue(work, call, stamped, has_landed)
        planned = self.report.wait(self._epoch)
        moves = (
            not planned.is_aborted
            and planned.verdict == GOES
            and min(planned.sources) >= 0
            and max(planned.sources) <= work.places
            and max(planned.slots) <= self.limits.capacity
        )
        if moves:
            asked, self._of_reply = self._counts.demands(self._counted)
            self._going = self._find(asked)
        with_room = self._flow_calls(work.places)
        if with_room is not calls:  # rows lie elsewhere now
            submitted = with_room.prepared(work, call, stamped)
        with_room.move(call, submitted, self._going)
        return planned

    def _follow_up(
        self, known: RailKnown, work: RailWork, call: RailCall, given: Mapping[str, int]
    ) -> Submitted:
        submitted = super()._follow_up(known, work, call, given)
        if isinstance(known, FlowKnown):
            self._flow_calls(work.places).move(call, submitted, known.going)
        return submitted

    def _start_none(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        known: RailKnown | None,
    ) -> None:
        if self._sizes.are_flows(work.places):
            going = known.going if isinstance(known, FlowKnown) else None
            self._flow_calls(work.places).refuse(work, call, given, going)
        else:
            super()._start_none(work, call, given, known)

    def _combine(
        self, known: RailKnown, tells: int, fields: dict[str, int], weights: Tensor | None
    ) -> None:
        if isinstance(known, FlowKnown):
            given = 0 if weights is None else address(weights)
            self._flow_calls(known.work.places).bring_back(
                known.launched, known.work, known.number, tells, fields, given, self._routing,
                known.going,
            )  # fmt: skip
        else:
            super()._combine(known, tells, fields, weights)

    def _find(self, demand: Demand) -> Going:
        """The ways of the rows of a call, and room for them; collective over all ranks where there
        has to be more.

        Raises:
            FuscoRuntimeError: a rank has none, as all of them say.
        """
        members, (ways, rows) = self._members, self._wanted(demand)
        if rows is not None:
            self._make_rows(rows)
        of_a_stage = ways.most_rows * self._model.segment_bytes // max(1, ways.num_stages)
        num_lanes = lanes_of(of_a_stage, self._model.num_lanes)
        parts = uploaded(ways.parts.flatten().tolist(), members.device)
        return Going(ways, parts, num_lanes)

    def _wanted(self, demand: Demand) -> tuple[Ways, int | None]:
        """The ways of the rows of a call, and how many there has to be room for if that is more
        than there is, both the same on all ranks.

        Raises:
            PreparationError: kernels cannot number so many.
        """
        assert self._rows is not None
        rank, rules = self._members.rank, self._shuffle.program.exchange
        ways = find_ways(demand, rules, self._model, rank)
        if ways.most_rows >> num_row_bits(self._program.room):
            problem = f"a rank would send {ways.most_rows} rows, more than kernels can number"
            raise PreparationError(rank, problem)
        rows = grown(ways.most_rows, self._rows.rows)
        return ways, rows if rows > self._rows.rows else None

    def _fail_in_dispatch(self, problem: FuscoRuntimeError, places: int) -> None:
        # There the other nodes may be making room for rows, and all hear of it.
        if self._sizes.are_flows(places):
            demand, _ = self._counts.demands(self._counted)
            if self._wanted(demand)[1] is not None:
                agree_on(self._members, problem)

    def _be_ready(self) -> None:
        """For calls of flows: know the network, and have lanes and some memory; collective.

        Raises:
            FuscoRuntimeError: as `_make_rows`; HopTimeoutError, NetworkError: a rank does not come.
        """
        members, program = self._members, self._program
        made = attempt(members.rank, lambda: (native.load(), flow_kernels(program)))
        agree_on(self._members, made, "no kernels of flows")
        assert isinstance(made, tuple)
        _, self._flows = made
        if self._measures:
            self.link = link = link_between(members)
            self._model = link.model(self._model)
        self.rails.open_lanes(self._model.num_lanes)
        if are_balanced(self._shuffle.program.exchange, self._topology):
            self.rails.connect_nodes()
        self._counts = Counts(program)
        self._make_rows((self._num_nodes - 1) * self._sizes.first)

    def _make_room(self, places: int, own_sources: int) -> RailWork:
        work = super()._make_room(places, own_sources)
        if self._sizes.are_flows(places) and self._rows is None:
            self._be_ready()
        return work

    def _make_rows(self, rows: int) -> None:
        if self._rows is not None:
            if not self._program.interpreted:
                torch.cuda.current_stream(self._members.device).synchronize()
            self._meet()  # peers' kernels may still read what has landed here
            self._calls.clear()
            self._rows.free()
            self._rows = None  # both at once might not fit
        told_bytes = 2 * self._counts.told.nbytes
        make: Callable[[], FlowMemory] = partial(
            FlowMemory, self._allocate, rows, self._program.row_bytes, self._spec.partial_bytes,
            told_bytes,
        )  # fmt: skip
        made = attempt(self._members.rank, make)
        agree_on(self._members, made)
        assert isinstance(made, FlowMemory)
        self._rows = made

    def _flow_calls(self, places: int) -> FlowCalls:
        calls = self._calls_of(places)
        assert isinstance(calls, FlowCalls)
        return calls

    def _new_calls(self, *given: Any) -> RailCalls:
        *_, places = given
        if not self._sizes.are_flows(places):
            return super()._new_calls(*given)
        assert self._rows is not None
        return FlowCalls(*given, memory=self._rows, counts=self._counts, flows=self._flows)

    def _new_work(self, num_sources: int, places: int) -> RailWork:
        work = super()._new_work(num_sources, places)
        if not self._sizes.are_flows(places):
            return work
        of_reply = 0 if self._shuffle.reply is None else places // self._shuffle.segments_answered
        numbers, reply_numbers = (
            torch.empty(2, self._num_nodes, each, dtype=torch.int32, device=self._members.device)
            for each in (places, of_reply)
        )
        return FlowWork(**vars(work), numbers=numbers, of_reply=reply_numbers)
