"""The example of normalised patches, which compares them with torch's arithmetic itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fuscoc
from tests.forked import run_program
from tests.gpus import ROOT, torchrun

EXAMPLE = ROOT / "examples" / "vit_embed.py"


def test_on_cpus(tmp_path: Path) -> None:
    done = run_program(EXAMPLE, "--ranks", "2", "--pictures", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("patches, tokens [") == 2
    assert done.stdout.endswith("verified: all patches are normalised as torch does it\n")


def test_what_is_not_normalised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    from examples.vit_embed import by_torch, verify
    from examples.vit_patches import P, pack

    picture = torch.arange(3 * P * P).remainder(256).to(torch.uint8).view(3, P, P)
    right, packing = by_torch(picture).bfloat16(), pack([[(1, 1)]])
    verify(right, packing, 0, [[picture]])
    with pytest.raises(AssertionError, match="not close"):
        verify(right + 0.1, packing, 0, [[picture]])


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_on_gpus(num_ranks: int, tmp_path: Path) -> None:
    spec = ROOT / "examples" / "vit_patches_normalised.fsc"
    artifact = fuscoc.compile(spec, tmp_path / "vit")
    printed = torchrun(num_ranks, str(EXAMPLE), "--device", "cuda", "--artifact", artifact)
    assert "verified: all patches are normalised as torch does it" in printed
