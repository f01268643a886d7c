"""Where the hosts of all ranks agree on a call before any of them makes it, beside what their GPUs
are at work on."""

from __future__ import annotations

import ctypes
import os
import time

from torch._C._distributed_c10d import PrefixStore

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.liveness import LOOK_SECONDS
from fuscoc_runtime.comm.process import BUSY_SECONDS, POLL_SECONDS, ProcessComm
from fuscoc_runtime.comm.shared_memory import SharedAllocator
from fuscoc_runtime.errors import FuscoRuntimeError, from_json, to_json
from fuscoc_runtime.plan.agree import agree

OCCASION = "planning"


class Agreement:
    """Of all ``members``, for whom construction and ``meet`` are collective.

    Between nodes a word travels as the general engine's do. Inside one it is written to memory that
    hosts share: kernels in CUDA wait for each other on all SMs, and NCCL's might find none.
    """

    def __init__(self, members: Membership) -> None:
        self._members, topology = members, members.topology
        is_between, is_alone = topology.num_nodes > 1, topology.num_ranks == 1
        self._comm = ProcessComm(members) if is_between else None
        self._words = None if is_between or is_alone else _Words(members)

    def meet(self, error: FuscoRuntimeError | None) -> None:
        """Raise the ``error`` of the lowest rank that has one, on all ranks.

        Raises:
            HopTimeoutError, NetworkError: a rank ended, or did not come in time.
        """
        if self._comm is not None:
            self._comm.run(agree(error, call="a call"))
        elif self._words is None:
            if error is not None:
                raise error
        elif self._words.any_says(error is not None):
            said = self._members.gather(OCCASION, None if error is None else to_json(error))
            cause = None if error is None else error.__cause__
            raise from_json(next(each for each in said if each is not None)) from cause


class _Words:
    """Two words of every rank in memory of all: the number of a meeting, and whether it has
    anything to say there. Nobody can be two meetings ahead, so they are written in turn."""

    def __init__(self, members: Membership) -> None:
        self._members, self._number = members, 0
        store, ranks = PrefixStore("agreement", members.store), range(members.topology.num_ranks)
        given = store, members.rank, ranks, members.timeout, members.liveness
        self._window = SharedAllocator(*given)(2 * ctypes.sizeof(ctypes.c_int64))
        words = ctypes.c_int64 * 2
        self._all = [words.from_address(base) for base in self._window.peer_bases.tolist()]

    def any_says(self, says: bool) -> bool:
        """Whether any rank does, when all are here."""
        self._number += 1
        turn, number = self._number % 2, self._number
        self._all[self._members.rank][turn] = number << 1 | says
        awaited = [*range(len(self._all))]
        started, look = time.monotonic(), LOOK_SECONDS
        while awaited := [peer for peer in awaited if self._all[peer][turn] >> 1 != number]:
            waited = time.monotonic() - started
            is_late = waited > self._members.timeout
            if waited > look:
                look += LOOK_SECONDS
                is_late |= self._members.liveness.someone_ended()
            if is_late:
                problem = f"nothing for {waited:g} s"
                raise self._members.liveness.explain(OCCASION, waited, problem, awaited[0])
            if waited > BUSY_SECONDS:
                time.sleep(POLL_SECONDS)
            else:
                os.sched_yield()
        return any(each[turn] & 1 for each in self._all)
