"""What kernels cannot raise: their errors, which they count, and waits that last too long."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.landing import Landing, as_bytes
from fuscoc_runtime.comm.liveness import LOOK_SECONDS
from fuscoc_runtime.comm.rails import NETWORK, Rails, unfit
from fuscoc_runtime.comm.watch import unwatch, watch
from fuscoc_runtime.engine.node.state import (
    KINDS,
    PAGE_ABORT,
    PAGE_WORDS,
    Limits,
    Trouble,
    parse_page,
    parse_state,
    parse_wait,
)
from fuscoc_runtime.errors import (
    DestinationError,
    ExcessError,
    FuscoRuntimeError,
    HopTimeoutError,
    KeyRangeError,
    NoSlotError,
    OutdatedError,
    PreparationError,
    ProtocolError,
    RefusedCallError,
    SizesError,
    SlotClashError,
    SourceClashError,
    TablesDifferError,
)
from fuscoc_runtime.manifest.declared import Declared, DenseTarget, PackedTarget
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.room import LEAST
from fuscoc_runtime.scalar import render

POLL_SECONDS = 100e-6
GRACE_SECONDS = 1.0
"""How long a wait goes on after a rank has ended, which may have done its part before."""
END_SECONDS = 5.0
"""How long a killed process may take to end: the memory that it has on GPUs goes first."""
TAKEN_ALONG = re.compile("CUDA error: an illegal memory access|CUDA error 700|MPS")
"""In what torch, or the driver by `kernels.driver`, says where a rank has been killed that shares
the GPU by MPS. The first error may also be of this rank's own kernels."""

_log = logging.getLogger("fuscoc.runtime")


def find_errors(
    shuffle: ShuffleSpec, rank: int, limits: Limits, before: Trouble, now: Trouble
) -> Iterator[tuple[FuscoRuntimeError, Trouble]]:
    """What has gone wrong since ``before``, an error a kind; with each, what is known when it has
    been told."""
    for peer, (old, new) in enumerate(zip(before.refusals, now.refusals, strict=True)):
        if new > old:
            told = (*now.refusals[: peer + 1], *before.refusals[peer + 1 :])
            before = replace(before, refusals=told)
            yield RefusedCallError(rank, peer, new - old), before
    for kind in KINDS:
        if (count := getattr(now, kind) - getattr(before, kind)) > 0:
            before = replace(before, **{kind: getattr(now, kind)})
            yield _error(kind, shuffle.declared, rank, limits, count), before


def _error(
    kind: str, declared: Declared, rank: int, limits: Limits, count: int
) -> FuscoRuntimeError:
    """What ``count`` troubles of a kind are."""
    target = declared.target
    match kind:
        case "bad_keys" if isinstance(target, PackedTarget):
            highest = target.num_keys - 1
            return KeyRangeError(rank, render(target.key), count, highest, target.distinct)
        case "bad_keys":
            assert isinstance(target, DenseTarget)
            return DestinationError(rank, render(target.rank), render(target.slot), count)
        case "overflowed":
            return NoSlotError(rank, count, limits.capacity)
        case "clashed":
            assert isinstance(target, DenseTarget)
            return SlotClashError(rank, render(target.slot), count)
        case "excess":
            return ExcessError(rank, count, limits.max_sources)
        case "bad_sizes":
            return SizesError(rank, declared.source.layout, count)
        case "shared":
            return SourceClashError(rank, declared.source.layout, count)
        case "misplaced":
            assert isinstance(target, PackedTarget)
            return TablesDifferError(target.placement.table or "", rank, count)
    return OutdatedError(rank, "routing" if kind == "outdated" else "rows", count)


def out_of_step(rank: int) -> ProtocolError:
    """What a rank raises whose peers may make calls that it cannot match."""
    problem = "has refused a call, and cannot follow what others have made of it"
    return ProtocolError(f"rank {rank} {problem}: open the shuffle again")


