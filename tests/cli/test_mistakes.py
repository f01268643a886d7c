"""What a user gets wrong on the command line: named, with an exit code, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fuscoc
from fuscoc.planning import command
from fuscoc_runtime.topology import MAX_RANKS
from tests.altered import digest_anew

MOE = Path("examples/moe.fsc").resolve()
TWO = MOE.read_text() + MOE.read_text().replace("shuffle moe", "shuffle other")
SMALL = {"hidden": 16, "experts": 8, "topk": 2}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuscoc.compile(MOE, tmp_path_factory.mktemp("built") / "art", **SMALL)


@pytest.fixture
def here(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with specs, an artifact and routings, to stand in."""
    shutil.copytree(built, tmp_path / "art")
    shutil.copy(MOE, tmp_path)
    (tmp_path / "two.fsc").write_text(TWO)
    (tmp_path / "words.npy").write_text("words")
    np.save(tmp_path / "reals.npy", np.zeros((8, 4, 2)))
    np.save(tmp_path / "texts.npy", np.full((8, 4, 2), "a"))
    np.save(tmp_path / "long.npy", np.zeros((8, 4, 2), np.longdouble))
    np.save(tmp_path / "one.npy", np.int64(1))
    np.savez(tmp_path / "other.npz", header="{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("plan two.fsc", 1, "two.fsc: no shuffle was named; it holds moe, other"),
        ("explain two.fsc --shuffle x", 1, "two.fsc: there is no shuffle `x`; it holds moe, other"),
        ("run two.fsc --shuffle x", 1, "two.fsc: there is no shuffle `x`; it holds moe, other"),
        ("test two.fsc --shuffle x", 1, "the spec holds moe, other: there is no `x`"),
        ("plan art -D hidden=8", 2, "-D: needs a .fsc file, not an artifact"),
        ("explain art -D hidden=8", 2, "-D: needs a .fsc file, not an artifact"),
        ("run art -D hidden=8", 2, "-D: needs a .fsc file, not an artifact"),
        (f"check moe.fsc -D hidden={'9' * 5000}", 2, "`hidden` is given a number of 5000 digits"),
        ("check moe.fsc -D hidden=١٢", 2, "is not NAME=VALUE with a whole number"),
        ("check moe.fsc --topology 9999x9999", 2, f"are more than {MAX_RANKS} ranks"),
        ("plan moe.fsc --nodes 9999 --gpus-per-node 9999", 1, f"are more than {MAX_RANKS} ranks"),
        ("run art --seed 99999999999", 2, "Invalid value for '--seed'"),
        ("plan art --tokens 4 --save no/plan.npz", 1, "error: no: no such file or directory"),
        ("plan art --tokens 4 --html no/plan.html", 1, "error: no: no such file or directory"),
        ("compile moe.fsc --emit ast -o new", 2, "--emit writes no artifact"),
        ("plan art --routing words.npy", 1, "words.npy is no .npy file of plain arrays"),
        ("plan art --routing texts.npy", 1, "texts.npy: `topk_idx` holds <U1 and no numbers"),
        ("plan art --routing long.npy", 1, "`topk_idx` holds float128 and no numbers"),
        ("plan art --routing one.npy", 1, "`topk_idx` has 0 rows, one for each of 8 ranks"),
        ("plan art --routing reals.npy", 1, "`topk_idx` holds float64, the spec says i64"),
        ("test moe.fsc --replay other.npz", 1, "it is no file of `fuscoc test`"),
        ("test moe.fsc --topology 1x3", 1, "256 keys, which 3 ranks (1x3) do not divide"),
        ("test moe.fsc --topology 2by4", 2, "`2by4` is not a topology"),
        ("test moe.fsc --artifact none", 1, "none: not an artifact"),
        ("test moe.fsc --artifact art", 1, "art: was compiled with experts=8 hidden=16 topk=2; to"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(fuscoc, here: Path, line: str, code: int, said: str) -> None:
    before = sorted(here.rglob("*"))
    found, out, err = fuscoc(*line.split())
    assert found == code
    plain = " ".join(err.replace("│", " ").split())
    assert said in plain
    assert "Traceback" not in err + out
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    "break_it",
    [
        lambda art: (art / "manifest.json").write_text('{"schema": 1, "comp'),
        lambda art: (art / "manifest.json").write_bytes(b"\x84\xff"),
        lambda art: (art / "manifest.json").write_text("[1, 2]"),
        lambda art: (art / "manifest.json").unlink(),
        lambda art: (art / "kernels" / "moe.py").write_text("import os"),
        lambda art: (art / "kernels" / "moe.cu").unlink(),
        lambda art: (art / "SHA256SUMS").unlink(),
        lambda art: with_schema(art, 99),
    ],
    ids=["cut off", "bytes", "a list", "none", "altered", "a file missing", "no digests", "newer"],
)
def test_a_broken_artifact_is_named(fuscoc, here: Path, break_it: Callable[[Path], None]) -> None:
    break_it(here / "art")
    for line in ("run art --ranks 1", "plan art", "explain art", "test moe.fsc --artifact art"):
        code, out, err = fuscoc(*line.split())
        assert (code, out) == (1, "")
        assert err.startswith("error: [FSR001] art")


def with_schema(art: Path, number: int) -> None:
    manifest = json.loads((art / "manifest.json").read_text())
    (art / "manifest.json").write_text(json.dumps({**manifest, "schema": number}))
    digest_anew(art)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x: can't allocate memory: 9 PB")])
def test_too_little_memory(fuscoc, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "make_plan", refuse)
    code, _, err = fuscoc("plan", MOE)
    assert code == 1
    assert err.strip().endswith("error: this machine has not enough memory for that")


@pytest.mark.parametrize("option", ["--save", "--html"])
def test_a_full_disk(fuscoc, built: Path, option: str) -> None:
    """``/dev/full`` is written to, not replaced by a file."""
    if option == "--html":
        for needed in ("plotly", "jinja2"):
            pytest.importorskip(needed, reason="pages need the extra `plot`")
    code, _, err = fuscoc("plan", built, "--tokens", 4, option, "/dev/full")
    assert code == 1
    assert err.strip().endswith("error: /dev/full: no space left on device")
    assert Path("/dev/full").is_char_device()
