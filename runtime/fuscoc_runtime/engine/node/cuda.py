"""The CUDA kernels of one node, from an artifact."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node.engine import current_device
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.pieces import PiecesNode
from fuscoc_runtime.engine.node.program import NodeProgram
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.kernels.cuda import CudaError, cubin, headers_digest, kernels_arch, load_kernels
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import CudaVariant, ShuffleSpec

_log = logging.getLogger("fuscoc.runtime")


def cuda_node(
    artifact: Artifact,
    shuffle: ShuffleSpec,
    variant: CudaVariant,
    members: Membership,
    limits: Limits,
    num_sms: int | None,
) -> CudaNode:
    """The CUDA kernels of one node; collective over ``members``."""
    device = members.device
    with current_device(device):
        program = _compiled(artifact, shuffle, variant, device)
        members.meet("opening")  # a rank that has no kernels does not come
        schedule = Schedule(num_sms=num_sms or 0)
        return new_node(program, limits, members.group, device, schedule, members.tracer)


def all_have_cuda(
    artifact: Artifact, shuffle: ShuffleSpec, variant: CudaVariant, members: Membership
) -> bool:
    """Whether no rank lacks these kernels, for want of a compiler or of what launches them;
    collective. Who has not asked for them does without."""
    lacks = 0
    try:
        with current_device(members.device):
            program = _compiled(artifact, shuffle, variant, members.device)
            [code] = program.cubins.values()
            load_kernels(code, {})
    except CudaError as error:
        lacks = 1
        _log.info("%s: no CUDA kernels: %s", shuffle.name, error)
    return not sum(members.meet("opening", lacks), start=lacks)


def _compiled(
    artifact: Artifact, shuffle: ShuffleSpec, variant: CudaVariant, device: torch.device
) -> NodeProgram:
    """The program, with machine code for the GPU that is the current one."""
    program = node_program(artifact, shuffle, variant)
    arch = kernels_arch(torch.cuda.get_device_capability(device))
    return replace(program, cubins={arch: program.cubins.get(arch) or cubin(program.text, arch)})


def new_node(
    program: NodeProgram,
    limits: Limits,
    group: dist.ProcessGroup | None,
    device: torch.device,
    schedule: Schedule | None = None,
    tracer: Tracer | None = None,
) -> CudaNode:
    """The kernels of a program among the ranks of ``group``; collective."""
    kind = CudaNode if program.pieces is None else PiecesNode
    return kind(program, limits, group, device, schedule, tracer)


def node_program(artifact: Artifact, shuffle: ShuffleSpec, variant: CudaVariant) -> NodeProgram:
    """What a `CudaNode` executes of a shuffle among its ranks. Machine code made with other device
    headers is left out."""
    program, headers = shuffle.program, headers_digest()
    assert shuffle.cuda is not None
    return NodeProgram(
        name=shuffle.name,
        text=artifact.code[variant.file].decode(),
        launches={name: (c.threads, c.shared_bytes) for name, c in variant.launches.items()},
        fields=tuple(
            (TORCH_DTYPES[field.dtype], field.num_elems) for field in program.buffers["target"]
        ),
        summed=tuple(
            (TORCH_DTYPES[field.dtype], field.num_elems) for field in program.buffers["source"]
        ),
        fanout=program.fanout,
        num_keys=program.target.num_keys if program.target.kind == "packed" else 0,
        weighted=shuffle.cuda.weighted,
        teams=variant.tile.get("teams", 0),
        compact=program.is_compact,
        scatters=variant.tile.get("dispatch_rows", 1) > 1,
        sorts=variant.tile.get("sorted_rows", 1) > 1,
        given_slots=program.target.kind == "dense",
        places_results=shuffle.cuda.places_results,
        num_strides=len(program.relation.addresses) - 1,  # beside the first cell
        pieces=shuffle.cuda.pieces,
        apart_elems=program.runs[0].cell_elems if program.relation.apart else 0,
        ragged=program.relation.extents_kernel is not None,
        looks_up=bool(program.inputs),
        by_table=program.target.kind == "packed" and program.target.placement.table is not None,
        cubins={
            cubin.arch: artifact.code[cubin.file]
            for cubin in variant.cubins
            if cubin.headers == headers
        },
    )
