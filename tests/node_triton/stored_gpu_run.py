"""The machine code that artifacts have of Triton kernels on real GPUs, where Triton compiles
nothing; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.node_triton.stored_gpu_run ARTIFACT…``
takes the artifacts of `compile_all` in their order and exits non-zero, after naming every mismatch,
when something is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from triton.runtime.jit import JITFunction

from benchmarks.moe_cases import spec
from fuscoc_runtime import Shuffle
from tests.gpu_ranks import join
from tests.node_triton.gpu_run import MOST, Runs, told
from tests.node_triton.models import MODELS

STORED = MODELS[0], MODELS[1], MODELS[3]


def compile_all(folder: Path) -> list[str]:
    """The artifacts of these models, with machine code for the GPU that there is."""
    from fuscoc.cli import app

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    paths = []
    for number, model in enumerate(STORED):
        text, out = folder / f"{number}.fsc", folder / str(number)
        text.write_text(spec(model, "triton"), encoding="utf-8")
        done = CliRunner().invoke(app, ["compile", str(text), "-o", str(out), "--cubin", arch])
        assert done.exit_code == 0, done.output
        paths.append(str(out))
    return paths


def refuse(function: Any, *_: Any, **__: Any) -> None:
    raise RuntimeError(f"{function} is compiled or launched by Triton")


def main() -> int:
    join()
    JITFunction.run = refuse
    wrong: list[str] = []
    for artifact, model in zip(sys.argv[1:], STORED, strict=True):
        runs = Runs(artifact, model, wrong)
        exact = Shuffle(artifact)  # of exact sizes
        for shuffle in (runs.shuffle, exact):
            runs.shuffle = shuffle
            for kind in ("uniform", "messy"):
                for tokens in (MOST, 1 + 100 * runs.rank, 0):
                    runs.verify(kind, tokens)
    return told(wrong)


if __name__ == "__main__":
    sys.exit(main())
