"""Artifacts of the module's specs, for machines without the compiler.

``python -m tests.deep_ep.artifacts FOLDER 1 2`` makes those that ``gpu_run`` takes with 1 rank and 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import fuscoc
from fuscoc_runtime.deep_ep.specs import artifact_name, spec_path
from tests.deep_ep.rank_work import LARGE, SMALL


def compile_all(folder: Path, nums_ranks: Sequence[int]) -> None:
    for shape in (SMALL, LARGE):
        gates = {"hidden": shape.hidden, "topk": shape.topk}
        wanted = [("slots", gates), ("slots_fp8", gates)]
        for peers in nums_ranks:
            wanted.append(("ranks", {"hidden": shape.hidden, "peers": peers}))
            wanted.append(("gated", {**gates, "peers": peers}))
        for kind, constants in wanted:
            fuscoc.compile(spec_path(kind), folder / artifact_name(kind, constants), **constants)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])
