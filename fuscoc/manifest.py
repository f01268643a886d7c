"""The manifest of an artifact: what the runtime has to know, as JSON (``docs/abi.md``).

What a spec declares comes from the checked shuffles (``declared.py``), what is executed from the
lowered modules (``program.py``).
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
from fuscoc.capabilities import NODE_KERNELS, find_fault
from fuscoc.codegen.cuda_kernels import CudaKernels, CudaVariant, cuda_kernels
from fuscoc.codegen.cuda_tiles import CudaSizes, PieceSizes
from fuscoc.codegen.spec_words import cuda_header, kernel_words
from fuscoc.codegen.triton_node import NodeKernels, triton_node
from fuscoc.codegen.triton_tiles import TritonPieceSizes, TritonSizes
from fuscoc.declared import declared_json
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l3 import Kernel, Signal, Wait
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.program import into_json, program_json
from fuscoc.source import SourceFile

SCHEMA = 18
NOT_LOWERED = "it was lowered without them"


@dataclass(frozen=True)
class CompiledShuffle:
    """A shuffle with its module at L3, the module's text at every level (``L0`` ...), and its
    reply."""

    checked: CheckedShuffle
    module: Any
    dumps: Mapping[str, str]
    reply: CompiledShuffle | None = None

    @property
    def kernel_file(self) -> str:
        """The file of its kernels in an artifact."""
        return f"kernels/{self.checked.name}.py"

    @cached_property
    def cuda(self) -> CudaKernels | str:
        """Its CUDA kernels, or why there are none."""
        fault = find_fault(self.checked, NODE_KERNELS["cuda"])
        if fault is not None:
            return fault.reason
        return cuda_kernels(self.module, cuda_header(self.checked)) or NOT_LOWERED

    @cached_property
    def node(self) -> NodeKernels | str:
        """Its Triton kernels inside one node, or why there are none."""
        fault = find_fault(self.checked, NODE_KERNELS["triton"])
        if fault is not None:
            return fault.reason
        words = kernel_words(self.checked)
        return triton_node(self.module, self.checked.source_file.plain_name, words) or NOT_LOWERED


def compile_shuffle(
    checked: CheckedShuffle,
    after: str | None = None,
    print_between: Callable[[str, str], None] | None = None,
) -> CompiledShuffle:
    """A shuffle and its reply, lowered as by ``fuscoc.pipeline.compile_to_ir``."""
    lowered = compile_to_ir(checked, after=after, print_between=print_between)
    reply = None
    if checked.reply is not None:
        reply = compile_shuffle(checked.reply, after, print_between)
    return CompiledShuffle(checked, lowered.module, lowered.dumps, reply)


def with_replies(shuffles: Iterable[CompiledShuffle]) -> list[CompiledShuffle]:
    """The shuffles, each with its reply behind it."""
    return [part for item in shuffles for part in (item, item.reply) if part is not None]


@dataclass(frozen=True)
class Assembler:
    """Makes cubins for ``archs`` (such as ``sm_90``); ``headers`` tells its device headers apart.

    ``assemble`` maps CUDA text and an arch to machine code. ``add_triton`` enters that of the
    Triton kernels into a manifest, given with the texts of its files, and returns their files.
    """

    archs: tuple[str, ...]
    headers: str
    assemble: Callable[[str, str], bytes]
    add_triton: Callable[[dict[str, Any], Mapping[str, str]], Mapping[str, bytes]] | None = None


def cubin_file(item: CompiledShuffle, arch: str) -> str:
    """The file of a shuffle's machine code in an artifact."""
    return f"kernels/{item.checked.name}.{arch}.cubin"


