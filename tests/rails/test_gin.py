"""What a GPU would post by itself compiles against NCCL's headers, where they have it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("gin_post.cu")
HEADER = "nccl_device/gin.h"


def headers() -> Path | None:
    """Those of the NCCL that torch is installed with, or of the system."""
    spec = importlib.util.find_spec("nvidia")
    packages = [] if spec is None else [*(spec.submodule_search_locations or ())]
    folders = [*(Path(each, "nccl", "include") for each in packages), Path("/usr/include")]
    return next((each for each in folders if (each / HEADER).exists()), None)


def test_it_compiles(tmp_path: Path) -> None:
    nvcc, include = shutil.which("nvcc"), headers()
    if nvcc is None or include is None:
        pytest.skip("needs nvcc" if nvcc is None else f"needs {HEADER}, NCCL 2.28 or newer")
    # Without DOCA, which some packages leave out; other ways to the network stay.
    options = "-std=c++17", "-arch=sm_90", "-DNCCL_GIN_GDAKI_ENABLE=0", f"-I{include}", "-cubin"
    made = tmp_path / "post.cubin"
    command = [nvcc, *options, str(SOURCE), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert made.stat().st_size
