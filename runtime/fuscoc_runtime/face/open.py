"""Open a shuffle on this rank: find the ranks, choose the engine, build it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from fuscoc_runtime.ccompiler import BuildError
from fuscoc_runtime.comm.group import Membership, alone, find_members, join, patience
from fuscoc_runtime.defaults import on_the_cpu_by_default
from fuscoc_runtime.engine.bounds import check_bounds_of_all
from fuscoc_runtime.engine.into import Into
from fuscoc_runtime.engine.node.answers import AnsweringNode, AnsweringRailNode
from fuscoc_runtime.engine.node.cuda import all_have_cuda, cuda_node
from fuscoc_runtime.engine.node.engine import NodeEngine, current_device
from fuscoc_runtime.engine.node.exact import ExactNode
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.node.flow_rails import FlowRails
from fuscoc_runtime.engine.node.pieces import PiecesNode
from fuscoc_runtime.engine.node.ragged import Extents, ragged_evaluator
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.node.state import NodeKernels
from fuscoc_runtime.engine.node.static_engine import StaticEngine
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.node.triton_pieces import TritonPiecesNode, triton_node
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import BackendError, ClosedError, OptionError, PreparationError
from fuscoc_runtime.face.choice import (
    Gpu,
    choose_cuda,
    choose_exact,
    choose_static,
    choose_triton,
    missing_dtype,
)
from fuscoc_runtime.face.limits import limits_of
from fuscoc_runtime.face.options import Options
from fuscoc_runtime.kernels.commands import prepare
from fuscoc_runtime.kernels.cuda import kernels_capability
from fuscoc_runtime.kernels.nccl import NcclError
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import CudaVariant, NodeSpec, ShuffleSpec
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.links import NIC_BANDWIDTH, cost_model
from fuscoc_runtime.topology import Topology

PROGRAMS_PER_SM = 2
OVERLAP_SHARE = 11
"""One SM in so many moves rows behind GEMMs: 12 of an H200's 132. The fewer there are, the less the
GEMMs lose, as long as they last longer than the rows take. docs/benchmarks/overlap.md has
measurements."""
CPU_PROGRAMS = 2
"""Interpreted programs run one after the other: two are enough to share a list."""

Engine = ProcessEngine | NodeEngine | ExactEngine

_log = logging.getLogger("fuscoc.runtime")


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
        ClosedError: the group's job has ended.
        IndexOutOfRangeError: with so many ranks a subscript leaves its layout.
        BackendError: the spec demands CUDA kernels and they cannot run here.
        OptionError: more slots than the kernels can count, or a dense target whose length differs
            from call to call and no ``capacity``.
    """
    device = _device(group, device, options.timeout)
    gpu = _gpu(device)
    cuda_gpu = gpu and replace(gpu, capability=kernels_capability(gpu.capability))
    members = _members(artifact, shuffle, group, topology, device, options, cuda_gpu)
    if options.trace:
        members = replace(members, tracer=Tracer(members.rank, members.device, enabled=True))
    try:
        return _engine_among(artifact, shuffle, members, options, gpu, cuda_gpu)
    except BaseException:
        members.liveness.give_up()  # others may wait for this rank, which may live on
        raise


def _engine_among(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    members: Membership,
    options: Options,
    gpu: Gpu | None,
    cuda_gpu: Gpu | None,
) -> Engine:
    """What `open_engine` opens, of ranks that know each other."""
    check_bounds_of_all(shuffle, members.topology.num_ranks)
    shuffle = shuffle.among(members.topology.num_ranks)
    is_static = options.max_sources is None
    max_sources = options.max_sources if not is_static else _static(shuffle, members, gpu, options)
    kernels: CudaVariant | NodeSpec | str
    kernels = choose_cuda(shuffle, members.topology, cuda_gpu, max_sources)
    if is_static and not isinstance(kernels, str) and not _demands_cuda(shuffle):
        has_them = all_have_cuda(artifact, shuffle, kernels, members)
        kernels = kernels if has_them else "a rank has no compiler for them, or cannot launch them"
    if isinstance(kernels, str):
        _check_gpu(shuffle, gpu, kernels)
        if max_sources is not None and members.rank == 0:
            _log.info("%s: no CUDA kernels: %s", shuffle.name, kernels)
        kernels = choose_triton(shuffle, members.topology, max_sources)
    if max_sources is not None and not isinstance(kernels, str):
        try:
            return _fixed_engine(
                artifact, shuffle, members, options, kernels, max_sources, is_static
            )
        except OptionError:  # of what no option has asked for
            if not is_static:
                raise
    if options.max_sources is not None and members.rank == 0:
        _log.warning(
            "%s: sizes are exact, and max_sources has no effect: %s", shuffle.name, kernels
        )
    exact = choose_exact(shuffle, members.topology, gpu, options.engine)
    if isinstance(exact, str):
        return _general_engine(artifact, shuffle, members, options)
    return _exact_engine(artifact, shuffle, members, options, exact)


