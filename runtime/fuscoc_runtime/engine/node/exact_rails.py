"""The Triton kernels of several nodes where sizes are exact: slabs and windows that grow, handles
that last.

A dispatch that plans is launched as a whole for as many places as the latest ones have needed, and
the host waits for the counts alone. All ranks of the job read from them the same of all ranks'
segments: whether one refuses the call, and whether one has more of them than there are places for.
Then nothing has been stored, and all launch again, with more places. Slots are counted by each node
alone: if its windows are too small, its ranks make larger ones, and take on once more what has
landed already; other nodes need not know. Where slots are given, or a rank may have only so many,
they do know: nodes tell each other a verdict before rows move (kernels/device/verdicts.py), and
plan once more together. A call along a known routing has as many places as the dispatch that
planned it, so nothing waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.engine.node.agreed import agree_on
from fuscoc_runtime.engine.node.exact import ENTRY, MAX_POINTS, ExactNode, Known, Work
from fuscoc_runtime.engine.node.places import Places
from fuscoc_runtime.engine.node.rail_calls import (
    RailCall,
    RailCalls,
    RailKnown,
    RailWork,
    Shared,
    Submitted,
    answers_to,
    call_tag,
    new_work,
)
from fuscoc_runtime.engine.node.rail_commands import PointExchange, gather_in_node
from fuscoc_runtime.engine.node.report import GOES, GROWS, REFUSES, Planned
from fuscoc_runtime.engine.node.rings import DROPPED, Launched, Sent
from fuscoc_runtime.engine.node.slabs import MOST_SENT, Slabs, new_slab_memory
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.node.triton_memory import (
    TritonMemory,
    new_scratch,
)
from fuscoc_runtime.engine.node.triton_program import COMBINED
from fuscoc_runtime.engine.probe import divide_slabs
from fuscoc_runtime.engine.relation import Ragged
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.plan.agree import attempt


class ExactRails(ExactNode):
    """A shuffle among the ranks of several nodes; construction is collective over ``members``.
    ``limits`` are of the segments that a rank takes on. It ``measures`` the network, or not. Calls
    whose rows travel in slabs; `FlowRails` has the others, too."""

    rails: Rails

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        num_sms: int | None,
        measures: bool,
    ) -> None:
        self._shuffle, self._spec, self._topology = shuffle, node, members.topology
        self._is_one_round, self._num_nodes = members.is_one_host, members.topology.num_nodes
        self._sizes = Places(shuffle, node, members.topology)
        self._places = self._sizes.first  # of the next dispatch, on all ranks
        target = shuffle.program.target
        self.is_judged = target.kind == "dense" or target.capacity is not None
        self._begun: Tensor | None = None  # source cells that segments of a call begin with
        super().__init__(artifact, shuffle, node, members, num_sms)
        self.rails = Rails(members, measures)
        divide_slabs(self.rails, members, MOST_SENT)
        self._shared: Shared | None = self._new_shared(self._places, self._with_rows(self._places))
        self._points: dict[int, PointExchange] = {}
        told = self._program.load("hop", "tell", ("told", "place"))
        self._kernels = {"again": self._again, "tell": self._tell, "told": told}
        if self.is_judged:
            judge = self._program.load("known", "judge", ("call",))
            self._kernels |= {"agree": self._agree, "judge": judge}

    @property
    def private_bytes(self) -> int:
        """Bytes of slabs, and of all else that calls share, now."""
        shared = 0 if self._shared is None else self._shared.num_bytes
        return shared + sum(each.num_bytes for each in self._points.values())

    @property
    def num_rounds(self) -> int:
        """Rounds in which rows of the next size cross the network."""
        return len(self._slabs_of(self._places).rounds)

    def new_work(self, num_sources: int, num_slots: int) -> RailWork | None:
        num_points = num_sources * self._fanout * self._topology.num_ranks
        if num_points > MAX_POINTS or num_slots > self._program.most_slots:
            return None
        return self._new_work(num_sources, self._places)

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
        """See `ExactNode.dispatch`. ``weights`` are sent with the rows.

        Raises:
            FuscoRuntimeError: the ranks are out of step for good, as when one has no memory for
                larger slabs or windows. Where not all ranks raise that this one ``is_out_of_step``.
        """
        assert isinstance(work, RailWork)
        program = self._shuffle.program
        kept = {  # handles last
            name: each.clone() for name, each in zip(program.inputs, inputs, strict=True)
        }
        sizes = dict(zip(program.extents, extents, strict=True))
        given = self._given(source, kept, sizes, weights, ragged)
        self._have_slabs(work.places)
        while True:
            fits = num_sources <= work.places
            packed, says = (num_sources, 0) if fits else (0, num_sources)
            tag = call_tag(number, number, weights is not None)
            call = RailCall(tag, None, packed, says, num_slots)
            self._begin(work, faults)
            planned = self._start(work, call, given)
            if planned.is_aborted or min(planned.sources) < 0:
                return planned
            most = max(planned.sources)
            if not self._sizes.are_carried(self._sizes.size_of(most)):
                return planned
            if most <= work.places:
                break
            work = self._make_room(self._sizes.size_of(most), num_sources)
        while planned.verdict == GROWS or (
            planned.verdict == GOES and max(planned.slots) > self.limits.capacity
        ):
            problem = self._have_slots(max(planned.slots))
            if self.is_judged:
                agree_on(self._members, problem)
            elif problem is not None:
                self._fail_in_dispatch(problem, work.places)
                self.is_out_of_step = True
                raise problem
            self._begin(work)
            planned = self._start(work, call, given, has_landed=True)
            if planned.is_aborted:
                return planned
        if planned.verdict == REFUSES:
            return planned
        self._places = self._sizes.next(work.places, most)
        slots = planned.slots[self._program.rank]
        launched = self._launched(work, num_sources, weights is not None, slots)
        return RailKnown(
            launched, number, planned.slots, planned.sources, planned.num_rows, work.segments,
            work.buffers["first_slots"], work, kept, sizes, ragged,
        )  # fmt: skip

    def dispatch_again(
        self, number: int, source: Sequence[Tensor], known: Known, weights: Tensor | None
    ) -> Known:
        """As `ExactNode.dispatch_again`. It plans once more: what peers need to know of the rows
        travels with them."""
        assert isinstance(known, RailKnown)
        work = self._new_work(known.num_sources, known.work.places)
        tag = call_tag(number, known.number, weights is not None)
        slots = known.launched.num_slots
        call = RailCall(tag, known.number, known.num_sources, num_slots=slots)
        given = self._given(source, known.inputs, known.extents, weights, known.ragged)
        self._begin(work)
        self._follow_up(known, work, call, given)
        launched = self._launched(work, known.num_sources, weights is not None, slots)
        first = work.buffers["first_slots"]
        return replace(
            known, launched=launched, number=number, segments=work.segments, first_slots=first,
            work=work,
        )  # fmt: skip

    def follow(self, asked: Known, each: int, weights: Tensor | None) -> Known | FuscoRuntimeError:
        """See `ExactNode.follow`; weights have come with what was asked, whose places have room for
        as many answers. Collective over the ranks of all nodes where slabs have to grow.

        Raises:
            FuscoRuntimeError: as `dispatch`.
        """
        assert isinstance(asked, RailKnown)
        self._have_room_to_answer(asked, asked.work.places // each)
        problem = self._have_slots(max(asked.slots))
        if problem is not None:
            self.is_out_of_step = True
            raise problem
        known = answers_to(asked, self._program, each)
        self._adopt(known, asked, each, known.num_sources)
        return known

    def _have_room_to_answer(self, asked: RailKnown, places: int) -> None:
        """Memory for the reply to a dispatch, with so many places; collective as `follow`."""
        assert self._shared is not None
        if places > self._shared.places or self._with_rows(places) > self._shared.with_rows:
            self._make_room(places, 0)

    def combine(
        self,
        rows: Sequence[Tensor],
        known: Known,
        results: Sequence[Tensor],
        weights: Tensor | None,
        is_late: bool = True,
    ) -> None:
        """See `ExactNode.combine`. Weights that are late, which all ranks give then or none, travel
        before; others have done so with the rows."""
        assert isinstance(known, RailKnown)
        taken_on = None
        if weights is not None:
            taken_on = self._weights_between(known, weights) if is_late else known.launched.weights
            assert taken_on is not None
        self._combine(known, known.number, self._program.fields_back(rows, results), taken_on)

    def _weights_between(self, known: RailKnown, weights: Tensor) -> Tensor:
        """Those of the segments that this rank has taken on, for its own."""
        exchange = self._points_between(known.work.places)
        of_segments = weights.view(-1, self._fanout)
        exchange.sent[:, : len(of_segments)] = of_segments
        return exchange.carry_out()

    def refuse_dispatch(self, number: int) -> None:
        """Take the turn of a dispatch that plans without joining it."""
        self._have_slabs(self._places)
        self._refuse(self._places, RailCall(call_tag(number, number), None, 0, says=-1))

    def refuse_again(self, number: int, known: Known | None) -> None:
        """Take the turn of a dispatch along a routing without joining it. The others get a handle,
        and what they do with it cannot be matched here."""
        self.is_out_of_step = True
        if known is not None:
            assert isinstance(known, RailKnown)
            call = RailCall(call_tag(number, known.number), known.number, 0, says=-1)
            self._refuse(known.work.places, call, known)

    def refuse_combine(self, known: Known | None, is_late: bool) -> None:
        """Take a combine's turn without joining it; without its routing, that is not possible."""
        if known is None:
            self.is_out_of_step = True
            return
        assert isinstance(known, RailKnown)
        names = [each.name for each in self._shuffle.program.buffers["source"]]
        nothing = {f"{part}.{name}": 0 for part in COMBINED for name in names}
        if is_late:
            self._weights_between(known, torch.empty(0, device=self._program.device))
        self._combine(known, -1, nothing, known.launched.weights)

    def gather(self, of_slot: Tensor) -> Tensor:
        """See `gather_in_node`."""
        return gather_in_node(self._members, of_slot)

    def bring_back(self, of_points: Tensor) -> Tensor:
        """What this rank has found for the points that it has taken on, 0 for those of others, at
        its own points: [places, fanout]."""
        places = of_points.numel() // (self._num_nodes * self._fanout)
        exchange = self._points_between(places)
        exchange.sent.copy_(of_points.view_as(exchange.sent))
        return exchange.carry_out().sum(0)

    def _start(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        has_landed: bool = False,
    ) -> Planned:
        """A dispatch that plans, of what ``has_landed`` already or as a whole; what was planned."""
        self._enqueue(work, call, given, has_landed)
        return self.report.wait(self._epoch)

    def _enqueue(
        self, work: RailWork, call: RailCall, given: Mapping[str, int], has_landed: bool
    ) -> Submitted:
        calls = self._calls_of(work.places)
        enqueue = calls.take_on_again if has_landed else calls.dispatch
        return enqueue(work, call, given)

    def _follow_up(
        self, known: RailKnown, work: RailWork, call: RailCall, given: Mapping[str, int]
    ) -> Submitted:
        """A dispatch along a routing."""
        return self._calls_of(work.places).dispatch(work, call, given)

    def _points_between(self, places: int) -> PointExchange:
        if places not in self._points:
            self._points[places] = PointExchange(
                self._program, self.rails, self._kernels["told"], places
            )
        return self._points[places]

    def _given(
        self,
        source: Sequence[Tensor],
        inputs: Mapping[str, Tensor],
        extents: Mapping[str, int],
        weights: Tensor | None,
        ragged: Ragged | None,
    ) -> dict[str, int]:
        """The arguments of a dispatch, as kernels are given them."""
        program = self._shuffle.program
        given = self._program.given(
            [inputs[name] for name in program.inputs], [extents[name] for name in program.extents]
        )
        given |= self._program.fields_left(source)
        given |= {} if ragged is None else ragged.addresses
        if weights is not None:
            given["own_weights"] = address(weights)
        self._begun = self._program.bits_of_cells(source)  # until all is launched
        if self._begun is not None:
            given["begun"] = address(self._begun)
        return given

    def _launched(
        self, work: RailWork, num_sources: int, has_weights: bool, num_slots: int
    ) -> Launched:
        """What combine needs of a dispatch of so many segments of this rank."""
        buffers = work.buffers
        sent = Sent(num_sources, work.own["rank"].view(-1, self._fanout))
        launched = Launched(
            ENTRY, self._num_nodes * work.places, buffers["codes"], buffers["key_counts"],
            buffers["key_starts"], buffers["routing"], buffers["weights"] if has_weights else None,
            num_slots=num_slots, sent=sent,
        )  # fmt: skip
        return self._kept(launched)

    def _refuse(self, places: int, call: RailCall, known: RailKnown | None = None) -> None:
        """Let a dispatch have no segments of this rank, one along a ``known`` routing too."""
        assert self._shared is not None
        work = replace(self._shared.work, places=places)
        nothing = [torch.empty(0)] * len(self._shuffle.program.read)
        given = self._program.placement | self._program.fields_left(nothing)
        self._begin(work)
        self._start_none(work, call, given, known)

    def _start_none(
        self,
        work: RailWork,
        call: RailCall,
        given: Mapping[str, int],
        known: RailKnown | None,
    ) -> None:
        self._calls_of(work.places).refuse(work, call, given)

    def _begin(self, work: RailWork, faults: Tensor | None = None) -> None:
        """Before what plans: its counts are of the first use of its memory."""
        routing = work.buffers["routing"]
        routing.zero_()
        if faults is not None:
            routing[DROPPED + 1 : DROPPED + 2].copy_(faults)
        if self._begun is not None:
            self._begun.zero_()
        if self._program.is_compact:  # before the peers know that this rank joins the call
            self._memory.part("row_index", torch.int64, self.limits.capacity).fill_(-1)
        self._epoch += 1

    def _combine(
        self, known: RailKnown, tells: int, fields: dict[str, int], weights: Tensor | None
    ) -> None:
        """One that this rank ``tells`` the others is of that dispatch; -1 if it refuses it."""
        given = 0 if weights is None else address(weights)
        self._calls_of(known.work.places).combine(
            known.launched, known.work, known.number, tells, fields, given, self._routing
        )

    def _calls_of(self, places: int) -> RailCalls:
        """Those with so many places, made once for the memory that there is."""
        calls = self._calls.get(places)
        if calls is None:
            assert self._shared is not None
            judged = {"most_slots": self._most_slots} if self.is_judged else {}
            calls = self._calls[places] = self._new_calls(
                self._program, self.rails, self._slabs_of(places), self._memory, self._programs,
                self._shared.scratch, self._words(judged), self._kernels, places,
            )  # fmt: skip
        return calls

    def _slabs_of(self, places: int) -> Slabs:
        assert self._shared is not None
        has_rows = not self._sizes.are_flows(places)
        return Slabs(
            self._shuffle, self._spec, self._topology, places, self._shared.slabs,
            self._is_one_round or not has_rows, has_rows=has_rows,
        )  # fmt: skip

    def _new_calls(self, *given: Any) -> RailCalls:
        return RailCalls(*given)

    def _new_work(self, num_sources: int, places: int) -> RailWork:
        return new_work(self._program, num_sources, places)

    def _with_rows(self, places: int) -> int:
        """Of so many places those whose slabs have rows: all or none."""
        return 0 if self._sizes.are_flows(places) else places

    def _have_slabs(self, places: int) -> None:
        """Before a dispatch with so many places: have slabs for them, with rows unless these are
        too many. Earlier ones may have had more places, without rows. Collective, as all ranks
        know.

        Raises:
            FuscoRuntimeError: as `_make_room`.
        """
        assert self._shared is not None
        held = self._shared.places, self._shared.with_rows
        wanted = max(held[0], places), max(held[1], self._with_rows(places))
        if wanted != held:
            self._share(*wanted)

    def _have_slots(self, most: int) -> FuscoRuntimeError | None:
        """Have windows for so many slots, the most of a rank of this node; collective inside it.
        Returns what is wrong if a rank has no memory for them: other nodes know of it, or go on
        with the call, and then this one is out of step."""
        if most <= self.limits.capacity:
            return None
        wanted = Limits(self.limits.max_sources, most)
        return attempt(self._members.rank, lambda: self._grow(wanted))

    def _fail_in_dispatch(self, problem: FuscoRuntimeError, places: int) -> None:
        """Before this node raises a ``problem`` that others do not know of, in a call of so many
        places: raise it on all ranks if they meet once more in this call."""

    def _new_shared(self, places: int, with_rows: int) -> Shared:
        given = self._shuffle, self._spec, self._topology, places
        slabs = new_slab_memory(*given, self._members.device, with_rows=with_rows)
        scratch = new_scratch(self._program, self._num_nodes * places)
        return Shared(places, with_rows, slabs, scratch, self._new_work(0, places))

    def _share(self, places: int, with_rows: int) -> None:
        """Larger memory for all calls; collective over all ranks.

        Raises:
            FuscoRuntimeError: as `_make_room`.
        """

        def make() -> None:
            if not self._program.interpreted:  # later rounds may be under way
                torch.cuda.current_stream(self._members.device).synchronize()
            self._calls.clear()
            self._shared = None  # both at once might not fit
            self._shared = self._new_shared(places, with_rows)

        agree_on(self._members, attempt(self._members.rank, make))

    def _new_memory(self, limits: Limits) -> TritonMemory:
        self._calls: dict[int, RailCalls] = {}  # which are of other windows
        most = max(limits.max_sources, self._num_nodes * self._places)
        limits = replace(limits, max_sources=most)
        return TritonMemory(self._program, limits, self._allocate, 1, is_exact=True)

    def _make_room(self, places: int, own_sources: int) -> RailWork:
        """Memory for a dispatch with so many places; collective over all ranks.

        Raises:
            FuscoRuntimeError: a rank has none, as all of them say.
        """
        self._have_slabs(places)
        rank, limits = self._members.rank, self.limits
        work = attempt(rank, lambda: self._new_work(own_sources, places))
        agree_on(self._members, work)
        taken_on = self._num_nodes * places
        if taken_on > limits.max_sources:
            wanted = replace(limits, max_sources=taken_on)
            agree_on(self._members, attempt(rank, lambda: self._grow(wanted)))
        assert isinstance(work, RailWork)
        return work

    def _meet(self) -> None:
        # To allocate is collective inside the node, and of what is between nodes nobody waits.
        self._allocate(1)
