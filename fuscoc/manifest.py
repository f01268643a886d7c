"""The manifest of an artifact: what the runtime has to know, as JSON (``docs/abi.md``).

What the spec says comes from the checked shuffles (``spec_json.py``), what to launch from the
lowered modules.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import fuscoc
from fuscoc.codegen.cuda_shuffle import CudaKernels, CudaVariant, cuda_kernels
from fuscoc.codegen.cuda_types import Unsupported
from fuscoc.codegen.points import BLOCK
from fuscoc.codegen.triton_node import NodeKernels, triton_node
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.l0 import Shuffle
from fuscoc.dialect.l1 import Path
from fuscoc.dialect.l2 import Exchange
from fuscoc.dialect.l3 import Kernel, Launch, Signal, Wait
from fuscoc.dialect.relation import Point
from fuscoc.lang.checked import CheckedShuffle, PackedTarget
from fuscoc.source import SourceFile
from fuscoc.spec_json import spec_json

SCHEMA = 2


@dataclass(frozen=True)
class CompiledShuffle:
    """A shuffle with its module at L3, and the module's text at every level (``L0`` ...)."""

    checked: CheckedShuffle
    module: Any
    dumps: Mapping[str, str]

    @property
    def kernel_file(self) -> str:
        """The file of its kernels in an artifact."""
        return f"kernels/{self.checked.name}.py"

    @cached_property
    def cuda(self) -> CudaKernels | str:
        """Its CUDA kernels, or why there are none."""
        if self.checked.policy.backend == "triton":
            return "the spec says `backend triton`"
        try:
            return cuda_kernels(self.checked, self.module)
        except Unsupported as reason:
            return str(reason)

    @cached_property
    def node(self) -> NodeKernels | str:
        """Its Triton kernels inside one node, or why there are none."""
        if self.checked.policy.backend == "cuda":
            return "the spec says `backend cuda`"
        try:
            return triton_node(self.checked)
        except Unsupported as reason:
            return str(reason)


@dataclass(frozen=True)
class Assembler:
    """Makes cubins for ``archs`` (such as ``sm_90``); ``headers`` tells its device headers apart.

    ``assemble`` maps CUDA text and an arch to machine code.
    """

    archs: tuple[str, ...]
    headers: str
    assemble: Callable[[str, str], bytes]


def cubin_file(item: CompiledShuffle, arch: str) -> str:
    """The file of a shuffle's machine code in an artifact."""
    return f"kernels/{item.checked.name}.{arch}.cubin"


def build_manifest(
    spec: SourceFile,
    shuffles: Sequence[CompiledShuffle],
    files: Mapping[str, str],
    assembler: Assembler | None = None,
) -> dict[str, Any]:
    """The manifest of a spec's shuffles, as JSON values; ``files`` maps paths to their text."""
    functions = [(item, name) for item in shuffles for name in _kernel_names(item)]
    uses = Counter(name for _, name in functions)

    def unique(item: CompiledShuffle) -> Callable[[str], str]:
        # moe_reduce + forward, moe + reduce_forward: a name need not be its kernel's alone.
        return lambda name: name if uses[name] == 1 else f"{item.checked.name}.{name}"

    return {
        "schema": SCHEMA,
        "compiler": fuscoc.__version__,
        "spec": {"file": PurePath(spec.path).name, "sha256": sha256(spec.text.encode())},
        "files": {path: sha256(text.encode()) for path, text in files.items()},
        "shuffles": [
            {
                **_shuffle(item, unique(item)),
                **_cuda(item, assembler),
                **_node(item, unique(item)),
            }
            for item in shuffles
        ],
        "kernels": [kernel for item in shuffles for kernel in _kernels(item, unique(item))],
    }


def sha256(content: bytes) -> str:
    """The digest of a file."""
    return hashlib.sha256(content).hexdigest()


def _kernel_names(item: CompiledShuffle) -> list[str]:
    names = [kernel.read("sym_name") for kernel in ops_of(item.module, Kernel)]
    if not isinstance(item.node, str):
        names += [kernel.name for kernel in item.node.kernels.values()]
    return names


def _shuffle(item: CompiledShuffle, kernel_name: Callable[[str], str]) -> dict[str, Any]:
    checked = item.checked
    (shuffle,) = ops_of(item.module, Shuffle)
    paths = {path.read("direction"): path for path in ops_of(item.module, Path)}
    point = terminator(shuffle, 1, Point)
    strides = [f"src_stride{i}" for i in range(len(point.src_strides))]
    place = "key" if isinstance(checked.target, PackedTarget) else "slot"
    ragged = shuffle.read("ragged")
    return {
        **spec_json(checked),
        "ragged": ragged,
        "src_strides": len(strides),
        "runs": [
            {**runs, "run_dims": [dict(dim) for dim in runs["run_dims"]]}
            for runs in shuffle.read("runs")
        ],
        "relation": {
            "kernel": kernel_name(f"{checked.name}_relation"),
            "block": BLOCK,
            "outputs": ["source", "src_offset", *strides, "rank", place],
        },
        "extents_kernel": kernel_name(f"{checked.name}_extents") if ragged else None,
        "dispatch": _steps(checked, paths["dispatch"], kernel_name),
        "combine_steps": checked.combine and _steps(checked, paths["combine"], kernel_name),
        "baked": {},
    }


