"""Processes that have joined one job and run functions on it; reused for many tests."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from fuscoc_runtime.errors import FuscoRuntimeError

PATIENCE_SECONDS = 120
SECONDS_A_RANK = 5
"""Where so many share a few cores that it takes longer."""
IMPORTED = ["tests.engine.imported"]
"""By the server that ranks are forked from, when the first of them start."""


@dataclass(frozen=True)
class Died:
    """A process that ended without an answer."""

    exit_code: int | None


class RemoteError(Exception):
    """A failure in a process, as text."""


class Pool:
    """``num_ranks`` processes on the CPU. The parent hosts the store.

    There is a group of the first n ranks for any n, or only for some ``sizes``: each takes a
    connection between any two of its ranks.
    """

    def __init__(self, num_ranks: int, sizes: Sequence[int] = ()) -> None:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._store = store
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(num_ranks):
            here, there = context.Pipe()
            made = sizes or range(1, num_ranks + 1)
            arguments = (there, rank, num_ranks, made, store.port, dict(os.environ))
            process = context.Process(target=_serve, args=arguments)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def outcomes(self, function: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
        """``function(group, *arguments)`` on the first ranks: results, errors or ``Died``."""
        for pipe in self._pipes[:num_ranks]:
            pipe.send((function, num_ranks, arguments))
        return [self._receive(rank) for rank in range(num_ranks)]

    def run(self, function: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
        """The results by rank; the first error is raised."""
        outcomes = self.outcomes(function, num_ranks, *arguments)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            assert not isinstance(outcome, Died), outcomes
        return outcomes

    def close(self) -> None:
        """End all processes; nobody outlives a test."""
        for process in self.processes:
            process.kill()
            process.join()

    def _receive(self, rank: int) -> Any:
        process = self.processes[rank]
        deadline = time.monotonic() + _patience(len(self.processes))
        try:
            while not self._pipes[rank].poll(0.05):
                assert time.monotonic() < deadline, f"rank {rank} hangs"
            return self._pipes[rank].recv()
        except EOFError:
            process.join()
            return Died(process.exitcode)


def _patience(num_ranks: int) -> int:
    return max(PATIENCE_SECONDS, SECONDS_A_RANK * num_ranks)


def _serve(
    pipe: Connection,
    rank: int,
    num_ranks: int,
    sizes: Sequence[int],
    port: int,
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)  # the server has that of the first pool
    torch.set_num_threads(1)
    limit = timedelta(seconds=_patience(num_ranks))
    store = PrefixStore("job", TCPStore("127.0.0.1", port, timeout=limit))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=limit)
    groups = {n: dist.new_group(list(range(n)), timeout=limit) for n in sizes}
    while True:
        try:
            function, members, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(_outcome(function, groups[members], arguments))


def _outcome(function: Callable[..., Any], group: Any, arguments: Sequence[Any]) -> Any:
    try:
        return function(group, *arguments)
    except FuscoRuntimeError as error:
        return error
    except Exception:
        return RemoteError(traceback.format_exc())
