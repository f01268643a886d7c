"""``fuscoc check`` and ``fuscoc explain-error``: formats, fixes, colours, topologies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

MOE, VIT, ULYSSES = (Path(f"examples/{name}.fsc") for name in ("moe", "vit_patches", "ulysses"))


@pytest.fixture
def misspelt(tmp_path: Path) -> Path:
    """A name and a keyword that are safe to correct."""
    path = tmp_path / "misspelt.fsc"
    text = MOE.read_text().replace("dispatch by_token", "dispatch by_tokn")
    path.write_text(text.replace("index k", "indx k"))
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A missing placement, for which there is a fix that is not safe."""
    path = tmp_path / "bad.fsc"
    path.write_text(re.sub(r"place +e[^\n]*", "", MOE.read_text()))
    return path


def test_fix_corrects_what_is_safe(fuscoc: Run, misspelt: Path, bad: Path) -> None:
    before = bad.stat().st_mtime_ns, bad.read_text()
    misspelt.chmod(0o640)
    code, out, err = fuscoc("check", misspelt, bad, "--fix")
    assert code == 1
    assert misspelt.read_text() == MOE.read_text()
    assert misspelt.stat().st_mode & 0o777 == 0o640
    assert out == f"{misspelt}: ok (moe)\n"
    assert f"fixed {misspelt}:6:3: FSC001: `indx` -> `index`\n" in err
    assert f"fixed {misspelt}:18:12: FSC011: `by_tokn` -> `by_token`\n" in err
    assert "error[FSC040]" in err
    assert (bad.stat().st_mtime_ns, bad.read_text()) == before


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs `patch`")
def test_diff_shows_what_fix_would_do(fuscoc: Run, misspelt: Path) -> None:
    before = misspelt.read_text()
    code, out, err = fuscoc("check", misspelt, "--diff")
    assert (code, err) == (1, "")
    assert misspelt.read_text() == before
    assert "-  indx k : topk\n+  index k : topk\n" in out
    patched = subprocess.run(
        ["patch", "-s", misspelt], input=out, text=True, capture_output=True, check=False
    )
    assert (patched.returncode, patched.stdout) == (0, "")
    assert misspelt.read_text() == MOE.read_text()
    assert fuscoc("check", misspelt, "--diff")[:2] == (0, f"{misspelt}: ok (moe)\n")


def test_fix_refuses_a_file_that_is_not_utf8(fuscoc: Run, tmp_path: Path) -> None:
    path = tmp_path / "latin.fsc"
    path.write_bytes(b"shuffle a {\n  indx t : tokens // \xe9\n}\n")
    before = path.read_bytes()
    code, _, err = fuscoc("check", path, "--fix")
    assert code == 1
    assert "is not UTF-8" in err
    assert path.read_bytes() == before


def test_safe_fixes_are_offered(fuscoc: Run, misspelt: Path, bad: Path) -> None:
    assert "`fuscoc check --fix`" in fuscoc("check", misspelt)[2]
    assert "--fix" not in fuscoc("check", bad)[2]


def test_json_is_one_document_about_all_files(fuscoc: Run, misspelt: Path, bad: Path) -> None:
    code, out, err = fuscoc("check", VIT, misspelt, bad, "--format", "json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert [each["ok"] for each in document["files"]] == [True, False, False]
    assert document["files"][0] == {"path": str(VIT), "ok": True, "shuffles": ["vit_patches"]}
    assert [each["code"] for each in document["diagnostics"]] == [
        "FSC001",
        "FSC011",
        "FSC040",
    ]
    assert fuscoc("check", VIT, "--format", "json")[0] == 0


def test_sarif(fuscoc: Run, bad: Path) -> None:
    code, out, _ = fuscoc("check", bad, "--format", "sarif")
    assert code == 1
    (run,) = json.loads(out)["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["FSC040"]


@pytest.mark.parametrize("good", [True, False])
def test_compile_writes_documents_too(fuscoc: Run, bad: Path, tmp_path: Path, good: bool) -> None:
    spec = tmp_path / "unused.fsc"
    spec.write_text(MOE.read_text().replace("topk = 8", "topk = 8, spare = 3"))
    out_dir = tmp_path / "out"
    code, out, err = fuscoc("compile", spec if good else bad, "-o", out_dir, "--format", "json")
    document = json.loads(out)
    assert (code, err, out_dir.exists()) == (0 if good else 1, "", good)
    assert [each["code"] for each in document["diagnostics"]] == ["FSC090" if good else "FSC040"]
    assert document["files"][0]["ok"] is good
    assert document["files"][0]["shuffles"] == (["moe"] if good else [])


def test_a_stage_and_a_document_do_not_go_together(fuscoc: Run) -> None:
    document = ("--format", "json")
    assert fuscoc("compile", MOE, "--emit", "ast", *document)[0] == 2
    assert fuscoc("compile", MOE, "--print-between-passes", *document)[0] == 2
    assert fuscoc("check", MOE, "--diff", *document)[0] == 2


def test_colour(fuscoc: Run, bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\033[" not in fuscoc("check", bad)[2]
    assert "\033[1;31merror[FSC040]" in fuscoc("check", bad, "--color", "always")[2]
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    assert "\033[" in fuscoc("check", bad)[2]
    assert "\033[" not in fuscoc("check", bad, "--color", "never")[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in fuscoc("check", bad)[2]
    assert "\033[" in fuscoc("check", bad, "--color", "always")[2]


def test_topologies_are_checked(fuscoc: Run) -> None:
    small = ("-D", "tokens=16", "-D", "block=2", "-D", "width=4")
    assert fuscoc("check", MOE, "--topology", "2x8", "--topology", "1x4")[0] == 0
    code, _, err = fuscoc("check", MOE, "--topology", "2x3", "--topology", "1x7")
    assert code == 1
    assert err.count("error[FSC046]") == 1
    assert "256 keys, which 6 ranks (2x3) and 7 ranks (1x7) do not divide" in err
    assert "by cyclic" in err
    assert fuscoc("check", ULYSSES, *small, "--topology", "2x2")[0] == 0
    code, _, err = fuscoc("check", ULYSSES, *small, "--topology", "1x3")
    assert code == 1
    assert "error[FSC057]: `ulysses` cannot be planned for 1x3" in err
    assert fuscoc("check", MOE, "--topology", "two")[0] == 2


def test_explain_error(fuscoc: Run) -> None:
    code, out, err = fuscoc("explain-error", "fsc40")
    assert (code, err) == (0, "")
    assert out.startswith("# FSC040: no placement\n")
    assert out.count("```fsc\n") == 2
    assert "routing value" in fuscoc("explain-error", "FSR010")[1]
    listed = fuscoc("explain-error")[1].splitlines()
    assert "FSC040  no placement" in listed
    code, _, err = fuscoc("explain-error", "FSX040")
    assert code == 2
    assert "did you mean FSC040?" in err
    coloured = fuscoc("explain-error", "FSC040", "--color", "always")[1]
    assert "\033[" in coloured
    assert "no placement" in coloured


@pytest.mark.parametrize("command", [("check", MOE), ("explain-error", "FSC040")])
def test_quick_commands_load_nothing_else(command: tuple[str | Path, ...]) -> None:
    script = (
        "import sys; from fuscoc.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'torch_mlir', 'triton', 'numpy', 'hypothesis', 'islpy'}\n"
        "others = {'fuscoc.capabilities', 'fuscoc.codegen', 'rich'}\n"
        "print((heavy | others) & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, command)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "set()"