def _steps(checked: CheckedShuffle, path: Any, kernel_name: Callable[[str], str]) -> dict[str, Any]:
    return {
        "steps": [_step(step, kernel_name) for step in ops_of(path, Launch, Exchange)],
        "dtypes": _partial_dtypes(checked, path),
    }


def _partial_dtypes(checked: CheckedShuffle, path: Any) -> dict[str, str]:
    """The buffers of partial sums, whose rows are not of their field's dtype."""
    if path.read("direction") == "dispatch":
        return {}
    own = {field.name: field.dtype for field in checked.source.fields}
    held = {
        bound["buffer"].removeprefix("peers."): bound["dtype"]
        for launch in ops_of(path, Launch)
        for bound in launch.read("bind")
    }
    return {
        buffer: dtype
        for buffer, dtype in held.items()
        if (field := buffer.partition(".")[2]) and dtype != own[field]
    }


def _step(step: Any, kernel_name: Callable[[str], str]) -> dict[str, Any]:
    held = step.read("list")[-1]
    if isinstance(step, Exchange):
        return {"op": "exchange", "list": held, "direction": step.read("direction")}
    launch = {
        "op": "launch",
        "kernel": kernel_name(step.read("kernel")[0]),
        "list": held,
        "bind": {bound["arg"]: bound["buffer"] for bound in step.read("bind")},
    }
    if step.read("signal") is not None:
        launch["signal"] = step.read("signal")
    if step.read("wait"):
        launch["wait"] = list(step.read("wait"))
    return launch


def _kernels(item: CompiledShuffle, kernel_name: Callable[[str], str]) -> Iterable[dict[str, Any]]:
    for kernel in ops_of(item.module, Kernel):
        function = kernel.read("sym_name")
        marks = {"signal": Signal, "wait": Wait}
        yield {
            "name": kernel_name(function),
            "file": item.kernel_file,
            "function": function,
            "args": [
                {key: argument[key] for key in ("name", "kind", "value")}
                for argument in kernel.read("args")
            ],
            "num_warps": kernel.read("num_warps"),
            "emits": [mark for mark, op in marks.items() if ops_of(kernel, op)],
        }
    if isinstance(item.node, str):
        return
    for node_kernel in item.node.kernels.values():
        yield {
            "name": kernel_name(node_kernel.name),
            "file": item.node.file,
            "function": node_kernel.name,
            "args": [
                {"name": name, "kind": _kind(value), "value": value}
                for name, value in node_kernel.parameters.items()
            ],
            "num_warps": node_kernel.num_warps,
            "emits": [],
        }


def _kind(value: str) -> str:
    is_count = value == "num_sources" or value.startswith("rows_at.")
    return "scalar" if is_count else "address"


def _node(item: CompiledShuffle, kernel_name: Callable[[str], str]) -> dict[str, Any]:
    node = item.node
    if isinstance(node, str):
        return {"node": None, "node_note": node}
    return {
        "node": {
            "kernels": {role: kernel_name(kernel.name) for role, kernel in node.kernels.items()},
            "tile_sources": node.tile_sources,
            "padded_keys": node.padded_keys,
            "key_block": node.key_block,
        },
        "node_note": None,
    }


def _cuda(item: CompiledShuffle, assembler: Assembler | None) -> dict[str, Any]:
    kernels = item.cuda
    if isinstance(kernels, str):
        return {"cuda": None, "cuda_note": kernels}
    return {
        "cuda": {
            "inputs": list(kernels.inputs),
            "weighted": kernels.weighted,
            "row_bytes": list(kernels.variants[0].source.row_bytes),
            "variants": [
                _cuda_variant(item, kernels, variant, assembler) for variant in kernels.variants
            ],
        },
        "cuda_note": None,
    }


def _cuda_variant(
    item: CompiledShuffle,
    kernels: CudaKernels,
    variant: CudaVariant,
    assembler: Assembler | None,
) -> dict[str, Any]:
    archs = assembler.archs if assembler is not None else ()
    return {
        "arch": variant.target.arch,
        "file": variant.file,
        "shared_bytes": variant.target.shared_bytes,
        "launches": {name: asdict(launch) for name, launch in variant.source.launches.items()},
        "tile": asdict(variant.source.tile),
        "cubins": [
            {"arch": arch, "file": cubin_file(item, arch), "headers": assembler.headers}
            for arch in archs
            if assembler is not None and kernels.variant(arch) is variant
        ],
    }
