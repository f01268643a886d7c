"""Artifacts of the module's specs, for machines without the compiler.

``python -m tests.deep_ep.artifacts FOLDER 1 2``: those that ``gpu_run`` takes with 1 rank and 2,
with machine code for sm_90.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from fuscoc.driver import compile_source
from fuscoc.manifest import Assembler
from fuscoc.source import as_source
from fuscoc_runtime.deep_ep.quantised import Quantised
from fuscoc_runtime.deep_ep.rows import Kind
from fuscoc_runtime.deep_ep.specs import artifact_name, spec_path
from fuscoc_runtime.kernels.cuda import cubin, headers_digest
from tests.deep_ep.cases import BLOCK, LARGE, SMALL

LOW_LATENCY = [
    Quantised(is_fp8=False, rounded=False, packed=False),
    Quantised(is_fp8=True, rounded=False, packed=False),
    Quantised(is_fp8=True, rounded=True, packed=False),
    Quantised(is_fp8=True, rounded=True, packed=True),
]


def wanted(nums_ranks: Sequence[int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Specs and their constants."""
    for shape in (SMALL, LARGE):
        for quantised in LOW_LATENCY:
            yield quantised.spec(shape.hidden, shape.topk)
        for beside in (1, shape.topk):
            yield "back", {"hidden": shape.hidden, "beside": beside}
        for scales in (0, shape.hidden // BLOCK):
            plain, routed = Kind(shape.hidden, scales, 0), Kind(shape.hidden, scales, shape.topk)
            numbered = replace(routed, is_numbered=True)
            for kind, peers in product((plain, routed, numbered), nums_ranks):
                yield kind.spec, kind.constants(peers)


def compile_all(folder: Path, nums_ranks: Sequence[int], archs: tuple[str, ...] = ()) -> None:
    """All of them, with machine code for ``archs``."""
    assembler = Assembler(archs, headers_digest(), cubin)
    for name, constants in wanted(nums_ranks):
        out = folder / artifact_name(name, constants)
        compile_source(as_source(spec_path(name)), out, constants, assembler=assembler)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]], ("sm_90",))
