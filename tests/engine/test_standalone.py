"""The runtime needs neither the compiler nor what the compiler needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.engine import specs

RUNTIME = Path(__file__).parents[2] / "runtime"

PROGRAM = """
import importlib, pkgutil, sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fuscoc", "lark", "torch_mlir"):
            raise AssertionError(f"the runtime imports {name}")


sys.meta_path.insert(0, Refuse())
import fuscoc_runtime

assert "torch" not in sys.modules and "triton" not in sys.modules
for module in pkgutil.walk_packages(fuscoc_runtime.__path__, "fuscoc_runtime."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.face.lockstep import LockstepShuffle

shuffle = LockstepShuffle(sys.argv[1], topology=fuscoc_runtime.Topology(1, 2))
ranks = generate(shuffle.spec, shuffle.topology, 3, 0)
named = [{"idx": data.inputs["idx"]} for data in ranks]
rows = shuffle.dispatch([[data.source["x"]] for data in ranks], named)
print(sum(int(each.handle.key_counts.sum()) for each in rows))
"""


def test_without_the_compiler() -> None:
    artifact = str(specs.artifact(specs.routed("f32")).path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, artifact],
        cwd=RUNTIME,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
