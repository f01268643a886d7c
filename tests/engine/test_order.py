"""What a GPU may do in any order touches nothing in common.

Streams only take notes here, and so do the kernels of a call: which rows they would read and write,
and what they come after, through streams, events, signals and rounds of the network.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.comm.lockstep import COLLECTIVES
from fuscoc_runtime.comm.requests import AllToAll, FinishRound, StartRound
from fuscoc_runtime.engine.dispatch import dispatch
from fuscoc_runtime.engine.lanes import Lanes
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.steps import PreparedStep
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.program import LaunchStep
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.skew import HIDDEN, KEYS, skewed

NODES = Topology(2, 2)
ROW_BYTES, WORD_BYTES, WEIGHT_BYTES = 4 * HIDDEN, 8, 4
TEXTS = [
    specs.routed("f32", HIDDEN, KEYS, 2, options=f"{options} slice 20 B")
    for options in ("dedup(node, rank)", "balance rebalance")
]

Works = frozenset[int]


@dataclass(eq=False)
class Stream:
    """A CUDA stream: what its next work comes after."""

    before: Works = frozenset()

    def record_event(self) -> Works:
        return self.before

    def wait_event(self, event: Works) -> None:
        self.before |= event

    def wait_stream(self, other: Stream) -> None:
        self.before |= other.before


class Notes:
    """All ranks of a shuffle, whose steps are noted and not carried out, and the works of a call.

    A work has a number; ``after`` says which come before it. ``touched``: who was at an address,
    and whether it wrote there. ``signalled``: by rank and slot, what each signal comes after.
    ``waits``: the signals of this rank, how many of each peer's are awaited, how many of its own it
    has given by then.
    """

    def __init__(self, text: str, ring_slots: int) -> None:
        self.shuffle = LockstepShuffle(specs.artifact(text), topology=NODES)
        self.machines = self.shuffle.machines
        self.users = [Stream() for _ in self.machines]
        for machine, user in zip(self.machines, self.users, strict=True):
            machine.ring_slots, lanes = ring_slots, machine.lanes
            lanes._streams = {name: Stream() for name in ("gather", *lanes.wires, "forward")}
            lanes._users = lanes._current = user
        spec = self.shuffle.spec
        assert spec.program.combine is not None
        steps = [*spec.program.dispatch.steps, *spec.program.combine.steps]
        self.steps = {step.kernel: step for step in steps if isinstance(step, LaunchStep)}
        self.signalled: defaultdict[tuple[int, int], list[Works]] = defaultdict(list)
        self.rounds: dict[tuple[int, int], Works] = {}
        self.most_rounds, self.exchanges, self.lanes = 0, 0, set[int]()
        self.shuffle._handlers |= {
            StartRound: self.start_rounds,
            FinishRound: self.finish_rounds,
            AllToAll: self.exchange,
        }

    @contextmanager
    def call(self) -> Iterator[None]:
        """Ranks have met, and their users have enqueued what arguments come from; at the end they
        go on with what is returned."""
        self.after: list[Works] = []
        self.names: list[str] = []
        self.touched: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
        self.waits: list[tuple[list[Works], int, int, str]] = []
        self.only_waited: set[tuple[int, str]] = set()
        for signals in self.signalled.values():
            signals[:] = [frozenset()] * len(signals)
        for machine in self.machines:
            for stream in machine.lanes._streams.values():
                stream.before = frozenset()
        for rank, user in enumerate(self.users):
            user.before = frozenset()
            assert self.work(rank, "arguments") == rank
        yield
        for rank, user in enumerate(self.users):
            mine = {number for number, name in enumerate(self.names) if name.endswith(f" {rank}")}
            assert mine <= user.before, f"not waited for: {self.told(mine - user.before)}"
        for given_here, awaited, so_far, name in self.waits:
            assert awaited < so_far or so_far == len(given_here), f"{name} waits for the latest"

    def work(self, rank: int, name: str) -> int:
        """Something on the current stream of a rank."""
        stream, number = self.current(rank), len(self.after)
        self.names.append(f"{name} of rank {rank}")
        self.after.append(stream.before)
        assert rank in stream.before or number == rank, f"{self.names[-1]} waits for no arguments"
        stream.before |= {number}
        return number

    def touch(self, number: int, address: int, *, writes: bool) -> None:
        """A work reads or writes a row, an index or a weight."""
        at = self.touched[address]
        others = {other for other, wrote in at if wrote or writes} - {number}
        unordered = others - self.after[number]
        assert not unordered, f"{self.names[number]} does not wait for {self.told(unordered)}"
        at.append((number, writes))

    def told(self, numbers: set[int] | Works) -> list[str]:
        return [self.names[number] for number in sorted(numbers)]

    def current(self, rank: int) -> Stream:
        stream: Stream = self.machines[rank].lanes._current
        return stream

    def prepare(self, rank: int, columns: Mapping[str, Tensor], name: str) -> None:
        number = self.work(rank, f"columns of {name}")
        for column in columns.values():
            self.touch_all(number, column, WORD_BYTES, writes=True)

    def touch_all(self, number: int, tensor: Tensor, size: int, *, writes: bool) -> None:
        begin = tensor.data_ptr()
        for address in range(begin, begin + tensor.nbytes, size):
            self.touch(number, address, writes=writes)

    def launch(self, rank: int, step: LaunchStep, arguments: Sequence[int]) -> None:
        """What a kernel would do with these arguments."""
        machine, stream = self.machines[rank], self.current(rank)
        for slot, index in machine.places[step.kernel].expected:
            awaited, mine = arguments[index] // machine.num_programs, self.signalled[rank, slot]
            self.waits.append((mine, awaited, len(mine), f"{step.list} of rank {rank}"))
            for peer in NODES.node_ranks(NODES.node(rank)):
                stream.before = stream.before.union(*self.signalled[peer, slot][:awaited])
        number = self.work(rank, step.list)
        assert (rank, step.list) not in self.only_waited, "it waits once more, with nothing to do"
        kernel = machine.kernel(step.kernel).spec
        given = dict(zip([arg.value for arg in kernel.args], arguments, strict=True))
        for address, writes in accesses(step, given):
            self.touch(number, address, writes=writes)
        if step.wait and not given["num_descriptors"]:
            self.only_waited.add((rank, step.list))
        if step.signal is not None:
            self.signalled[rank, step.signal].append(stream.before)

    def start_rounds(self, requests: Sequence[StartRound]) -> list[None]:
        """What is received is there when its sender has come to the round."""
        for rank, request in enumerate(requests):
            assert self.current(rank) is self.machines[rank].lanes._streams[f"wire {request.lane}"]
            assert all(rows.fields[0].data_ptr() % 16 == 0 for rows in request.sends[:1])
            number = self.work(rank, f"round {request.number}")
            for rows, writes in ((request.sends, False), (request.receives, True)):
                for tensor in (tensor for each in rows for tensor in each.fields):
                    self.touch_all(number, tensor, ROW_BYTES, writes=writes)
        sent = [self.current(rank).before for rank in range(len(requests))]
        for rank, request in enumerate(requests):
            for rows in request.receives:
                self.current(rank).before |= sent[rows.peer]
            self.rounds[rank, request.number] = self.current(rank).before
        self.most_rounds = max(self.most_rounds, requests[0].number + 1)
        self.lanes.add(requests[0].lane)
        return [None] * len(requests)

    def finish_rounds(self, requests: Sequence[FinishRound]) -> list[None]:
        for rank, request in enumerate(requests):
            self.current(rank).wait_event(self.rounds.pop((rank, request.number)))
        return [None] * len(requests)

    def exchange(self, requests: Sequence[AllToAll]) -> Sequence[Any]:
        self.exchanges += 1
        received = COLLECTIVES[AllToAll](requests)
        for rank, weights in enumerate(received):
            number = self.work(rank, "weights")
            self.touch_all(number, weights, WEIGHT_BYTES, writes=True)
        return received


def accesses(step: LaunchStep, given: Mapping[str, int]) -> Iterator[tuple[int, bool]]:
    """Addresses of what a kernel reads, and writes, by docs/abi.md; beside arguments and results
    of the user."""

    def word(address: int, index: int) -> int:
        return ctypes.c_int64.from_address(address + index * WORD_BYTES).value

    def at(column: str, index: int) -> int:
        return word(given[column], index)

    names = {arg: name.partition(".")[0] for arg, name in step.bind.items()}
    names |= {arg: name.split(".")[1] for arg, name in step.bind.items() if "peers." in name}
    source, target = (names[arg] for arg in ("x_src", "x_dst"))
    for entry in range(given["num_descriptors"]):
        for column in given:
            if column.startswith(("src_", "dst_", "term_begin", "term_end")):
                yield given[column] + entry * WORD_BYTES, False
        terms = range(at("term_begin", entry), at("term_end", entry)) if "term_end" in given else ()
        if "weights" in step.bind:
            for term in terms:
                yield given["weights"] + at("term_point", term) * WEIGHT_BYTES, False
        if source not in ("source", "rows"):
            rows = [at("term_row", term) if "term_row" in given else term for term in terms]
            rows += [at(c, entry) for c in ("src_row", "src_slot") if c in given]
            for row in rows:
                yield given["x_src"] + row * ROW_BYTES, False
        if target != "result":
            base = given["x_dst"]
            if "dst_peer" in given:
                base = word(base, at("dst_peer", entry))
            [row] = [at(c, entry) for c in ("dst_row", "dst_slot") if c in given]
            yield base + row * ROW_BYTES, True


@contextmanager
def noting(notes: Notes) -> Iterator[None]:
    """Steps are noted, and streams that a call asks for are those of its rank."""
    ranks = {id(machine): rank for rank, machine in enumerate(notes.machines)}
    users = {id(m.lanes): user for m, user in zip(notes.machines, notes.users, strict=True)}
    prepare, launch, fork = PreparedStep.__init__, Machine.launch, Lanes.fork

    def noted_prepare(self: PreparedStep, machine: Machine, *given: Any) -> None:
        prepare(self, machine, *given)
        notes.prepare(ranks[id(machine)], self._columns, self._step.list)

    def noted_launch(self: Machine, kernel: str, arguments: Sequence[int], *num: int) -> None:
        if kernel in notes.steps:
            notes.launch(ranks[id(self)], notes.steps[kernel], arguments)
        else:
            launch(self, kernel, arguments, *num)

    def noted_fork(self: Lanes, *lanes: str) -> None:
        patched.setattr(torch.cuda, "current_stream", lambda: users[id(self)])
        fork(self, *lanes)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "set_stream", lambda _: None)
        patched.setattr(PreparedStep, "__init__", noted_prepare)
        patched.setattr(Machine, "launch", noted_launch)
        patched.setattr(Lanes, "fork", noted_fork)
        yield


@pytest.mark.parametrize("text", TEXTS, ids=["own rows", "carried rows"])
@settings(max_examples=4)
@example([9, 8, 9, 0], [1.0, 1.0, 1.0, 0.0], 2)
@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
    st.integers(1, 3),
)
def test_whoever_needs_a_row_waits_for_it(
    text: str, tokens: list[int], away: list[float], ring_slots: int
) -> None:
    """And whoever overwrites one waits for those who needed it. Of what peers do in every round,
    nobody waits for the latest while more is to come: this rank is a round ahead itself."""
    notes = Notes(text, ring_slots)
    shuffle, data = notes.shuffle, skewed(NODES, torch.float32, tokens, away, 0)
    sources = [list(each.source.values()) for each in data]
    with noting(notes):
        for _ in range(2):  # in the second one, weights travel with dispatch
            with notes.call():
                done = shuffle.dispatch(sources, [dict(each.inputs) for each in data])
            handles = [each.handle for each in done]
            with notes.call():
                shuffle.combine([each.rows["x"].clone() for each in done], handles, [{}] * 4)
            assert notes.exchanges == 1  # of weights alone, in the first combine
        with notes.call():
            calls = zip(shuffle.machines, sources, handles, strict=True)
            shuffle._run([dispatch(machine, x, {}, handle) for machine, x, handle in calls])
        assert notes.exchanges == 2
    if tokens == [9, 8, 9, 0]:
        assert notes.most_rounds > 2 * ring_slots
        assert notes.lanes == {0, 1}
