"""Slots that the relation gives, between nodes on real GPUs, against the reference.

``python -m tests.rails.given_gpu_run FOLDER`` compiles the shuffles and their kernels, with or
without a GPU; ``torchrun --nproc-per-node 2 -m tests.rails.given_gpu_run FOLDER --topology 2x1``
runs them and exits non-zero, after naming every mismatch, when something is wrong. Hosts and GPUs
are as in `gpu_run.py`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.gpu_ranks import join
from tests.node_triton.given_gpu_run import run
from tests.node_triton.given_specs import EXAMPLES, Small
from tests.node_triton.gpu_run import told
from tests.rails.gpu_run import TIMEOUT
from tests.rails.static_specs import EVERY_RANK, everywhere, uneven
from tests.warm import warm

GRID = Small(
    specs.GRID,
    {"max_sources": 60, "capacity": 99},
    [(3, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3, 0)],
)
POINTS = ("kv_pages", "vit_patches_normalised")
PIECES = ("kv_long_pages", "redistribute", "ulysses", "vit_patches")
"""The former have points inside a node as well, the slots of the latter follow from pieces."""
GATHERS = ("all_gather", "halo")
FIXED = [(1, 1, 1, 1)] * 3
STATIC = {
    name: Small(uneven(name, 11, 2, "f32", 300), {"max_sources": 22}, FIXED)
    for name in ("cyclic", "next", "first", "every")
}
"""Uneven ones, whose slabs have places for what crosses."""
TO_EVERY_RANK = {
    f"everywhere_{name}": Small(everywhere(name, 11, 1, "f32", 300), {"max_sources": 12}, FIXED)
    for name in EVERY_RANK
}
CASES = {
    "grid": GRID,
    **{name: EXAMPLES[name] for name in (*POINTS, *PIECES, *GATHERS, "fft_transpose")},
    **STATIC,
    **TO_EVERY_RANK,
}


def compile_all(folder: Path) -> None:
    import fuscoc

    for name, small in CASES.items():
        fuscoc.compile(small.text, folder / name)
    for problem in warm([folder / name for name in CASES]):
        print(f"does not compile: {problem}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topology", type=Topology.parse)
    parser.add_argument("--one-host", action="store_true")
    given = parser.parse_args()
    if given.topology is None:
        compile_all(given.folder)
        return 0
    device = join(given.topology, given.one_host)
    options = {"topology": given.topology, "device": device}
    wrong: list[str] = []
    for name, small in CASES.items():
        here = replace(small, options={**small.options, **options, "timeout": TIMEOUT})
        found = run(str(given.folder / name), here, captures=given.one_host)
        wrong += [f"{name}: {each}" for each in found]
    return told(wrong)


if __name__ == "__main__":
    sys.exit(main())
