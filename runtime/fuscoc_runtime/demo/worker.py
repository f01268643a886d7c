"""Ranks started by ``fuscoc_runtime.run``: they join, run and report through the job's store.

They are forked from one process that has imported what takes each of them seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from fuscoc_runtime.comm.group import BACKSTOP
from fuscoc_runtime.demo.rank import RankReport, run_rank
from fuscoc_runtime.errors import FuscoRuntimeError, to_json
from fuscoc_runtime.manifest.artifact import load_artifact

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True)
class Job:
    """What workers are told on their command line, as JSON."""

    artifact: str
    shuffle: str | None
    tokens: int
    seed: int
    timeout: float
    num_ranks: int
    num_nodes: int
    device_type: str
    trace: bool = False

    def phase_key(self, phase: str) -> str:
        """Where in the store the ranks that got through a phase count themselves."""
        return f"fuscoc/phase/{phase}"

    def report_key(self, rank: int) -> str:
        """Where in the store a rank leaves its report."""
        return f"fuscoc/report/{rank}"


def main() -> None:
    """Fork a rank for every file of ``sys.argv`` that takes its output, and tell how each ends.

    ``rank code`` is a line for the launcher. Whoever ends this process ends the ranks.
    """
    job = Job(**json.loads(sys.argv[1]))
    store_port, launcher, told, *outputs = map(int, sys.argv[2:])
    _end_with(launcher)
    if job.device_type == "cpu":
        import triton.runtime.interpreter  # noqa: F401
    ranks: dict[int, int] = {}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parent = os.getpid()
    try:
        for rank, output in enumerate(outputs):
            if child := os.fork():
                ranks[child] = rank
            else:
                _be(rank, parent, output, job, store_port)
        while ranks:
            child, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            os.write(told, f"{ranks.pop(child)} {code}\n".encode())
    finally:
        for child in ranks:
            os.kill(child, signal.SIGKILL)
        for child in ranks:
            os.waitpid(child, 0)


def _be(rank: int, parent: int, output: int, job: Job, store_port: int) -> NoReturn:
    """Run one rank and leave ``{"report": ...}``, ``{"error": ...}`` or ``{"traceback": ...}``."""
    report: dict[str, Any] = {}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _end_with(parent)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ["NCCL_HOSTID"] = f"fuscoc-node-{rank // (job.num_ranks // job.num_nodes)}"
        limit = timedelta(seconds=job.timeout) + BACKSTOP
        store = TCPStore("127.0.0.1", store_port, timeout=limit)
        try:
            report = {"report": asdict(_run(job, rank, store, limit))}
        except FuscoRuntimeError as error:
            report = {"error": to_json(error)}
        except Exception:
            report = {"traceback": traceback.format_exc()}
        store.set(job.report_key(rank), json.dumps(report))
    except BaseException:
        traceback.print_exc()
    finally:
        # Without a word to the peers: taking a broken job down in order can hang.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if "report" in report else 1)


def _run(job: Job, rank: int, store: TCPStore, limit: timedelta) -> RankReport:
    on_gpu = job.device_type == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=PrefixStore("fuscoc/job", store),
        rank=rank,
        world_size=job.num_ranks,
        timeout=limit,
    )
    return run_rank(
        load_artifact(job.artifact),
        job.shuffle,
        job.tokens,
        job.seed,
        topology=f"{job.num_nodes}x{job.num_ranks // job.num_nodes}",
        device=device,
        timeout=job.timeout,
        trace=job.trace,
        progress=lambda phase: _count(store, job.phase_key(phase)),
    )


def _count(store: TCPStore, key: str) -> None:
    store.add(key, 1)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, in whatever way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


if __name__ == "__main__":
    main()
