"""Windows of NCCL's are memory that ranks of a node can address; see docs/decisions/kernels.md."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gpus import need_gpus
from tests.rails.test_gin import headers

SOURCE = Path(__file__).with_name("lsa.cu")


@pytest.mark.gpu
def test_stores_through_a_window_arrive(tmp_path: Path) -> None:
    need_gpus(2)
    nvcc, include = shutil.which("nvcc"), headers()
    if nvcc is None or include is None:
        pytest.skip("needs nvcc and the headers of NCCL 2.28 or newer")
    library = include.parent / "lib" / "libnccl.so.2"
    linked = ["-Xlinker", str(library), "-Xlinker", "-rpath", "-Xlinker", str(library.parent)]
    options = ["-std=c++17", "-arch=native", "-DNCCL_GIN_GDAKI_ENABLE=0", f"-I{include}"]
    program = tmp_path / "lsa"
    subprocess.run([nvcc, *options, str(SOURCE), "-o", str(program), *linked], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 words wrong") == 4