def _static(
    shuffle: ShuffleSpec, members: Membership, gpu: Gpu | None, options: Options
) -> int | None:
    """The most source segments of a rank in calls whose sizes are known now; None if they are not,
    or if hosts of a node could not agree on a call without its GPUs."""
    topology = members.topology
    if topology.num_nodes == 1 < topology.num_ranks and not members.is_one_host:
        return None
    found = choose_static(shuffle, topology, gpu, options.engine)
    return None if isinstance(found, str) else found


def _members(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    group: dist.ProcessGroup | None,
    topology: Topology | None,
    device: torch.device,
    options: Options,
    cuda_gpu: Gpu | None,
) -> Membership:
    """The ranks, which have opened the same shuffle in the same way."""
    timeout = options.timeout or patience(group, device)
    if not dist.is_initialized():
        if group is not None:
            raise ClosedError("the process group")
        return alone(topology, device, timeout)
    # GPUs of several kinds can share the Triton kernels; only the CUDA kernels must be the same.
    is_fixed = options.max_sources is not None or shuffle.program.is_static
    kind = cuda_gpu if is_fixed else None
    manifest = artifact.manifest
    compiled = {  # by the names that an error calls them
        "shuffle": shuffle.name,
        "compiler": manifest.compiler,
        "spec": manifest.spec.sha256[:16],
        "baked": sorted(shuffle.baked),
    }
    settings = (compiled, dict(shuffle.declared.constants), options, kind)
    return find_members(group, topology, device, settings, timeout)


def _demands_cuda(shuffle: ShuffleSpec) -> bool:
    return shuffle.cuda is not None and shuffle.cuda.required


def _check_gpu(shuffle: ShuffleSpec, gpu: Gpu | None, no_cuda: str) -> None:
    """Raise unless a shuffle can do without CUDA's kernels, for which ``no_cuda`` is the reason."""
    if gpu is not None and _demands_cuda(shuffle):
        raise BackendError(shuffle.name, no_cuda)
    missing = missing_dtype(shuffle, gpu)
    if missing is not None:
        raise BackendError(shuffle.name, missing, wants="to cast f8e4m3")


def _fixed_engine(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    members: Membership,
    options: Options,
    kernels: CudaVariant | NodeSpec,
    max_sources: int,
    is_static: bool,
) -> NodeEngine:
    """In memory of a fixed size, and with it the engine of its reply; or that of a shuffle which
    ``is_static``."""
    device = members.device
    if is_static:
        options = replace(options, capacity=None)  # which is of calls with `max_sources`
    limits = limits_of(shuffle, members.topology, options, max_sources)
    rest = (members, limits, sms_to_use(device, options.num_sms))
    node: NodeKernels
    backend: Literal["cuda", "triton"] = "triton"
    if isinstance(kernels, NodeSpec) and device.type == "cuda":
        _prepare_lists(members)
    with current_device(device):
        if isinstance(kernels, CudaVariant):
            node, backend = cuda_node(artifact, shuffle, kernels, *rest), "cuda"
        elif members.topology.num_nodes > 1:
            node = RailNode(artifact, shuffle, kernels, *rest, _measures(members, options))
        else:
            node = triton_node(artifact, shuffle, kernels, *rest)
        ragged = ragged_evaluator(artifact, shuffle, node, members.tracer)
    if is_static:
        beside = replace(members, store=PrefixStore("general", members.store))
        general = partial(_general_engine, artifact, shuffle, beside, options)
        with current_device(device):
            engine: NodeEngine = StaticEngine(shuffle, members, node, backend, general)
    else:
        engine = NodeEngine(shuffle, members, node, backend, ragged)
    if isinstance(node, PiecesNode | TritonPiecesNode):
        engine.results = node.results
    if shuffle.reply is not None:
        assert isinstance(node, TritonNode)
        beside = _answering(members)
        with current_device(device):
            make = AnsweringRailNode if isinstance(node, RailNode) else AnsweringNode
            answering = make(artifact, node, beside, rest[2])
        NodeEngine(shuffle.reply, beside, answering, backend, asks=engine)
    return engine


