"""compute-sanitizer over the CUDA kernels: nothing is found in them, and planted faults are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fuscoc_runtime.kernels.cuda import INCLUDE
from fuscoc_runtime.manifest.artifact import load_artifact
from tests.cuda.dense_cases import compile_cases
from tests.cuda.sanitizer_run import FAULTS, PIECE_FAULTS, plant
from tests.gpus import torchrun

# Tensors lie next to each other in PyTorch's own cache, where memcheck sees no end of them.
ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
CASES = (
    "ulysses",
    "ulysses_in_parts",
    "fft_transpose",
    "redistribute",
    "redistribute_long_rows",  # which are carried, by kernels for few CTAs
    "vit_patches",
    "kv_long_pages",
    "kv_short_runs",
    "boxes",
    "sums",
)
LENT = ("ulysses", "fft_transpose", "redistribute", "redistribute_long_rows", "kv_long_pages")
# Racecheck does not see what a warp's one lane and ``__syncwarp`` order: all lanes come to gates.
AT_GATES = "--constant", "kGateLanes", "32"
SUMMARIES = {
    "memcheck": r"ERROR SUMMARY: (\d+) errors?$",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazards? ",
}


def problems(
    tool: str,
    num_ranks: int,
    *options: str | Path,
    script: str = "tests/cuda/sanitizer_run.py",
    kernels: str = "moe_",
) -> int:
    """How many the tool reports of all ranks; its reports are printed."""
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("no compute-sanitizer: install the CUDA toolkit")
    under = ["compute-sanitizer", "--tool", tool, "--kernel-name", f"kns={kernels}"]
    if tool == "memcheck":  # PyTorch and NCCL try calls that may fail
        under += ["--report-api-errors", "no"]
    environment = None if "--lends" in options else ENVIRONMENT  # which are of PyTorch's own
    printed = torchrun(num_ranks, script, *options, under=under, environment=environment)
    counts = re.findall(SUMMARIES[tool], printed, re.MULTILINE)
    assert len(counts) == num_ranks, printed
    print(printed)
    return sum(map(int, counts))


@pytest.mark.parametrize("name", FAULTS | PIECE_FAULTS)
def test_faults_are_planted(name: str, tmp_path: Path) -> None:
    """Also without a GPU: where the headers have changed, the fault has to go elsewhere."""
    fault = (FAULTS | PIECE_FAULTS)[name]
    changed = plant(fault, tmp_path) / fault.header
    assert changed.read_text() != (INCLUDE / fault.header).read_text()


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("tool", SUMMARIES)
def test_clean(tool: str, num_ranks: int) -> None:
    assert problems(tool, num_ranks) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tool", SUMMARIES)
def test_given_slots_are_clean(tool: str, case: str, num_ranks: int, tmp_path: Path) -> None:
    compile_cases(tmp_path, only=case)
    options: tuple[str | Path, ...] = tmp_path, "--quick", "--cases", case
    if tool == "racecheck":
        options += AT_GATES
    kernels = f"{load_artifact(tmp_path / case).shuffle(None).name}_"
    script = "tests/cuda/dense_run.py"
    assert problems(tool, num_ranks, *options, script=script, kernels=kernels) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("case", LENT)
@pytest.mark.parametrize("tool", SUMMARIES)
def test_lent_results_are_clean(tool: str, case: str, tmp_path: Path) -> None:
    compile_cases(tmp_path, only=case)
    options = (tmp_path, "--quick", "--lends", "--cases", case)
    kernels = f"{load_artifact(tmp_path / case).shuffle(None).name}_"
    assert problems(tool, 2, *options, script="tests/cuda/dense_run.py", kernels=kernels) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_tiles_have_no_races(num_ranks: int, tmp_path: Path) -> None:
    """Of small pictures, which have tiles only where more of these are allowed. Memcheck would
    report lines of 16 bytes, of which bulk copies read all, at the end of a source that ends within
    one."""
    case = "vit_strips_of_short_runs"
    compile_cases(tmp_path, only=case)
    constants = {"kPartsOfTile": 16, "kFewItemLines": 16}
    changed = [each for pair in constants.items() for each in ("--constant", *map(str, pair))]
    changed += AT_GATES
    options = (tmp_path, "--quick", "--cases", case, *changed)
    script = "tests/cuda/dense_run.py"
    assert problems("racecheck", num_ranks, *options, script=script, kernels="vit_patches_") == 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tool", "fault"), [("racecheck", "race"), ("racecheck", "team race"), ("memcheck", "write")]
)
def test_planted_faults_are_found(tool: str, fault: str) -> None:
    assert problems(tool, 1, "--plant", fault) > 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tool", "fault"), [("memcheck", "read of pieces"), ("racecheck", "race of pieces")]
)
def test_planted_faults_of_pieces_are_found(tool: str, fault: str, tmp_path: Path) -> None:
    case = "ulysses_in_parts"
    compile_cases(tmp_path, only=case)
    options = (tmp_path, "--cases", case, "--plant", fault)
    script = "tests/cuda/dense_run.py"
    assert problems(tool, 1, *options, script=script, kernels="ulysses_") > 0
