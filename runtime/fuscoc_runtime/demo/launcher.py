"""Start a process for every rank on this machine, watch them, and collect their reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, Any, NoReturn

from torch._C._distributed_c10d import TCPStore

from fuscoc_runtime.demo.rank import PHASES, Progress, RankReport
from fuscoc_runtime.demo.worker import Job
from fuscoc_runtime.errors import from_json

POLL_SECONDS = 0.05
# After one rank has failed, the others may still say what they saw of it.
LAST_WORDS_SECONDS = 5.0
SHOWN_OUTPUT = 4000


class RankDiedError(RuntimeError):
    """A rank's process failed; the message names the rank and shows the end of its output."""


def start_ranks(job: Job, progress: Progress | None = None) -> list[RankReport]:
    """Run a job's ranks to their end and return their reports in rank order.

    ``progress`` is told each of ``PHASES`` that all ranks have got through. No process survives the
    call, nor the end of this process; SIGTERM is a ``SystemExit`` meanwhile.

    Raises:
        FuscoRuntimeError: the ranks' common error.
        RankDiedError: a rank failed in another way.
    """
    # The store lives here, so that no rank's death takes it away from the others.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        stack.enter_context(_terminable())
        # Files without a name: nothing has to be removed.
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(job.num_ranks)]
        workers = stack.enter_context(_Workers(job, store.port, outputs))
        codes = workers.wait(_Phases(job, store, progress))
        workers.end()
        said = [_said(store, job.report_key(rank)) for rank in range(job.num_ranks)]
        _raise_failures(said, codes, outputs)
    return [RankReport.from_json(each["report"]) for each in said]


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack like an exception, so that what was started is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Phases:
    """Tells which phases all ranks have got through, each once and in order."""

    def __init__(self, job: Job, store: TCPStore, progress: Progress | None) -> None:
        self._job, self._store, self._progress = job, store, progress
        self._to_come = list(PHASES)

    def tell_new(self) -> None:
        if self._progress is None:
            return
        while self._to_come:
            key = self._job.phase_key(self._to_come[0])
            if self._store.add(key, 0) < self._job.num_ranks:
                return
            self._progress(self._to_come.pop(0))


class _Workers:
    """The processes of a job's ranks, and the one that they are forked from; see `worker.main`."""

    def __init__(self, job: Job, store_port: int, outputs: Sequence[IO[bytes]]) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            # Interpreted kernels gain nothing from threads, and the ranks share the cores.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        self.codes: list[int | None] = [None] * job.num_ranks
        told, tell = os.pipe()
        passed = [tell, *(output.fileno() for output in outputs)]
        arguments = [json.dumps(asdict(job)), *map(str, (store_port, os.getpid(), *passed))]
        try:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", "fuscoc_runtime.demo.worker", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=subprocess.STDOUT,
                pass_fds=passed,
            )
        finally:
            os.close(tell)
            self._told = os.fdopen(told, "rb", buffering=0)
            os.set_blocking(told, False)

    def wait(self, phases: _Phases) -> list[int | None]:
        """Until all have ended, or one has failed and the others have had time to notice.

        Returns their exit codes; ``None`` for one that still runs.
        """
        deadline = float("inf")
        while True:
            ended = self._parent.poll()
            for line in (self._told.read() or b"").splitlines():
                rank, code = map(int, line.split())
                self.codes[rank] = code
            if ended is not None:  # and with it all that had not ended before
                self.codes = [ended if code is None else code for code in self.codes]
            phases.tell_new()
            if None not in self.codes or time.monotonic() > deadline:
                return self.codes
            if any(self.codes):
                deadline = min(deadline, time.monotonic() + LAST_WORDS_SECONDS)
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """End all of them."""
        self._parent.terminate()
        self._parent.wait()

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()
        self._told.close()


def _said(store: TCPStore, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.get(key)) if store.check([key]) else {}
    return found


def _raise_failures(
    said: Sequence[dict[str, Any]], codes: Sequence[int | None], outputs: Sequence[IO[bytes]]
) -> None:
    """Silent deaths first: they are the cause of what the others say."""
    for rank, (words, code) in enumerate(zip(said, codes, strict=True)):
        if not words and code is not None:
            raise RankDiedError(_death(rank, code, outputs[rank]))
    for rank, words in enumerate(said):
        if "traceback" in words:
            raise RankDiedError(f"rank {rank} failed:\n{words['traceback']}")
    for words in said:
        if "error" in words:
            raise from_json(words["error"])


def _death(rank: int, code: int, output: IO[bytes]) -> str:
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    output.seek(0)
    shown = output.read()[-SHOWN_OUTPUT:].decode(errors="replace").rstrip()
    return f"rank {rank} ended with {how}" + (f":\n{shown}" if shown else "")
