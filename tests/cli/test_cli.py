"""The command line as a user meets it: output, exit codes, and what is left on the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuscoc.pipeline import PASS_NAMES
from tests.specs import repeating

MOE = Path("examples/moe.fsc")
VIT = Path("examples/vit_patches.fsc")
SMALL = ("-D", "hidden=64", "-D", "experts=8", "-D", "topk=2")


@pytest.fixture
def bad_spec(tmp_path: Path) -> Path:
    path = tmp_path / "bad.fsc"
    path.write_text(MOE.read_text().replace("by_token[t]           ->", "by_tokn[t] ->"))
    return path


def test_check_accepts_the_examples(fuscoc) -> None:
    code, out, err = fuscoc("check", MOE, VIT)
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{MOE}: ok (moe)", f"{VIT}: ok (vit_patches)"]


def test_check_shows_the_place_and_the_fix_and_goes_on(fuscoc, bad_spec: Path) -> None:
    code, out, err = fuscoc("check", bad_spec, VIT)
    assert code == 1
    assert out == f"{VIT}: ok (vit_patches)\n"
    assert f"{bad_spec}:18:12" in err
    assert err.count("error[") == 1
    assert "did you mean `by_token`?" in err


def test_compile_writes_an_artifact_and_replaces_it(fuscoc, tmp_path: Path) -> None:
    out = tmp_path / "moe"
    assert fuscoc("compile", MOE, "-o", out)[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert out / "manifest.json" in before
    assert fuscoc("compile", MOE, "-o", out)[0] == 0
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert [path.name for path in tmp_path.iterdir()] == ["moe"]


def test_compile_of_a_bad_spec_writes_nothing(fuscoc, bad_spec: Path, tmp_path: Path) -> None:
    code, out, err = fuscoc("compile", bad_spec, "-o", tmp_path / "moe")
    assert (code, out) == (1, "")
    assert "error[FSC011]" in err
    assert not (tmp_path / "moe").exists()


def test_compile_leaves_a_foreign_directory_alone(fuscoc, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear diary")
    code, _, err = fuscoc("compile", MOE, "-o", tmp_path)
    assert code == 1
    assert "is not an artifact" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_defines_reach_the_manifest(fuscoc) -> None:
    code, out, _ = fuscoc("compile", MOE, "--emit", "manifest", *SMALL)
    assert code == 0
    assert json.loads(out)["shuffles"][0]["declared"]["constants"] == {
        "hidden": 64,
        "experts": 8,
        "topk": 2,
    }


@pytest.mark.parametrize("define", ["hidden", "hidden=", "hidden=x", "=3", "hidden=-1"])
def test_a_malformed_define_is_refused(fuscoc, define: str) -> None:
    code, _, err = fuscoc("compile", MOE, "-D", define)
    assert code == 2
    assert "NAME=VALUE" in err


@pytest.mark.parametrize(
    ("emit", "wanted"),
    [
        ("ast", "Dispatch"),
        ("ir", "fsc.kernel"),
        ("kernels", "@triton.jit"),
        ("manifest", '"schema"'),
    ],
)
def test_emit_prints_a_stage(fuscoc, emit: str, wanted: str) -> None:
    code, out, _ = fuscoc("compile", VIT, "--emit", emit)
    assert code == 0
    assert wanted in out


def test_emit_after_a_pass(fuscoc) -> None:
    early = fuscoc("compile", MOE, "--emit", "ir", "--after", "build-hierarchy")[1]
    assert "fsc.hop" in early
    assert "fsc.kernel" not in early
    code, _, err = fuscoc("compile", MOE, "--emit", "ir", "--after", "no-such-pass")
    assert code == 2
    assert "form-slices" in err


def test_kernels_after_a_pass(fuscoc) -> None:
    """As operations: those of one node, then, behind the last pass, those of single steps, too."""
    code, out, _ = fuscoc("compile", MOE, "--emit", "kernels", "--after", "choose-tiles")
    assert code == 0
    assert "fsc.node_copy" in out
    assert "fsc.cuda_tile" in out
    assert "fsc.path" not in out
    assert "fsc.kernel" not in out
    assert (
        "fsc.kernel"
        in fuscoc("compile", MOE, "--emit", "kernels", "--after", "specialise-kernels")[1]
    )
    code, _, err = fuscoc("compile", MOE, "--emit", "kernels", "--after", "build-hierarchy")
    assert code == 2
    assert "fuse-node" in err


def test_kernels_that_are_none(fuscoc, tmp_path: Path) -> None:
    spec = tmp_path / "repeating.fsc"
    spec.write_text(repeating().source_file.text, encoding="utf-8")
    code, out, _ = fuscoc("compile", spec, "--emit", "kernels", "--after", "fuse-node")
    assert (code, out) == (0, "// moe: no kernels that work inside one node alone\n")


def test_every_pass_is_printed_in_order(fuscoc) -> None:
    _, out, _ = fuscoc("compile", MOE, "--emit", "ir", "--print-between-passes")
    printed = [line.removeprefix("// after ") for line in out.splitlines() if "// after" in line]
    assert printed == list(PASS_NAMES)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(("spec", "options"), [(MOE, SMALL), (VIT, ())])
def test_run_verifies_a_spec(fuscoc, spec: Path, options: tuple[str, ...]) -> None:
    code, out, err = fuscoc("run", spec, "--ranks", "2", "--tokens", "4", *options)
    assert code == 0, err
    assert out.endswith(f"{spec.stem}: verified\n")


def test_run_of_an_altered_artifact_names_the_file(fuscoc, tmp_path: Path) -> None:
    out = tmp_path / "vit"
    fuscoc("compile", VIT, "-o", out)
    kernels = out / "kernels" / "vit_patches.py"
    kernels.write_text(kernels.read_text() + "\n# touched\n")
    code, _, err = fuscoc("run", out, "--ranks", "1")
    assert code == 1
    assert "kernels/vit_patches.py" in err


def test_text_that_is_not_utf8_is_pointed_at(fuscoc, tmp_path: Path) -> None:
    path = tmp_path / "latin.fsc"
    path.write_bytes(b"shuffle \xe9t\xe9 {\n}\n")
    code, out, err = fuscoc("check", path, MOE)
    assert code == 1
    assert f"{path}:1:9" in err
    assert out == f"{MOE}: ok (moe)\n"


def test_a_byte_order_mark_is_no_text(fuscoc, tmp_path: Path) -> None:
    path = tmp_path / "marked.fsc"
    path.write_text(MOE.read_text(), encoding="utf-8-sig")
    assert fuscoc("check", path)[0] == 0


def test_compile_shows_warnings(fuscoc, tmp_path: Path) -> None:
    path = tmp_path / "unused.fsc"
    path.write_text(MOE.read_text().replace("topk = 8", "topk = 8, spare = 3"))
    code, _, err = fuscoc("compile", path, "-o", tmp_path / "out")
    assert code == 0
    assert "warning[FSC090]" in err


def test_an_impossible_output_is_an_error_without_a_traceback(fuscoc, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = fuscoc("compile", MOE, "-o", tmp_path / "file" / "below")
    assert code == 1
    assert err.startswith("error: ")


def test_version(fuscoc) -> None:
    assert fuscoc("--version")[1] == "fuscoc 0.1.0\n"


@pytest.mark.parametrize("loaded", ["triton", "fuscoc.dialect, islpy"])
def test_the_end_is_silent(loaded: str) -> None:
    """Bindings may report what is not freed; a command looks for no garbage at its end."""
    code = f"import {loaded}; from fuscoc.cli import main; main()"
    command = [sys.executable, "-c", code, "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("fuscoc ")
    assert ran.stderr == ""


def test_compile_plans_static_shuffles(fuscoc, tmp_path: Path) -> None:
    small = ("-D", "tokens=16", "-D", "block=2", "-D", "width=4")
    spec, out = Path("examples/ulysses.fsc"), tmp_path / "ulysses"
    code, _, err = fuscoc(
        "compile", spec, "-o", out, *small, "--topology", "1x2", "--topology", "2x2"
    )
    assert (code, err) == (0, "")
    manifest = json.loads((out / "manifest.json").read_text())
    baked = manifest["shuffles"][0]["baked"]
    assert baked == {each: f"plans/ulysses.{each}.npz" for each in ("1x2", "2x2")}
    assert all((out / path).is_file() for path in baked.values())

    code, _, err = fuscoc("compile", spec, "-o", out, *small, "--topology", "1x3")
    assert code == 1
    assert "error[FSC057]: `ulysses` cannot be planned for 1x3" in err
    assert fuscoc("compile", spec, "-o", out, "--topology", "two")[0] == 2
    code, _, err = fuscoc("compile", MOE, "-o", out, "--topology", "1x2")
    assert code == 1
    assert "`topk_idx` is only known when the shuffle runs" in err
    assert json.loads((out / "manifest.json").read_text()) == manifest


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("spec", "ranks", "nodes"),
    [
        (("ulysses", "-D", "tokens=16", "-D", "block=2", "-D", "width=4"), 4, 2),
        (("redistribute", "-D", "rows=32", "-D", "columns=6"), 2, 1),
    ],
    ids=["ulysses", "redistribute"],
)
def test_run_verifies_static_examples(
    fuscoc, spec: tuple[str, ...], ranks: int, nodes: int
) -> None:
    path, options = f"examples/{spec[0]}.fsc", ("--ranks", ranks, "--nodes", nodes)
    code, out, err = fuscoc("run", path, *spec[1:], *options)
    assert code == 0, err
    assert out.endswith(f"{spec[0]}: verified\n")


def test_what_cannot_be_tested_is_said(fuscoc, tmp_path: Path) -> None:
    spec, junk = tmp_path / "rows.fsc", tmp_path / "junk.npz"
    junk.write_bytes(b"junk")
    spec.write_text(
        "shuffle rows {\n  index t : 4\n  segment row { x : f32 }\n  layout a[t] of row\n"
        "  layout b[u] of row dense(4)\n  dispatch a[t] -> b[t * t / 4] on 0\n}\n"
    )
    code, _, err = fuscoc("test", spec, "--examples", 1)
    assert code == 1
    assert "`rows` on 1x1 goes to slot 0 of rank 0, which is taken" in err
    assert "Traceback" not in err
    code, _, err = fuscoc("test", spec, "--replay", junk)
    assert code == 1
    assert f"error: {junk} holds no routing of `rows`" in err
