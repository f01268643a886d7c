"""The mixture-of-experts example: its layer against f32 without a shuffle, and its training."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import fuscoc
from examples.moe_layer import FUSCOC, PLAIN, ROUNDED, MoeLayer, Sizes, differences, report
from tests.engine.pool import Pool
from tests.examples import layer_work
from tests.forked import run_program
from tests.gpus import torchrun

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"hidden": 256, "experts": 16, "topk": 4}
NUM_COMPARED = 5  # the result, and the gradients of ``moe_reference.Results``
PRINTED = re.compile(r"^(the .*): (\S+), (\S+)$", re.MULTILINE)


def test_layer_and_its_gradients(tmp_path: Path) -> None:
    artifact = fuscoc.compile(EXAMPLES / "moe_f32.fsc", tmp_path / "moe")
    processes = Pool(2)
    try:
        assert processes.run(layer_work.wrong, 2, str(artifact), 1.0) == [[], []]
        # The comparison compares: nothing is right where something else is expected.
        for said in processes.run(layer_work.wrong, 2, str(artifact), 1 + 4e-6):
            assert len(said) == 2 * NUM_COMPARED, said
    finally:
        processes.close()


def test_training_is_that_of_plain_torch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    options = ("--ranks", "2", "--steps", "4", "--plot", "loss.png")
    done = run_program(EXAMPLES / "moe_layer.py", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # How far fuscoc is off, if at all, depends on the processor; in f32 nothing else is rounded.
    found = {
        name: (float(ours), float(plain)) for name, ours, plain in PRINTED.findall(done.stdout)
    }
    parameters = [name for name, _ in MoeLayer(Sizes(2, 2, 1, 2), 2, None).named_parameters()]
    assert list(found) == ["the loss", *(f"the gradient of {name}" for name in parameters)]
    for name, (ours, plain) in found.items():
        assert ours < 1e-4, name
        assert plain == 0, name
    assert (tmp_path / "loss.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ({"the loss": (9e-5, 0.0), "the gradient of down": (9e-6, 0.0)}, None),
        ({"the loss": (2e-2, 1e-2), "the gradient of down": (9e-3, 4e-3)}, None),
        ({"the loss": (2e-2, 5e-3)}, "the loss differs by 2.0e-02, more than 1.5e-02"),
        ({"the loss": (0.0, 0.0), "the gradient of down": (2e-5, 0.0)}, "gradient of down differs"),
        ({"the loss": (math.nan, 1e-2)}, "the loss differs by nan"),
        ({"the loss": (1e-2, math.nan)}, "the loss differs"),
    ],
)
def test_what_may_differ(found: dict[str, tuple[float, float]], refused: str | None) -> None:
    outcome: Any = pytest.raises(SystemExit, match=refused) if refused else nullcontext()
    with outcome:
        report(found)


def test_the_largest_differences() -> None:
    losses = {PLAIN: [2.0, 1.0], FUSCOC: [2.5, 1.25], ROUNDED: [2.0, math.nan]}
    gradients = {
        FUSCOC: [torch.tensor([1e-3, 2e-3]), torch.tensor([3e-3, 1e-3])],
        ROUNDED: [torch.tensor([0.0, 1.0]), torch.tensor([math.nan, 0.0])],
    }
    found = differences(losses, gradients, ["up", "down"])
    assert list(found) == ["the loss", "the gradient of up", "the gradient of down"]
    assert [ours for ours, _ in found.values()] == pytest.approx([0.5, 3e-3, 2e-3])
    rounding = [each for _, each in found.values()]
    assert rounding == pytest.approx([math.nan, math.nan, 1.0], nan_ok=True)


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_training_in_bf16_on_gpus(num_ranks: int, tmp_path: Path) -> None:
    """300 steps; the example itself compares every loss and gradient with plain torch's."""
    artifact = fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "moe", **SIZES)
    sizes = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
    printed = torchrun(
        num_ranks, "examples/moe_layer.py", "--device", "cuda", "--dtype", "bf16", *sizes,
        "--tokens", "256", "--artifact", artifact,
    )  # fmt: skip
    assert "step  299" in printed
    assert "the gradient of router.weight" in printed
