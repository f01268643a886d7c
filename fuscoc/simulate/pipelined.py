"""A path as a pipeline around the network hop.

What comes before the hop fills a round's slices on one lane, rounds travel on lanes of the wire in
turn, what comes behind works them off on another lane, and a round's slot of the ring is filled
again once it has. Signals are joins of a node's ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.amounts import ALL, ListAmounts
from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.hop import NetworkPlan
from fuscoc.simulate.rounds import ring_slots
from fuscoc.simulate.steps import Wires
from fuscoc.simulate.tasks import Builder
from fuscoc_runtime.engine.path import HANDED_OVER
from fuscoc_runtime.manifest.program import LaunchStep, PathSpec
from fuscoc_runtime.plan.cost import CostModel

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class Host:
    """Seconds from the call until a rank can send, and then until it knows what it receives."""

    plan: float
    describe: float


class Pipelined:
    """The tasks of one path on all ranks.

    Tasks of a step are int64 [R, K], one in every round, or [R, 1] if it has nothing to do with
    rounds.
    """

    def __init__(
        self,
        wires: Wires,
        path: PathSpec,
        plan: NetworkPlan,
        amounts: ListAmounts,
        model: CostModel,
    ) -> None:
        self._wires, self._path, self._plan, self._amounts = wires, path, plan, amounts
        self._cluster: Cluster = wires.cluster
        self._builder: Builder = wires.builder
        self._num_rounds, self._ring = plan.num_rounds, ring_slots(model)
        self._lanes = model.num_lanes
        self._ranks = np.arange(self._cluster.num_ranks)
        self._signalled: dict[int, Int64Array] = {}

    def build(self, host: Host, begin: Int64Array) -> Int64Array:
        """Add all tasks, behind those in ``begin`` [R]; returns the last of every rank, [R]."""
        builder, rounds = self._builder, self._num_rounds
        before = self._with_work(self._path.before) if rounds else []
        behind = self._with_work(self._path.behind)
        in_rounds = [step for step in behind if rounds and self._is_cut(step)]
        at_once = [step for step in in_rounds if not step.wait]
        trailing = [step for step in in_rounds if step.wait]
        last = [step for step in behind if step not in in_rounds]

        planned = builder.add(self._ranks, "plan", ("what to send",), host.plan)
        builder.after(begin, planned)
        together = builder.add(self._ranks)  # nobody knows what to send before all have counted
        builder.after(builder.join(planned[None, :]), together)
        known = builder.add(self._ranks, "plan", ("the rest",), host.describe)
        builder.after(together, known)
        users = known
        for step in self._path.beside:
            ids = self._step(step, ALL)
            builder.after(users, ids[:, 0])
            users = ids[:, 0]
        done = self._rounds(before, together) if rounds else np.zeros((len(users), 0), np.int64)
        ends = [users]
        if rounds:
            ends += [done[:, -1], self._work_off(at_once, trailing, done, known)]
        joined = builder.join(np.stack(ends, axis=1))
        for step in last:
            ids = self._step(step, ALL)
            builder.after(joined, ids[:, 0])
            for slot in step.wait:
                self._wait(slot, -1, ids[:, 0])
            joined = ids[:, 0]
        return joined

    def _rounds(self, before: list[LaunchStep], begin: Int64Array) -> Int64Array:
        """Fill slices and send them: the joins of every round's end, [R, K]."""
        builder, rounds = self._builder, self._num_rounds
        signals = [step for step in before if step.signal is not None]
        fills = [step for step in before if step.signal is None]
        ids = {step.list: self._step(step, rounds, name="rows of slice {}") for step in signals}
        ids |= {step.list: self._step(step, rounds, lane="gather") for step in fills}
        start = builder.add(np.broadcast_to(self._ranks[:, None], (len(begin), rounds)))
        end = builder.add(np.broadcast_to(self._ranks[:, None], (len(begin), rounds)))
        lane, told = begin, 0
        for number in range(rounds):
            builder.after(lane, start[:, number])
            lane = start[:, number]
            # Signals go out a round ahead.
            for ahead in range(told, min(number + 2, rounds)):
                for step in signals:
                    builder.after(lane, ids[step.list][:, ahead])
                    lane = ids[step.list][:, ahead]
                told = ahead + 1
            for step in fills:
                builder.after(lane, ids[step.list][:, number])
                for slot in step.wait:
                    self._wait(slot, number, ids[step.list][:, number])
                lane = ids[step.list][:, number]
            builder.after(lane, end[:, number])
            lane = end[:, number]
        self._starts = start
        return self._travel(end)

    def _travel(self, filled: Int64Array) -> Int64Array:
        """Slices on the lanes of the wire; returns when a rank has sent and received each round."""
        builder, slices, lanes = self._builder, self._plan.slices, self._lanes
        forth = self._path.exchange.forwarder is not None
        sender, receiver = slices.sender, slices.receiver
        if not forth:
            sender, receiver = receiver, sender
        number = slices.round
        order = number % lanes
        flows = builder.add(
            sender,
            [f"wire {each}" for each in order],
            [f"slice {each}" for each in number],
            self._cluster.latency,
        )
        ring = "slices" if forth else "return_slices"
        num_bytes = self._wires.slice_bytes(ring, slices)
        self._wires.network(flows, sender, receiver, num_bytes)
        done = builder.add(np.broadcast_to(self._ranks[:, None], filled.shape))
        builder.after(filled, done)
        builder.after(done[:, :-lanes], done[:, lanes:])
        later = number >= lanes
        for rank in (sender, receiver):
            builder.after(filled[rank, number], flows)
            builder.after(done[rank[later], number[later] - lanes], flows[later])
            builder.after(flows, done[rank, number])
        return done

    def _work_off(
        self,
        at_once: list[LaunchStep],
        trailing: list[LaunchStep],
        done: Int64Array,
        known: Int64Array,
    ) -> Int64Array:
        """The lane that forwards: its last task on every rank."""
        builder, rounds = self._builder, self._num_rounds
        ids = {step.list: self._step(step, rounds) for step in at_once}
        # One part more than there are rounds: what direct rows leave to do comes first.
        late = {
            step.list: self._step(step, rounds + 1, first=ALL, name="before slice {}")
            for step in trailing
        }
        arrived = builder.add(np.broadcast_to(self._ranks[:, None], done.shape))
        builder.after(done, arrived)
        lane = known
        for number in range(rounds):
            builder.after(lane, arrived[:, number])
            lane = arrived[:, number]
            for step in at_once:
                builder.after(lane, ids[step.list][:, number])
                lane = ids[step.list][:, number]
            if number + self._ring < rounds:
                builder.after(lane, self._starts[:, number + self._ring])
            for step in trailing:
                lane = self._trail(step, late[step.list][:, number], number - 1, lane, at_once)
        for step in trailing:
            lane = self._trail(step, late[step.list][:, rounds], rounds - 1, lane, at_once)
        return lane

    def _trail(
        self,
        step: LaunchStep,
        ids: Int64Array,
        number: int,
        lane: Int64Array,
        senders: list[LaunchStep],
    ) -> Int64Array:
        """A part that waits for what peers have signalled up to a round."""
        self._builder.after(lane, ids)
        of_rounds = {sender.signal for sender in senders}
        for slot in step.wait:
            if slot not in of_rounds:
                self._wait(slot, -1, ids)
            elif number >= 0:
                self._wait(slot, number, ids)
        return ids

    def _step(
        self,
        step: LaunchStep,
        rounds: int,
        first: int = 0,
        lane: str | None = None,
        name: str = "slice {}",
    ) -> Int64Array:
        """Tasks of a step, with what they move: one a round, from ``first`` on, or one in all.
        What trails is late by a round."""
        amounts = self._amounts.of(step.list)
        if rounds == ALL:
            words, place = ["all rows"], np.zeros_like(amounts.round)
        else:
            words = [name.format(number) for number in range(rounds)]
            place = amounts.round - first
        if first == ALL:
            words[-1] = "the last rows"
        shape = len(self._ranks), len(words)
        ranks = np.broadcast_to(self._ranks[:, None], shape)
        used = np.zeros(shape, bool)
        used[amounts.rank, place] = True
        if step.signal is not None:
            used[:] = True
        ids = self._builder.add(
            ranks, lane or step.list.replace("_", " "), words, used * self._cluster.costs.launch
        )
        self._wires.copies(step, ids[amounts.rank, place], amounts)
        if step.signal is not None:
            self._signalled[step.signal] = self._signal(ids)
        return ids

    def _signal(self, ids: Int64Array) -> Int64Array:
        """Joins of a node's ranks, [n, number of parts]."""
        m = self._cluster.ranks_per_node
        return self._builder.join(ids.reshape(-1, m, ids.shape[1]).transpose(0, 2, 1))

    def _wait(self, slot: int, number: int, ids: Int64Array) -> None:
        """Tasks of all ranks wait for a signal of all peers: of a round, or the last one. What
        signals it may have nothing to do."""
        if slot in self._signalled:
            joins = self._signalled[slot][:, number]
            self._builder.after(np.repeat(joins, self._cluster.ranks_per_node), ids)

    def _with_work(self, steps: tuple[LaunchStep, ...]) -> list[LaunchStep]:
        """Those that hand nothing over, where nothing is."""
        hands_over = self._plan.assignment.hands_over
        return [
            step
            for step in steps
            if (hands_over or not {step.src, step.dst}.intersection(HANDED_OVER))
            and (self._num_rounds or step.src not in ("landing", "slices", "returned"))
        ]

    def _is_cut(self, step: LaunchStep) -> bool:
        """Whether a list is worked off round by round."""
        return bool((self._amounts.of(step.list).round != ALL).any())