def build_manifest(
    spec: SourceFile,
    shuffles: Sequence[CompiledShuffle],
    assembler: Assembler | None = None,
) -> dict[str, Any]:
    """The manifest of a spec's shuffles, as JSON values."""
    parts = with_replies(shuffles)
    functions = [(item, name) for item in parts for name in _kernel_names(item)]
    uses = Counter(name for _, name in functions)

    def unique(item: CompiledShuffle) -> Callable[[str], str]:
        # moe_reduce + forward, moe + reduce_forward: a name need not be its kernel's alone.
        return lambda name: name if uses[name] == 1 else f"{item.checked.name}.{name}"

    def entry(item: CompiledShuffle) -> dict[str, Any]:
        return {
            "name": item.checked.name,
            "declared": declared_json(item.checked),
            "program": program_json(item.module, unique(item)),
            "into": into_json(item.checked.into, item.module, unique(item)),
            "baked": {},
            **_cuda(item, assembler),
            **_node(item, unique(item)),
            "reply": None if item.reply is None else entry(item.reply),
            "shares_plan": item.checked.shares_plan,
        }

    return {
        "schema": SCHEMA,
        "compiler": fuscoc.__version__,
        "spec": {"file": PurePath(spec.path).name, "sha256": sha256(spec.text.encode())},
        "shuffles": [entry(item) for item in shuffles],
        "kernels": [kernel for item in parts for kernel in _kernels(item, unique(item))],
        "cubins": [],
    }


def sha256(content: bytes) -> str:
    """The digest of a file."""
    return hashlib.sha256(content).hexdigest()


def _kernel_names(item: CompiledShuffle) -> list[str]:
    names = [kernel.read("sym_name") for kernel in ops_of(item.module, Kernel)]
    if not isinstance(item.node, str):
        names += [kernel.name for node in item.node.all for kernel in node.kernels.values()]
    return names


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
    for node in item.node.all:
        for node_kernel in node.kernels.values():
            yield {
                "name": kernel_name(node_kernel.name),
                "file": node.file,
                "function": node_kernel.name,
                "args": [
                    {"name": name, "kind": _kind(value), "value": value}
                    for name, value in node_kernel.parameters.items()
                ],
                "num_warps": node_kernel.num_warps,
                "emits": [],
            }


def _kind(value: str) -> str:
    counts = ("num_sources", "num_slots", "num_cells", "result_bytes", "programs")
    is_count = value in counts or value.startswith(("rows_at.", "extent."))
    return "scalar" if is_count else "address"


def _node(item: CompiledShuffle, kernel_name: Callable[[str], str]) -> dict[str, Any]:
    node = item.node
    if isinstance(node, str):
        return {"node": None, "node_note": node}
    return {"node": _of_node(node, kernel_name), "node_note": None}


def _of_node(node: NodeKernels, kernel_name: Callable[[str], str]) -> dict[str, Any]:
    return {
        "kernels": {role: kernel_name(kernel.name) for role, kernel in node.kernels.items()},
        "tile_sources": node.tile_sources,
        "padded_keys": node.padded_keys,
        "key_block": node.key_block,
        "partial_bytes": node.partial_bytes,
        "places_results": node.places_results,
        "tile": _counts(node.tile),
        "pieces": None if node.pieces is None else asdict(node.pieces),
        "between": None if node.between is None else _of_node(node.between, kernel_name),
    }


def _counts(sizes: CudaSizes | PieceSizes | TritonSizes | TritonPieceSizes) -> dict[str, int]:
    """What is said of a tile: the numbers of which there is one."""
    return {name: int(each) for name, each in asdict(sizes).items() if isinstance(each, int)}


def _cuda(item: CompiledShuffle, assembler: Assembler | None) -> dict[str, Any]:
    kernels = item.cuda
    if isinstance(kernels, str):
        return {"cuda": None, "cuda_note": kernels}
    return {
        "cuda": {
            "required": item.checked.policy.backend == "cuda",
            "inputs": list(kernels.inputs),
            "weighted": kernels.weighted,
            "places_results": kernels.places_results,
            "row_bytes": list(kernels.variants[0].source.row_bytes),
            "pieces": None if kernels.pieces is None else asdict(kernels.pieces),
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
        "tile": _counts(variant.source.sizes),
        "cubins": [
            {"arch": arch, "file": cubin_file(item, arch), "headers": assembler.headers}
            for arch in archs
            if assembler is not None and kernels.variant(arch) is variant
        ],
    }
