"""Open a shuffle on this rank: find the ranks, choose the engine, build it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fuscoc_runtime.artifact import Artifact
from fuscoc_runtime.comm.group import Membership, find_members, join
from fuscoc_runtime.engine.choice import Gpu, choose_cuda, worst_capacity
from fuscoc_runtime.engine.node import NodeEngine
from fuscoc_runtime.engine.nvlink import Limits
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import BackendError, TopologyError
from fuscoc_runtime.schema import PackedTarget, ShuffleSpec
from fuscoc_runtime.topology import Topology

PROGRAMS_PER_SM = 2
CPU_PROGRAMS = 2
"""Interpreted programs run one after the other: two are enough to share a list."""

Engine = ProcessEngine | NodeEngine


@dataclass(frozen=True)
class Options:
    """What the user chose for one shuffle; see ``Shuffle``. Equal on all ranks."""

    timeout: float
    num_programs: int | None
    num_sms: int | None
    max_sources: int | None
    capacity: int | None
    num_handles: int


def open_engine(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    group: dist.ProcessGroup | None,
    topology: Topology | None,
    device: torch.device | None,
    options: Options,
) -> Engine:
    """The engine of this rank; collective over the ranks of ``group``.

    Raises:
        TopologyError, ProtocolError: the ranks do not fit together.
        BackendError: the spec demands CUDA kernels and they cannot run here.
    """
    chosen = _device(group, device, options.timeout)
    gpu = _gpu(chosen)
    # GPUs of several kinds can share the Triton kernels; only the CUDA kernels must be the same.
    kind = gpu if options.max_sources is not None else None
    settings = (shuffle.name, artifact.manifest.spec.sha256, sorted(shuffle.baked), options, kind)
    members = find_members(group, topology, chosen, settings)
    variant = choose_cuda(shuffle, members.topology, gpu, options.max_sources)
    if not isinstance(variant, str) and options.max_sources is not None:
        limits = _limits(shuffle, members, options, options.max_sources)
        return NodeEngine(
            artifact, shuffle, variant, members, limits, options.num_sms, options.timeout
        )
    if isinstance(variant, str) and shuffle.policy.backend == "cuda" and gpu is not None:
        raise BackendError(shuffle.name, variant)
    programs = options.num_programs or _default_programs(chosen, options.num_sms)
    return ProcessEngine(artifact, shuffle, members, programs, options.timeout)


def _limits(
    shuffle: ShuffleSpec, members: Membership, options: Options, max_sources: int
) -> Limits:
    assert isinstance(shuffle.target, PackedTarget)
    worst = worst_capacity(shuffle, members.topology.num_ranks, max_sources)
    capacity = options.capacity or shuffle.target.capacity or worst
    return Limits(max_sources, min(capacity, worst), options.num_handles)


def _gpu(device: torch.device) -> Gpu | None:
    if device.type != "cuda":
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    return Gpu((properties.major, properties.minor), properties.shared_memory_per_block_optin)


def _device(
    group: dist.ProcessGroup | None, device: torch.device | None, timeout: float
) -> torch.device:
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise TopologyError(
                "this process belongs to no job: start it with torchrun, or call "
                "torch.distributed.init_process_group first"
            )
        device = join(timeout, device)
    if device is None:
        on_gpu = "nccl" in str(dist.get_backend(group))
        device = torch.device("cuda" if on_gpu else "cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _default_programs(device: torch.device, num_sms: int | None) -> int:
    if device.type == "cpu":
        return CPU_PROGRAMS
    available = torch.cuda.get_device_properties(device).multi_processor_count
    return PROGRAMS_PER_SM * min(num_sms or available, available)
