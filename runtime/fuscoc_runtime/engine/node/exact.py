"""The Triton kernels of one node where sizes are exact: windows that grow, handles that last.

A dispatch that plans is launched as a whole, and the host waits for the counts alone, which
planning writes into its memory before rows move. They are the same on all ranks. If they say that
windows are too small, nothing has been stored: the ranks make larger ones and launch again. All
else is only enqueued. What a handle needs of other ranks they tell anew, since the windows have
what later dispatches left there; so handles last as long as somebody keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.comm.windows import allocator
from fuscoc_runtime.engine.node.report import Planned, Report, signed
from fuscoc_runtime.engine.node.rings import DROPPED, Launched, RingEntry
from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.engine.node.state import MEETINGS, PLAN_EPOCH, Limits, new_state
from fuscoc_runtime.engine.node.triton_memory import (
    BACK,
    TritonMemory,
    call_words,
    new_buffers,
    new_scratch,
    new_segments,
    segment_words,
    uploaded,
)
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.engine.relation import Ragged
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.kernels.commands import carry_out
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.plan.links import Link
from fuscoc_runtime.room import num_routing_words

MAX_POINTS = 1 << 30
"""Of all ranks: kernels count slots in 32 bits, with padding, which is as many at the most."""
SMALLEST = Limits(1, 1)
ENTRY = RingEntry(0, 1, 0, captured=False)  # handles have memory of their own: there is one entry
POINTS_TOLD = 1024  # by a program at once
SEGMENTS = 32  # that a program looks at together


@dataclass(frozen=True, eq=False)
class Known:
    """A routing of this rank, which later calls may follow.

    Attributes:
        number: of the dispatch that planned it, the same on all ranks.
        slots, sources: of every rank, and its source segments.
        num_rows: rows that this rank has got: one for every slot, unless the target is compact.
        segments: where its source segments lie; see ``new_segments``.
        first_slots: int32 [num_sources, ranks that there is room for].
    """

    launched: Launched
    number: int
    slots: tuple[int, ...]
    sources: tuple[int, ...]
    num_rows: int
    segments: Tensor
    first_slots: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All memory that it keeps."""
        return [self.segments, self.first_slots, *self.launched.tensors]


@dataclass(frozen=True, eq=False)
class Work:
    """Memory of one dispatch that plans: what its handle keeps, and what its kernels alone need."""

    buffers: dict[str, Tensor]
    segments: Tensor
    scratch: dict[str, Tensor]


