"""What GPUs may do in any order touches nothing in common.

A rank has one stream, and the kernels of a call only take notes here: which rows they would read
and write, and what they come after, through the stream, signals and exchanges between nodes.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.comm.lockstep import COLLECTIVES
from fuscoc_runtime.comm.requests import AllToAll, AllToAlls, Crossing
from fuscoc_runtime.engine.dispatch import dispatch
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
    specs.routed("f32", HIDDEN, KEYS, 2, options=options)
    for options in ("dedup(node, rank)", "balance rebalance")
]

Works = frozenset[int]


class Notes:
    """All ranks of a shuffle, whose steps are noted and not carried out, and the works of a call.

    A work has a number; ``after`` says which come before it, and ``before`` which come before the
    next one of a rank. ``touched``: who was at an address, and whether it wrote there.
    ``signalled``: by rank and slot, what each signal comes after.
    """

    def __init__(self, text: str) -> None:
        self.shuffle = LockstepShuffle(specs.artifact(text), topology=NODES)
        self.machines = self.shuffle.machines
        spec = self.shuffle.spec
        assert spec.program.combine is not None
        steps = [*spec.program.dispatch.steps, *spec.program.combine.steps]
        self.steps = {step.kernel: step for step in steps if isinstance(step, LaunchStep)}
        self.signalled: defaultdict[tuple[int, int], list[Works]] = defaultdict(list)
        self.most_stages, self.exchanges = 0, 0
        self.shuffle._handlers |= {
            Crossing: self.cross,
            AllToAll: self.exchange,
            AllToAlls: self.exchange_all,
        }

    @contextmanager
    def call(self) -> Iterator[None]:
        """Ranks have met, and their users have enqueued what arguments come from."""
        self.after: list[Works] = []
        self.names: list[str] = []
        self.touched: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
        self.only_waited: set[tuple[int, str]] = set()
        for signals in self.signalled.values():
            signals[:] = [frozenset()] * len(signals)
        self.before: list[Works] = [frozenset()] * len(self.machines)
        for rank in range(len(self.machines)):
            assert self.work(rank, "arguments") == rank
        yield

    def work(self, rank: int, name: str) -> int:
        """Something on the stream of a rank."""
        number = len(self.after)
        self.names.append(f"{name} of rank {rank}")
        self.after.append(self.before[rank])
        self.before[rank] |= {number}
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
        machine = self.machines[rank]
        for slot, index in machine.places[step.kernel].expected:
            awaited = arguments[index] // machine.num_programs
            for peer in NODES.node_ranks(NODES.node(rank)):
                given_by = self.signalled[peer, slot]
                assert len(given_by) >= awaited, f"{step.list} waits for what is not given"
                self.before[rank] = self.before[rank].union(*given_by[:awaited])
        number = self.work(rank, step.list)
        assert (rank, step.list) not in self.only_waited, "it waits once more, with nothing to do"
        kernel = machine.kernel(step.kernel).spec
        given = dict(zip([arg.value for arg in kernel.args], arguments, strict=True))
        for address, writes in accesses(step, given):
            self.touch(number, address, writes=writes)
        if step.wait and not given["num_descriptors"]:
            self.only_waited.add((rank, step.list))
        if step.signal is not None:
            self.signalled[rank, step.signal].append(self.before[rank])

    def cross(self, requests: Sequence[Crossing]) -> list[None]:
        """What is received is there when its sender has come to the stage."""
        for rank, request in enumerate(requests):
            number = self.work(rank, f"stage {request.stage}")
            for rows, writes in ((request.sends, False), (request.receives, True)):
                for tensor in (tensor for each in rows for tensor in each.fields):
                    self.touch_all(number, tensor, ROW_BYTES, writes=writes)
        sent = list(self.before)
        for rank, request in enumerate(requests):
            for rows in request.receives:
                self.before[rank] |= sent[rows.peer]
        self.most_stages = max(self.most_stages, requests[0].stage + 1)
        return [None] * len(requests)

    def exchange(self, requests: Sequence[AllToAll]) -> Sequence[Any]:
        self.exchanges += 1
        received = COLLECTIVES[AllToAll](requests)
        for rank, weights in enumerate(received):
            self.touch_all(self.work(rank, "weights"), weights, WEIGHT_BYTES, writes=True)
        return received

    def exchange_all(self, requests: Sequence[AllToAlls]) -> Sequence[Any]:
        """Of plans, and last of weights, if these travel along."""
        received = COLLECTIVES[AllToAlls](requests)
        for rank, parts in enumerate(received):
            for weights in (each for each in parts if each.is_floating_point()):
                self.touch_all(self.work(rank, "weights"), weights, WEIGHT_BYTES, writes=True)
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
    """Steps are noted, and not carried out."""
    ranks = {id(machine): rank for rank, machine in enumerate(notes.machines)}
    prepare, launch = PreparedStep.__init__, Machine.launch

    def noted_prepare(self: PreparedStep, machine: Machine, *given: Any) -> None:
        prepare(self, machine, *given)
        notes.prepare(ranks[id(machine)], self._columns, self._step.list)

    def noted_launch(self: Machine, kernel: str, arguments: Sequence[int], *num: int) -> None:
        if kernel in notes.steps:
            notes.launch(ranks[id(self)], notes.steps[kernel], arguments)
        else:
            launch(self, kernel, arguments, *num)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PreparedStep, "__init__", noted_prepare)
        patched.setattr(Machine, "launch", noted_launch)
        yield


@pytest.mark.parametrize("text", TEXTS, ids=["own rows", "carried rows"])
@settings(max_examples=4)
@example([9, 8, 9, 0], [1.0, 1.0, 1.0, 0.0])
@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
)
def test_whoever_needs_a_row_waits_for_it(text: str, tokens: list[int], away: list[float]) -> None:
    """And whoever overwrites one waits for those who needed it."""
    notes = Notes(text)
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
        assert notes.most_stages == 1
