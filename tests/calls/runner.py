"""Random calls of shuffles of fixed capacity, good and bad ones, compared with ``model``.

All ranks draw the same program from one seed, with the arguments of all of them, so each knows what
has to come out. On GPUs calls are on random streams, ranks are late by chance, and graphs that were
captured at the beginning are replayed among them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    InputError,
    KeyRangeError,
    NoSlotError,
    OutdatedError,
    RefusedCallError,
)
from tests.calls import model

MOST = 12
"""Segments of a rank, at most."""
NUM_HANDLES = 2
DELAYS = (100_000, 500_000, 5_000_000)
"""Cycles that a rank may be late by."""


@dataclass(eq=False)
class Live:
    """A dispatch that may be combined: ``handle`` is None on a rank that refused it."""

    number: int
    done: model.Dispatched
    handle: Any
    rows: Any


class Subject:
    """One shuffle, and what should be known of it on this rank."""

    def __init__(self, shuffle: Shuffle, capacity: int) -> None:
        self.shuffle, self.capacity = shuffle, capacity
        self.live: list[Live] = []
        self.number = 0  # dispatches, replayed ones too
        self.held = 0  # the one whose rows are in the window,
        self.called = 0  # and the latest that was no replay
        self.latest = torch.cuda.Event() if shuffle.device.type == "cuda" else None
        self.expected: Counter[str] = Counter()  # troubles that check has not raised yet
        self.graph: Any = None
        self.static: model.Batch | None = None
        self.result: Any = None
        self.captured: Any = None

    def expect(self, done: model.Dispatched, rank: int) -> None:
        if rank in done.refusing:
            return
        self.expected["bad"] += done.bad[rank]
        self.expected["over"] += done.over[rank]
        for peer in done.refusing:
            self.expected[f"refused {peer}"] += 1

    def drain(self) -> Counter[str]:
        """Everything that ``check`` has to raise, kind after kind."""
        found: Counter[str] = Counter()
        for _ in range(20):
            try:
                self.shuffle.check()
                return found
            except KeyRangeError as error:
                found["bad"] += error.count
            except NoSlotError as error:
                found["over"] += error.count
            except RefusedCallError as error:
                found[f"refused {error.peer}"] += error.count
            except OutdatedError as error:
                found[error.what] += error.count
        raise AssertionError("check raises for ever")


class Runner:
    """Executes one program on this rank; ``wrong`` says what was not as it should be."""

    def __init__(self, subjects: list[Subject], seed: int) -> None:
        self.subjects = subjects
        self.shared = random.Random(seed)  # the same draws on all ranks
        first = subjects[0].shuffle
        self.rank, self.num_ranks = first.rank, first.topology.num_ranks
        self.device = first.device
        self.own = random.Random(seed * 1000 + self.rank)
        self.on_gpu = self.device.type == "cuda"
        self.streams = [torch.cuda.Stream() for _ in range(3)] if self.on_gpu else [None]
        self.wrong: list[str] = []
        self.tally: Counter[str] = Counter()
        self._later: list[tuple[str, Tensor, Tensor]] = []
        self._kept: list[Any] = []  # until the host has waited: other streams may use them
        if self.on_gpu:
            for subject in subjects:
                self.capture(subject)

    def run(self, num_calls: int) -> None:
        for number in range(num_calls):
            subject = self.shared.choice(self.subjects)
            kinds = ["dispatch"] * 4 + ["combine"] * 4 + ["check"]
            kinds += ["replay"] * 3 * (subject.graph is not None)
            kind = self.shared.choice(kinds)
            self.tally[kind] += 1
            with self.stream(subject):
                getattr(self, kind)(subject, f"call {number}, {kind}")
        for subject in self.subjects:
            self.check(subject, "the end", everywhere=True)

    @contextmanager
    def stream(self, subject: Subject) -> Iterator[None]:
        """A stream for a call, on which this rank is late by chance. It waits for what was done
        with the subject before, whose memory is used again, and for no other subject."""
        chosen = self.shared.choice(self.streams)
        if chosen is None:
            yield
            return
        with torch.cuda.stream(chosen):
            chosen.wait_event(subject.latest)
            if self.own.random() < 0.4:
                torch.cuda._sleep(self.own.randrange(self.own.choice(DELAYS)))
            yield
            subject.latest.record()

    def batches(self, may_refuse: bool = True) -> list[model.Batch]:
        """Of all ranks: ordinary, crowded, with keys that do not exist, or refused."""
        shared, batches = self.shared, []
        crowded, bad = shared.random() < 0.2, shared.random() < 0.3
        refusing = shared.randrange(self.num_ranks) if shared.random() < 0.2 else -1
        for rank in range(self.num_ranks):
            data = torch.Generator().manual_seed(shared.getrandbits(40))
            tokens = shared.randrange(MOST + 1) if may_refuse else MOST
            idx = torch.randint(-1, model.KEYS, (tokens, model.TOPK), generator=data)
            if crowded:
                idx = torch.where(idx >= 0, idx % 2, idx)
            if bad and tokens and shared.random() < 0.7:
                idx[shared.randrange(tokens), 0] = shared.choice([99, -7, model.KEYS])
            x = torch.randn(tokens, model.HIDDEN, generator=data)
            weights = torch.rand(tokens, model.TOPK, generator=data)
            batches.append(model.Batch(x, idx, weights, may_refuse and rank == refusing))
        return batches

    def dispatch(self, subject: Subject, what: str) -> None:
        done = model.dispatch(self.batches(), subject.capacity)
        subject.number = subject.held = subject.called = subject.number + 1
        mine = done.batches[self.rank]
        live = Live(subject.number, done, None, None)
        self._kept.append(live)
        x, idx, weights = (self.put(each) for each in (mine.x, mine.idx, mine.weights))
        if mine.refused:
            wrong = self.own.choice([x.double(), x.new_zeros(MOST + 1, model.HIDDEN), None, "x"])
            self.refuses(what, lambda: subject.shuffle.dispatch(wrong, idx=idx, weights=weights))
        else:
            rows, live.handle = subject.shuffle.dispatch(x, idx=idx, weights=weights)
            self.compare_rows(what, rows, live.handle, done)
            dropped = torch.tensor(done.bad[self.rank] + done.over[self.rank])
            self.compare(f"{what}, dropped", live.handle.dropped, dropped)
            live.rows = rows
        subject.expect(done, self.rank)
        subject.live = [*subject.live, live][-NUM_HANDLES - 1 :]

    def combine(self, subject: Subject, what: str) -> None:
        if not subject.live:
            return
        live = self.shared.choice(subject.live)
        scales = [1.0 + rank for rank in range(self.num_ranks)]
        refusing, lent = set[int](), set[int]()
        for rank in set(range(self.num_ranks)) - live.done.refusing:
            if self.shared.random() < 0.1:
                refusing.add(rank)
            elif self.shared.random() < 0.3:
                lent.add(rank)
                scales[rank] = 1.0
        if self.rank in live.done.refusing:
            return  # it has no handle to call it with
        shuffle = subject.shuffle
        if live is not subject.live[-1] and live in subject.live[:-NUM_HANDLES]:
            self.refuses(f"{what}, outdated", lambda: shuffle.combine(live.rows, live.handle))
            return
        gone = lent if live.number != subject.held else set()
        by_dispatch = live.number != subject.called
        absent = refusing | gone | live.done.refusing
        scaled = self.scaled(live, scales[self.rank])
        if self.rank in refusing:
            wrong = self.own.choice([scaled[:, 1:], scaled.double(), "rows"])
            self.refuses(what, lambda: shuffle.combine(wrong, live.handle))
            return
        given = live.rows if self.rank in lent else scaled
        if self.rank in gone and by_dispatch:
            self.refuses(f"{what}, overwritten", lambda: shuffle.combine(given, live.handle))
            return
        result = shuffle.combine(given, live.handle)
        self.expect_combine(subject, live, absent - live.done.refusing - {self.rank}, gone)
        wanted = model.combine(live.done, self.rank, scales, absent)
        if self.rank in gone:
            wanted.fill_(float("nan"))
        self.compare(what, result, wanted)

    def expect_combine(
        self, subject: Subject, live: Live, absent: set[int], gone: set[int]
    ) -> None:
        """A refusal counts where somebody needed the rows."""
        if self.rank in gone:
            subject.expected["rows"] += 1
            return
        needed = set(live.done.live[self.rank].flatten().tolist())
        for peer in absent & needed:
            subject.expected[f"refused {peer}"] += 1

    def check(self, subject: Subject, what: str, everywhere: bool = False) -> None:
        """On some ranks only: it is no collective call."""
        if not everywhere and self.own.random() < 0.5:
            return
        found = subject.drain()
        if found != +subject.expected:
            self.wrong.append(f"{what}: raised {dict(found)}, not {dict(+subject.expected)}")
        subject.expected.clear()
        self.look()

    def capture(self, subject: Subject) -> None:
        """A graph of a dispatch and a combine of its rows, where they lie."""
        [mine, *_] = self.batches(may_refuse=False)
        subject.static = static = model.Batch(
            *(each.to(self.device) for each in (mine.x, mine.idx, mine.weights))
        )
        stream = self.streams[0]
        subject.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(subject.graph, stream=stream):
            rows, handle = subject.shuffle.dispatch(
                static.x, idx=static.idx, weights=static.weights
            )
            subject.captured = rows, handle
            subject.result = subject.shuffle.combine(rows, handle)

    def replay(self, subject: Subject, what: str) -> None:
        done = model.dispatch(self.batches(may_refuse=False), subject.capacity)
        subject.number = subject.held = subject.number + 1
        mine, static = done.batches[self.rank], subject.static
        assert static is not None
        for name in ("x", "idx", "weights"):
            getattr(static, name).copy_(self.put(getattr(mine, name)))
        subject.graph.replay()
        wanted = model.combine(done, self.rank, [1.0] * self.num_ranks, set())
        self.compare(what, subject.result, wanted)
        dropped = torch.tensor(done.bad[self.rank] + done.over[self.rank])
        self.compare(f"{what}, dropped", subject.captured[1].dropped, dropped)
        subject.expect(done, self.rank)

    def scaled(self, live: Live, scale: float) -> Tensor:
        """Rows of this rank's own, as they should have come: NaN where there is none."""
        rows = torch.full((live.handle.num_slots, model.HIDDEN), float("nan"))
        for slot in live.done.slots[self.rank]:
            rows[slot] = live.done.row(self.rank, slot)
        return self.put(rows * scale)

    def put(self, tensor: Tensor) -> Tensor:
        """On the device, without a wait on the host."""
        if not self.on_gpu:
            return tensor
        pinned = tensor.pin_memory()
        there = pinned.to(self.device, non_blocking=True)
        self._kept += [pinned, there]
        return there

    def refuses(self, what: str, call: Any) -> None:
        try:
            call()
        except InputError:
            self.tally["refused here"] += 1
        except FuscoRuntimeError as error:
            self.wrong.append(f"{what}: raised {error}")
        else:
            self.wrong.append(f"{what}: was not refused")

    def compare_rows(self, what: str, rows: Tensor, handle: Any, done: model.Dispatched) -> None:
        counts = torch.tensor(done.counts[self.rank])
        self.compare(f"{what}, counts", handle.key_counts, counts)
        slots = sorted(done.slots[self.rank])
        if slots:
            index = self.put(torch.tensor(slots))
            wanted = torch.stack([done.row(self.rank, slot) for slot in slots])
            self.compare(f"{what}, rows", rows[index], wanted)

    def compare(self, what: str, found: Tensor, wanted: Tensor) -> None:
        """Now on a CPU, later on a GPU, where the host must not wait for every call."""
        self._later.append((what, found.clone(), wanted))
        self._kept.append(found)
        if not self.on_gpu:
            self.look()

    def look(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        for what, found, wanted in self._later:
            here = found.cpu()
            if wanted.is_floating_point():
                same = torch.allclose(here, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
            else:
                same = torch.equal(here, wanted)
            if not same:
                self.wrong.append(f"{what}: {here.tolist()} instead of {wanted.tolist()}"[:1500])
        self._later.clear()
        self._kept.clear()