class Watched(Protocol):
    """What there is to look after; see `NodeKernels`."""

    @property
    def limits(self) -> Limits: ...

    @property
    def rails(self) -> Rails | None: ...

    state: Tensor
    page: Tensor


class Follows(Protocol):
    """What makes calls that others make, too."""

    @property
    def is_out_of_step(self) -> bool: ...


class NodeWatch:
    """Looks after the kernels of one engine: logs what goes wrong, ends waits that are in vain.

    Attributes:
        loss: what has put the ranks out of step for good, such as a wait that was ended, after
            which the kernels wait for nobody any more.
    """

    loss: FuscoRuntimeError | None = None

    def __init__(self, node: Watched, shuffle: ShuffleSpec, members: Membership) -> None:
        self._shuffle, self._members, self._limits = shuffle, members, node.limits
        self._state, self._rails = node.state, node.rails
        self._num_ranks = len(node.page) - PAGE_WORDS + LEAST
        self._told = self._logged = Trouble(refusals=(0,) * self._num_ranks)
        self._loss_told = self._has_left = False
        self._is_naming = threading.Lock()
        self._landing = Landing()
        # Kernels read and write it at any time, and it takes no call of CUDA to do so here.
        self._page = node.page.numpy()
        self._waiting = node.page[:2].view(torch.int64).numpy()
        self._seen, self._since = 0, 0.0
        self._stream: Any = None
        if node.state.is_cuda:
            self._stream = torch.cuda.Stream(node.state.device)  # type: ignore[no-untyped-call]
        if self._rails is not None:
            self._rails.listen(self)
        watch(self)

    def look(self) -> None:
        """By the watching thread: log what is new, and end a wait whose time is up."""
        if self._rails is not None and self._rails.is_in_vain and self.loss is None:
            self.lose(unfit(self._members.rank))
        waiting, now = int(self._waiting[0]), time.monotonic()
        if not waiting and self._rails is not None:
            waiting = self._rails.under_way()  # what kernels show is negative
        if waiting != self._seen:
            self._seen, self._since = waiting, now
        elif waiting and self.loss is None:
            seconds = now - self._since
            is_late = seconds > self._members.timeout
            if is_late or (seconds > GRACE_SECONDS and self._members.liveness.someone_ended()):
                with self._is_naming:
                    self._end_waits(waiting, seconds)
        self._log_new(parse_page(self._page.tolist()))

    def raise_loss(self) -> None:
        """Raise if a rank did not come to an earlier call: ranks are out of step for good.

        Once it is known who is to blame: what is raised may end the process, and with it the thread
        that finds that out and ends what the network waits for.
        """
        if self.loss is not None:
            with self._is_naming:
                self._loss_told = True
                raise copy(self.loss)

    def raise_new(self) -> None:
        """Wait for the current stream and raise what went wrong and has not been raised yet, one
        kind of error at a time; a loss again and again."""
        now = self._read()
        self.raise_loss()
        self._raise(now)

    def settle(self, so_far: bool = False) -> None:
        """As ``raise_new``, but a loss only once; of calls that go on, what is known ``so_far``,
        without waiting for them."""
        with torch.cuda.stream(self._stream if so_far else None):
            now = self._read()
        self._log_new(now)
        if self.loss is None:
            self._raise(now)
        elif not self._loss_told:  # what else went wrong may have come of it
            self.raise_loss()

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """Around what uses the GPU; see `blame`."""
        try:
            yield
        except RuntimeError as error:
            self.blame(error)
            raise

    def blame(self, error: BaseException) -> None:
        """Raise that a rank is lost, if one is, in place of an error of CUDA: under MPS a rank that
        ends takes along what others have on its GPU."""
        if self._has_left or isinstance(error, FuscoRuntimeError):
            return  # who ends from now on may do so because of this rank
        if not TAKEN_ALONG.search(str(error)):
            return
        self.raise_loss()
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            self._blame_who_ended()
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Look no more."""
        unwatch(self)

    def lose(self, loss: FuscoRuntimeError) -> None:
        """A rank was lost, as the host has found while it waited for it: no call follows."""
        self.hear(loss)
        if self._rails is not None:
            self._rails.abort(loss)

    @contextmanager
    def joined(self, node: Follows) -> Iterator[None]:
        """Around what this rank does in a call that the others make. What it raises there ends the
        shuffle: it is said by all of them, as when one has no memory for larger windows, or this
        rank comes to no call any more, and the others are not left waiting for it."""
        try:
            yield
        except FuscoRuntimeError as error:
            if node.is_out_of_step:
                self._leave(error)
            else:
                self.loss = copy(error)
            raise
        except Exception as error:
            self.blame(error)
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """This rank has raised what no other rank knows of, amid a call that the others make: it
        comes to none any more, and they are not left waiting for it."""
        self._leave(PreparationError.of(self._members.rank, error))

    def _leave(self, loss: FuscoRuntimeError) -> None:
        self._has_left = True
        self.lose(loss)
        self._members.liveness.give_up()

    def hear(self, loss: FuscoRuntimeError) -> None:
        """A rank was lost, as anybody has found: kernels wait for nobody any more, and use nothing
        that should have come."""
        if self.loss is None:
            self.loss = loss
        self._page[PAGE_ABORT] = 1

    def _read(self) -> Trouble:
        """The state behind the current stream, or, if a rank is lost, as far as it is known: what
        the network waits for then may never end."""
        if self._state.is_cuda and self._rails is not None:
            copy, copied = self._landing.copy(as_bytes(self._state)), self._landing.copied
            while not copied.query():
                if self.loss is not None:
                    return parse_page(self._page.tolist())
                time.sleep(POLL_SECONDS)
            return parse_state(copy.view(torch.int32).tolist(), self._num_ranks)
        return parse_state(self._state.tolist(), self._num_ranks)

    def _raise(self, now: Trouble) -> None:
        for error, told in self._new(self._told, now):
            self._told = told
            if isinstance(error, RefusedCallError):
                self._blame_who_ended()
            try:
                raise error
            finally:
                del error  # else it would keep all frames that it passes, and graphs in them

    def _blame_who_ended(self) -> None:
        """Raise that a rank is lost, if one is, in place of what came of it: ranks that have gone
        on without it refuse what they could not add up, in its name or in their own."""
        ended = self._members.liveness.find_ended()
        if ended is not None:
            stage = "combine" if self._rails is None else NETWORK
            # Who looks later sees that this rank has failed after another, and blames that one.
            culprit = self._members.liveness.find_missing(ended, stage)
            self.lose(
                self._members.liveness.lost(stage, 0.0, ended if culprit is None else culprit)
            )
            self.raise_loss()

    def _log_new(self, now: Trouble) -> None:
        for error, logged in self._new(self._logged, now):
            self._logged = logged
            _log.error("%s: %s", self._shuffle.name, error)

    def _new(self, before: Trouble, now: Trouble) -> Iterator[tuple[FuscoRuntimeError, Trouble]]:
        return find_errors(self._shuffle, self._members.rank, self._limits, before, now)

    def _end_waits(self, waiting: int, seconds: float) -> None:
        topology = self._members.topology
        if waiting > 0 and self._rails is not None:
            peer, stage = min(self._rails.peers.values()), NETWORK
        else:
            local, stage = parse_wait(waiting)
            peer = topology.node_ranks(topology.node(self._members.rank))[local]
        self.loss = HopTimeoutError(self._members.rank, stage, peer, round(seconds, 1))
        self._page[PAGE_ABORT] = 1
        # Who is to blame may take a while to find out: the store may be busy.
        culprit = self._members.liveness.find_missing(peer, stage)
        if culprit is not None:
            self.loss = self._members.liveness.lost(stage, seconds, culprit)
        _log.error("%s: %s", self._shuffle.name, self.loss)
        if self._rails is not None:
            self._rails.abort(self.loss)