def _exact_engine(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    members: Membership,
    options: Options,
    kernels: NodeSpec,
) -> ExactEngine:
    """In windows that grow, between nodes in slabs that do, and with it the engine of its reply."""
    beside = replace(members, store=PrefixStore("general", members.store))
    general = partial(_general_engine, artifact, shuffle, beside, options)
    sms = sms_to_use(members.device, options.num_sms)
    has_rails = members.topology.num_nodes > 1
    if has_rails and members.device.type == "cuda":
        _prepare_lists(members)

    def make(of: ShuffleSpec, kernels: NodeSpec, members: Membership) -> ExactNode:
        if not has_rails:
            return ExactNode(artifact, of, kernels, members, sms)
        network = _cost_model(of, options), _measures(members, options)
        return FlowRails(artifact, of, kernels, members, sms, *network)

    with current_device(members.device):
        node = make(shuffle, kernels, members)
        relation = shuffle.program.relation
        is_ragged = relation.extents_kernel is not None
        extents = Extents(artifact, relation, members.device, members.tracer) if is_ragged else None
        asking = ExactEngine(shuffle, members, node, general, extents=extents)
        if (reply := shuffle.reply) is not None:
            assert reply.node is not None, "kernels are there for both or none"
            answers = _answering(members)
            answering = make(reply, reply.node, answers)
            ExactEngine(reply, answers, answering, asking.general_reply, asking)
    return asking


def _prepare_lists(members: Membership) -> None:
    """Load what hands calls of the Triton kernels to a GPU, before ranks wait for each other."""
    try:
        prepare(exchanges=members.topology.num_nodes > 1)
    except (BuildError, NcclError) as error:
        raise PreparationError(members.rank, str(error)) from error


def open_into(artifact: Artifact, shuffle: ShuffleSpec, engine: Engine) -> Into | None:
    """What puts rows into memory of the caller's, where the spec has them go there."""
    if shuffle.into is None:
        return None
    members = engine.members
    num_ranks, waits = members.topology.num_ranks, not isinstance(engine, NodeEngine)
    given = members.rank, num_ranks, members.device
    return Into(artifact, shuffle, *given, raises=waits, tracer=members.tracer)


def _answering(members: Membership) -> Membership:
    """The ranks as those of a reply: what they tell each other is not mixed up."""
    return replace(members, store=PrefixStore("reply", members.store))


def _general_engine(
    artifact: Artifact, shuffle: ShuffleSpec, members: Membership, options: Options
) -> ProcessEngine:
    chosen = members.device
    sms = sms_to_use(chosen, options.num_sms)
    programs = PROGRAMS_PER_SM * sms if sms else CPU_PROGRAMS
    reply = None
    # As `Pool.take`: kernels that plan themselves leave the first call that they cannot make to it.
    with torch.inference_mode(False), on_the_cpu_by_default():
        if shuffle.reply is not None:
            reply = _general_engine(artifact, shuffle.reply, _answering(members), options)
        return ProcessEngine(
            artifact,
            shuffle,
            members,
            programs,
            model=_cost_model(shuffle, options),
            reply=reply,
        )


def _measures(members: Membership, options: Options) -> bool:
    """Whether to measure what the network does. Between processes on CPUs there is none to speak
    of."""
    return options.nic_bandwidth is None and members.device.type == "cuda"


def _cost_model(shuffle: ShuffleSpec, options: Options) -> CostModel:
    """What the network is taken to do, where nobody measures it."""
    model = cost_model(shuffle.program, options.nic_bandwidth or NIC_BANDWIDTH)
    return replace(model, slice_bytes=options.slice_bytes or model.slice_bytes)


def _gpu(device: torch.device) -> Gpu | None:
    if device.type != "cuda":
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    return Gpu((properties.major, properties.minor), properties.shared_memory_per_block_optin)


def _device(
    group: dist.ProcessGroup | None, device: torch.device | None, timeout: float | None
) -> torch.device:
    if not dist.is_initialized() and "RANK" in os.environ:
        device = join(timeout, device)
    if device is None and not dist.is_initialized():
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device is None:
        on_gpu = "nccl" in str(dist.get_backend(group))
        device = torch.device("cuda" if on_gpu else "cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def sms_to_use(device: torch.device, num_sms: int | Literal["overlap"] | None) -> int:
    """SMs that kernels may use at a time; 0 on a CPU."""
    if device.type == "cpu":
        return 0
    available = torch.cuda.get_device_properties(device).multi_processor_count
    if num_sms == "overlap":
        return max(1, available // OVERLAP_SHARE // 2 * 2)  # even: CTAs come in pairs
    return min(num_sms or available, available)
