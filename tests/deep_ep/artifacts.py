"""Artifacts of the module's specs, for machines without the compiler.

``python -m tests.deep_ep.artifacts FOLDER 1 2``: those that ``gpu_run`` takes with 1 rank and 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import fuscoc
from fuscoc_runtime.deep_ep.rows import Kind
from fuscoc_runtime.deep_ep.specs import artifact_name, spec_path
from tests.deep_ep.rank_work import BLOCK, LARGE, SMALL


def compile_all(folder: Path, nums_ranks: Sequence[int]) -> None:
    for shape in (SMALL, LARGE):
        sizes = {"hidden": shape.hidden, "topk": shape.topk}
        wanted = [("slots", sizes), ("slots_fp8", sizes)]
        numbers = (
            (scales, topk) for scales in (0, shape.hidden // BLOCK) for topk in (0, shape.topk)
        )
        for kind, peers in product((Kind(shape.hidden, *each) for each in numbers), nums_ranks):
            wanted.append((kind.spec, kind.constants(peers)))
        for kind, constants in wanted:
            fuscoc.compile(spec_path(kind), folder / artifact_name(kind, constants), **constants)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])
