"""Run an artifact over several ranks of this machine and verify it: ``fuscoc run``."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.gather import gather_json
from fuscoc_runtime.comm.group import BACKSTOP, join
from fuscoc_runtime.demo.launcher import RankDiedError, start_ranks
from fuscoc_runtime.demo.rank import Progress, RankReport, run_rank
from fuscoc_runtime.demo.worker import Job
from fuscoc_runtime.errors import OptionError, TopologyError
from fuscoc_runtime.face.options import check_timeout
from fuscoc_runtime.kernels.trace import write_trace
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology

__all__ = ["RankDiedError", "RankReport", "RunReport", "run"]


@dataclass(frozen=True)
class RunReport:
    """A run of one shuffle; ``ranks`` in rank order."""

    artifact: str
    shuffle: str
    topology: Topology
    seed: int
    ranks: tuple[RankReport, ...]

    @property
    def verified(self) -> bool:
        """Whether every rank's rows and results were those of the reference."""
        return all(rank.verified for rank in self.ranks)


def run(
    artifact: str | Path,
    *,
    shuffle: str | None = None,
    ranks: int = 4,
    nodes: int = 1,
    tokens: int = 16,
    seed: int = 0,
    device: str | None = None,
    timeout: float = 60.0,
    trace: str | Path | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Shuffle made-up data over ``ranks`` ranks, split over ``nodes`` nodes, and verify it.

    Starts a process a rank on this machine, on its GPUs if there are enough, else on the CPU;
    ``device`` ("cpu", "cuda") decides otherwise. Several nodes on one machine are told apart for
    NCCL by NCCL_HOSTID. Under torchrun this process is one of the ranks, and every rank returns
    the report. ``tokens`` is the extent of the outermost index, ``timeout`` is in seconds.
    ``trace`` is where to write what every rank did when, for Perfetto.
    ``progress`` is told what all ranks have got through (under torchrun: this rank), in words.

    Raises:
        OptionError: fewer than 0 tokens, a seed of more than 32 bits, a timeout that is no time,
            or no such device.
        FuscoRuntimeError: what every rank raised.
        RankDiedError: a rank failed in another way; the others are ended too.
        OSError: the trace cannot be written; where its folder is missing, before anything runs.
    """
    opened = load_artifact(artifact)
    name = opened.shuffle(shuffle).name
    _check_options(tokens, seed, timeout, device)
    if "RANK" in os.environ:
        topology = None if nodes == 1 else Topology(nodes, int(os.environ["WORLD_SIZE"]) // nodes)
        chosen = join(timeout, torch.device(device) if device is not None else None)
        mine = run_rank(
            opened,
            name,
            tokens,
            seed,
            progress=progress,
            topology=topology,
            device=chosen,
            timeout=timeout,
            trace=trace is not None,
        )
        patience = timeout + BACKSTOP.total_seconds()
        assert dist.group.WORLD is not None
        said = gather_json(asdict(mine), dist.group.WORLD, chosen, patience, "the report")
        reports = [RankReport.from_json(each) for each in said]
    else:
        if ranks < 1 or nodes < 1 or ranks % nodes:
            raise TopologyError(f"{ranks} ranks cannot be split evenly over {nodes} nodes")
        if trace is not None and not (folder := Path(trace).parent).is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        available = torch.cuda.device_count()
        if device == "cuda" and available < ranks:
            raise OptionError("device", f"is cuda for {ranks} ranks; this machine has {available}")
        on_gpu = device == "cuda" or (device is None and available >= ranks)
        job = Job(
            artifact=str(artifact),
            shuffle=name,
            tokens=tokens,
            seed=seed,
            timeout=timeout,
            num_ranks=ranks,
            num_nodes=nodes,
            device_type="cuda" if on_gpu else "cpu",
            trace=trace is not None,
        )
        reports = start_ranks(job, progress)
    if trace is not None and os.environ.get("RANK", "0") == "0":
        write_trace(trace, [span for report in reports for span in report.spans])
    found = Topology.from_hosts([report.node for report in reports])
    return RunReport(str(artifact), name, found, seed, tuple(reports))


def _check_options(tokens: int, seed: int, timeout: float, device: str | None) -> None:
    check_timeout(timeout)
    if tokens < 0:
        raise OptionError("tokens", f"is {tokens}; it must be 0 or more")
    if not 0 <= seed < 2**32:
        raise OptionError("seed", f"is {seed}; it must be between 0 and 2**32 - 1")
    if device not in (None, "cpu", "cuda"):
        raise OptionError("device", f"is {device}; it must be cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionError("device", "is cuda; this machine has no CUDA device")
