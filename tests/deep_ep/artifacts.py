"""Artifacts of the module's specs, for machines without the compiler.

``python -m tests.deep_ep.artifacts FOLDER 1 2``: those that ``gpu_run`` takes with 1 rank and 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import fuscoc
from fuscoc_runtime.deep_ep.quantised import Quantised
from fuscoc_runtime.deep_ep.rows import Kind
from fuscoc_runtime.deep_ep.specs import artifact_name, spec_path
from tests.deep_ep.cases import BLOCK, LARGE, SMALL
from tests.deep_ep.elastic_work import ALIGNMENT

LOW_LATENCY = [
    Quantised(is_fp8=False, rounded=False, packed=False),
    Quantised(is_fp8=True, rounded=False, packed=False),
    Quantised(is_fp8=True, rounded=True, packed=False),
    Quantised(is_fp8=True, rounded=True, packed=True),
]


def compile_all(folder: Path, nums_ranks: Sequence[int]) -> None:
    for shape in (SMALL, LARGE):
        wanted = [each.spec(shape.hidden, shape.topk) for each in LOW_LATENCY]
        numbers = product((0, shape.hidden // BLOCK), (0, shape.topk))
        for kind, peers in product((Kind(shape.hidden, *each) for each in numbers), nums_ranks):
            wanted.append((kind.spec, kind.constants(peers)))
        for scales, peers in product((0, shape.hidden // BLOCK), nums_ranks):
            kind = Kind(shape.hidden, scales, shape.topk, is_numbered=True)
            wanted.append((kind.spec, kind.constants(peers)))
        for scales in (0, shape.hidden // BLOCK):
            kind = Kind(shape.hidden, scales, shape.topk, is_numbered=True)
            wanted.append(kind.expanded(shape.experts, ALIGNMENT))
        for name, constants in wanted:
            fuscoc.compile(spec_path(name), folder / artifact_name(name, constants), **constants)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])
