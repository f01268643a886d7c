"""DeepEP's own test programs for one node, with `deep_ep` replaced by the module.

``python -m tests.deep_ep.upstream CHECKOUT legacy/test_intranode.py --num-processes 2 …`` runs a
program of a checkout of DeepEP's repository (commit dd758caf4518) as it is. Its helpers
(`deep_ep.utils`) are taken from there, but for times of kernels by name, which are not ours. With
``--cpu`` before the checkout, what ``ON_CPU`` says is replaced in a copy of it, and nothing timed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SHIM = """
from fuscoc_runtime.deep_ep import *
from fuscoc_runtime.deep_ep import __version__

__path__.append({helpers!r})

import deep_ep.utils.testing


def _no_times(fn, kernel_names, *_, num_kernels_per_period=1, **__):
    time = (1.0,) * num_kernels_per_period if num_kernels_per_period > 1 else 1.0
    return time if isinstance(kernel_names, str) else (time,) * len(kernel_names)


deep_ep.utils.testing.bench_kineto = _no_times
if {on_cpu}:
    deep_ep.utils.testing.bench = lambda *_, **__: (1.0, 1.0, 1.0)
"""
COMPILED = "from fuscoc_runtime.deep_ep import Config, EventHandle, topk_idx_t\n"
"""What the helpers import of DeepEP's compiled part."""
ON_CPU = {
    "'cuda'": "'cpu'",
    "'nccl'": "'gloo'",
    "if 'device_id' in sig.parameters:": "if False:",
    "torch.cuda.set_device(local_rank)": "pass",
    "torch.cuda.synchronize()": "pass",
    "@torch.compile(dynamic=True)": "",
    "(all_topk_idx, topk_idx,": "(all_topk_idx.view(-1, num_topk), topk_idx,",
    "(recv_x, send_x,": "(recv_x.view(torch.uint8), send_x.view(torch.uint8),",
    "(8192, 8192)": "(8, 8)",
    "time.sleep(1)": "pass",
}
"""Gloo gathers tensors of one shape alone and exchanges no short floats; the rest is time."""


def main(arguments: list[str]) -> int:
    on_cpu = arguments[:1] == ["--cpu"]
    given, program, *rest = arguments[on_cpu:]
    with tempfile.TemporaryDirectory() as folder:
        checkout, package = Path(given).absolute(), Path(folder) / "shim" / "deep_ep"
        if on_cpu:
            checkout = shutil.copytree(checkout, Path(folder) / "checkout")
            for path in checkout.rglob("*.py"):
                text = path.read_text()
                for old, new in ON_CPU.items():
                    text = text.replace(old, new)
                path.write_text(text)
        package.mkdir(parents=True)
        helpers = str(checkout / "deep_ep")
        (package / "__init__.py").write_text(SHIM.format(helpers=helpers, on_cpu=on_cpu))
        (package / "_C.py").write_text(COMPILED)
        path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(checkout / "tests" / program), *rest]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