class ExactNode:
    """A shuffle among the ranks of one node; construction is collective over ``members``."""

    rails: Rails | None = None
    is_out_of_step = False  # between nodes, as `NodeKernels` has it
    is_judged = False  # whether nodes tell each other verdicts
    link: Link | None = None
    """What was measured of the network, if it was."""

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        members: Membership,
        num_sms: int | None,
    ) -> None:
        self._program = program = TritonProgram(artifact, shuffle, node, members)
        self._again = program.load("known", "again", ("call", "number", "ticket"))
        self._agree = program.load("known", "agree", ("call", "joins", "num_slots"))
        tell = ("call", "number", "num_sources", "fanout", "weights", "known", "refuses")
        self._tell = program.load("known", "tell", tell)
        follow = ("call", "num_sources", "fanout", "segments", "known", "own_sources")
        self._follow = program.load("answer", "follow", follow)
        self.zeroes_results, self._fanout = node.places_results, shuffle.program.fanout
        self._members, device = members, members.device
        self.state, self.page = new_state(members.topology.num_ranks, device)
        self.report = Report(device, program.num_ranks, self.is_judged, members.tracer)
        num_words = num_routing_words(program.room)
        self._routing = torch.zeros(num_words, dtype=torch.int32, device=device)  # of combines
        self._programs = program.model(num_sms)
        self._epoch = 0  # dispatches launched
        self._most_slots = program.most_slots
        if program.target.kind == "packed" and program.target.capacity is not None:
            self._most_slots = min(program.most_slots, program.target.capacity)
        members.meet("opening")  # a rank that has no kernels does not come
        self._allocate = allocator(members)
        self._memory = self._new_memory(SMALLEST)

    @property
    def limits(self) -> Limits:
        """How large calls may be before windows have to grow; the same on all ranks."""
        return self._memory.limits

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The target's fields, [rows, elements], in the window."""
        return self._memory.rows

    @property
    def lent(self) -> range:
        """Addresses of the memory that they are a part of, until windows grow."""
        return self._memory.lent

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window, now."""
        return self._memory.window.local.numel()

    @property
    def private_bytes(self) -> int:
        """Bytes besides, now: none but those of handles."""
        return 0

    def points(self) -> Tensor:
        """int64 [num_ranks, max_sources, fanout]: code and weight bits that the peers have told in
        the latest dispatch."""
        return self._memory.points()

    def new_work(self, num_sources: int, num_slots: int) -> Work | None:
        """Memory of a dispatch, before peers wait for it; None if kernels cannot count it."""
        program = self._program
        num_points = num_sources * self._fanout * program.num_ranks
        if num_points > MAX_POINTS or num_slots > program.most_slots:
            return None
        return Work(
            new_buffers(program, num_sources),
            new_segments(program, num_sources),
            new_scratch(program, num_sources),
        )

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
        """Plan a dispatch, the ``number``-th, and move its rows; see ``TritonNode.dispatch``.

        ``work`` is that of ``new_work``. This rank refuses the call if ``faults``, int64 [1], is
        above 0, which nobody has looked at yet. ``ragged``: where the segments of a ragged domain
        are.

        Returns what was planned instead of a routing if nothing was moved: a rank refuses the call,
        for points that cannot be moved among other reasons, there are more slots than may be, or
        waits were ended. Returns an error of all ranks if one has no memory for a larger window;
        nothing was moved, and calls may follow.

        Raises:
            FuscoRuntimeError: the ranks are out of step for good.
        """
        program, buffers, segments = self._program, work.buffers, work.segments
        values = program.given(inputs, extents) | {"num_slots": num_slots}
        columns = program.shuffle.program.relation.addresses
        values |= zip(columns, map(address, segments), strict=True)
        values |= {} if ragged is None else ragged.addresses
        launched = Launched(
            ENTRY, num_sources, buffers["codes"], buffers["key_counts"], buffers["key_starts"],
            buffers["routing"], weights, num_slots=num_slots,
        )  # fmt: skip
        while True:
            self._launch(values, launched, work, source, faults)
            planned = self.report.wait(self._epoch)
            if planned.is_aborted or min(planned.sources) < 0:
                return planned
            if max(planned.slots) > self._most_slots:
                return planned
            wanted = Limits(max(planned.sources), max(planned.slots))
            if _fits(wanted, self.limits):
                break
            problem = self._grow(wanted)
            if problem is not None:
                return problem
        rank = self._members.rank
        launched = self._kept(replace(launched, num_slots=planned.slots[rank]))
        first = buffers["first_slots"]
        return Known(
            launched, number, planned.slots, planned.sources, planned.num_rows, segments, first
        )

    def dispatch_again(
        self, number: int, source: Sequence[Tensor], known: Known, weights: Tensor | None
    ) -> Known:
        """Move rows along a routing, in the ``number``-th dispatch. Nothing waits; the host reads
        later if ranks disagree, and then nothing has been moved."""
        launched = replace(known.launched, routing=known.launched.routing.clone(), weights=weights)
        table = self._table(launched, known.segments, known.first_slots)
        self._again.launch({"call": table.data_ptr(), "number": known.number, "ticket": 1}, 1)
        self._epoch += 1
        values = self._moved(table, launched, source)
        self._program.kernels["dispatch"].launch(values, self._programs.dispatch)
        return replace(known, launched=launched, number=number)

    def follow(self, asked: Known, each: int, weights: Tensor | None) -> Known | FuscoRuntimeError:
        """The routing that a shuffle of the same points has planned, of rows that answer ``each``
        so many of its segments; collective where windows have to grow. Nothing waits otherwise.

        Returns an error of all ranks if one has no memory for a larger window.
        """
        program, sources = self._program, tuple(count // each for count in asked.sources)
        wanted = Limits(max(sources), max(asked.slots))
        problem = None if _fits(wanted, self.limits) else self._grow(wanted)
        if problem is not None:
            return problem
        num_sources = sources[self._members.rank]
        buffers, segments = new_buffers(program, num_sources), new_segments(program, num_sources)
        routing, first = buffers["routing"], buffers["first_slots"]
        codes = asked.launched.codes.view(num_sources, self._fanout)
        launched = replace(
            asked.launched, num_sources=num_sources, codes=codes, routing=routing, weights=weights
        )
        known = replace(
            asked, launched=launched, sources=sources, segments=segments, first_slots=first
        )
        self._adopt(known, asked, each, num_sources)
        return known

    def _adopt(self, known: Known, asked: Known, each: int, own_sources: int) -> None:
        """Fill in what was ``asked`` of a routing ``known`` by that, of so many segments of this
        rank's own."""
        launched, fanout = known.launched, self._fanout
        table = self._table(launched, known.segments, known.first_slots)
        values = {"call": table.data_ptr(), "num_sources": launched.num_sources, "fanout": fanout}
        values |= {"segments": each, "known": address(asked.launched.routing)}
        values["own_sources"] = own_sources
        programs = min(launched.num_sources // SEGMENTS, self._programs.reducers)
        self._follow.launch(values, max(1, programs))
        if self._program.is_compact:  # rows, one for each that was asked of a rank
            known.first_slots.copy_(asked.first_slots)

    def combine(
        self,
        rows: Sequence[Tensor],
        known: Known,
        results: Sequence[Tensor],
        weights: Tensor | None,
        is_late: bool = True,
    ) -> None:
        """Reduce each segment's rows [num_slots, elements] of every field, weighted by f32
        [num_sources, fanout], into ``results``, or copy them. Nothing waits; the host reads later
        if ranks disagree, and sums that need others' rows are NaN then. Weights that are not late
        came with the dispatch, too."""
        program, launched = self._program, known.launched
        there = replace(launched, routing=self._routing)
        table = self._table(there, known.segments, known.first_slots, BACK)
        given = 0 if weights is None else address(weights)
        self._tell_peers(table, known.number, launched.num_sources, given, launched.routing)
        values = program.values(table.data_ptr(), there, given) | {"rows_ticket": 0}
        values |= program.fields_back(rows, results)
        program.kernels["combine"].launch(values, self._programs.combine)

    def refuse_dispatch(self, number: int) -> None:
        """Take the turn of a dispatch that plans without joining it."""
        buffers = new_buffers(self._program, 0)
        table = self._new_table(0, buffers)
        self._epoch += 1
        self._program.refuse(table.data_ptr(), 1)
        if self._program.is_dense:
            self._agree.launch({"call": table.data_ptr(), "joins": 0, "num_slots": 0}, 1)

    def refuse_again(self, number: int, known: Known | None) -> None:
        """Take the turn of a dispatch along a routing without joining it."""
        buffers = new_buffers(self._program, 0)
        table = self._new_table(0, buffers)
        self._epoch += 1
        self._again.launch({"call": table.data_ptr(), "number": -1, "ticket": 1}, 1)

    def refuse_combine(self, known: Known | None, is_late: bool) -> None:
        """Take a combine's turn without joining it, whose weights are late elsewhere, too."""
        table = self._new_table(BACK, {"routing": self._routing})
        self._tell_peers(table, 0, 0, 0, self._routing, refuses=True)

    def _launch(
        self,
        values: dict[str, int],
        launched: Launched,
        work: Work,
        source: Sequence[Tensor],
        faults: Tensor | None,
    ) -> None:
        """All of a dispatch that plans."""
        program, num_sources = self._program, launched.num_sources
        words = call_words(program, work.scratch, work.segments, work.buffers)
        table = self._new_table(0, words)
        launched.routing.zero_()
        if faults is not None:  # as points that cannot be moved, of this first use
            launched.routing[DROPPED + 1 : DROPPED + 2].copy_(faults)
        if program.is_compact:  # before the peers know that this rank joins the call
            self._memory.part("row_index", torch.int64, self.limits.capacity).fill_(-1)
        values = values | program.values(table.data_ptr(), launched, 0)
        values |= {name: address(column) for name, column in work.scratch.items()}
        values |= program.points(num_sources) | program.sizes(num_sources, self._programs)
        begun = program.bits_of_cells(source)
        if begun is not None:
            values["begun"] = address(begun)
        carry_out([*program.evaluating(), *program.planning(values)], values)
        if program.is_dense:
            agreed = {"call": table.data_ptr(), "joins": 1, "num_slots": launched.num_slots}
            self._agree.launch(agreed, 1)
        values |= self._moved(table, launched, source)
        self._epoch += 1
        program.moving().carry_out(values)

    def _moved(self, table: Tensor, launched: Launched, source: Sequence[Tensor]) -> dict[str, int]:
        """What is passed to the kernel that moves the rows of a dispatch."""
        weights = launched.codes if launched.weights is None else launched.weights  # any: unread
        values = self._program.values(table.data_ptr(), launched, address(weights))
        return values | self._program.fields_sent(source, self._memory.sections["rows"])

    def _kept(self, launched: Launched) -> Launched:
        """With copies of what the latest dispatch has left in the window for its handle."""
        if self._program.is_compact:
            index = self._memory.part("row_index", torch.int64, launched.num_slots)
            return replace(launched, row_index=index.clone())
        if self._program.is_dense:
            claims = self._memory.part("claims", torch.int32, launched.num_slots)
            return replace(launched, filled_slots=claims == signed(self._epoch))
        return launched

    def _tell_peers(
        self,
        table: Tensor,
        number: int,
        num_sources: int,
        weights: int,
        routing: Tensor,
        refuses: bool = False,
    ) -> None:
        values = {"call": table.data_ptr(), "number": number, "num_sources": num_sources}
        values |= {"fanout": self._fanout, "weights": weights, "known": address(routing)}
        programs = telling_programs(num_sources * self._fanout, self._programs)
        self._tell.launch({**values, "refuses": int(refuses)}, programs)

    def _table(
        self, launched: Launched, segments: Tensor, first_slots: Tensor, entry: int = 0
    ) -> Tensor:
        """The table of a call along a routing."""
        held = {"codes": launched.codes, "first_slots": first_slots, "routing": launched.routing}
        words = segment_words(segments) | {name: address(each) for name, each in held.items()}
        return self._new_table(entry, words)

    def _new_table(self, entry: int, others: Mapping[str, int | Tensor]) -> Tensor:
        """A table on the device, with ``others`` of its words."""
        table = self._memory.table(entry, self._programs, **self._words(others))
        return uploaded(table, self._members.device)

    def _words(self, others: Mapping[str, int | Tensor]) -> dict[str, int]:
        """Words of every table, and ``others``."""
        lasting = {"state": self.state, "page": self.page, "report": self.report.words}
        named = {**lasting, **others}
        return {
            name: address(each) if isinstance(each, Tensor) else each
            for name, each in named.items()
        }

    def _new_memory(self, limits: Limits) -> TritonMemory:
        return TritonMemory(self._program, limits, self._allocate, 1, is_exact=True)

    def _grow(self, wanted: Limits) -> FuscoRuntimeError | None:
        """Make a window for calls of that size, and of some more where it has to be larger;
        collective. The ranks meet before they let go of the old one: a peer's kernels may still
        tell this rank that it has nothing to store.

        Returns what is wrong if a rank has no memory for it, the same on all. Then there is one of
        the size that it had: calls along routings so far need no more, and do not let it grow.
        """
        held = self.limits
        limits = Limits(
            grown(wanted.max_sources, held.max_sources),
            min(grown(wanted.capacity, held.capacity), self._program.most_slots),
        )
        epoch, meetings = self.state[[PLAN_EPOCH, MEETINGS]].tolist()  # waits for the device
        self._meet()
        self._memory.free()  # both at once might not fit
        problem, rank = None, self._members.rank
        memory = attempt(rank, partial(self._new_memory, limits))
        if isinstance(memory, FuscoRuntimeError):
            problem, memory = memory, attempt(rank, partial(self._new_memory, held))
            if isinstance(memory, FuscoRuntimeError):
                raise memory
        self._memory = memory
        self._memory.pretend(epoch, meetings)
        if not self._program.interpreted:
            torch.cuda.current_stream(self._members.device).synchronize()
        self._meet()
        return problem

    def _meet(self) -> None:
        """Wait for all ranks that share windows."""
        self._members.meet("window allocation")


def telling_programs(num_points: int, programs: Programs) -> int:
    """Those that tell peers of so many points."""
    return max(1, min(-(-num_points // POINTS_TOLD), programs.reducers))


def _fits(wanted: Limits, held: Limits) -> bool:
    return wanted.max_sources <= held.max_sources and wanted.capacity <= held.capacity


def grown(wanted: int, held: int) -> int:
    """By a quarter at least, as each growth is a collective; not at all if it is enough."""
    return held if wanted <= held else max(wanted, held * 5 // 4)
