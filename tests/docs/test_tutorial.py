"""The tutorial, done by somebody who copies what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.docs.pages import ROOT, blocks, command_lines

PAGE = "docs/tutorial.md"
COMMANDS = command_lines(PAGE)
QUICK = ("check", "explain", "compile")


@pytest.fixture
def spec(files: Path) -> Path:
    """The reader's file, with the mistake that the page begins with."""
    [text] = blocks(PAGE, "fsc")
    path = files / "reshard.fsc"
    path.write_text(text)
    return path


def correct(spec: Path) -> None:
    """The line of the page in the place of the one that is wrong."""
    [right] = [text for text in blocks(PAGE) if text.startswith("  dispatch")]
    lines = spec.read_text().splitlines(keepends=True)
    [at] = [number for number, line in enumerate(lines) if line.startswith("  dispatch")]
    lines[at] = right
    spec.write_text("".join(lines))


def test_the_mistake(fuscoc: Run, spec: Path) -> None:
    [shown] = [text for text in blocks(PAGE) if text.startswith("$ fuscoc check")]
    command, _, message = shown.partition("\n")
    code, _, err = fuscoc(*command.split()[2:])
    assert code == 1
    assert err.startswith(message)


def test_commands_that_start_no_ranks(fuscoc: Run, spec: Path) -> None:
    correct(spec)
    quick = [words for words in COMMANDS[1:] if words[0] in QUICK]
    assert [words[0] for words in quick] == list(QUICK)
    out = {words[0]: (code, out) for words in quick for code, out, _ in [fuscoc(*words)]}
    assert {code for code, _ in out.values()} == {0}
    assert "once" in out["explain"][1]
    assert (spec.parent / "build" / "reshard" / "manifest.json").exists()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_commands_that_start_ranks(fuscoc: Run, spec: Path) -> None:
    correct(spec)
    slow = [words for words in COMMANDS if words[0] not in QUICK]
    assert [words[0] for words in slow] == ["run", "test"]
    for words in slow:
        code, out, err = fuscoc(*words)
        assert code == 0, err
        assert words[0] == "test" or out.splitlines()[-1] == "reshard: verified"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_code(fuscoc: Run, spec: Path) -> None:
    """It asserts by itself that it gives what DTensor gives."""
    correct(spec)
    [words] = [words for words in COMMANDS if words[0] == "compile"]
    assert fuscoc(*words)[0] == 0
    [code] = blocks(PAGE, "python")
    (spec.parent / "reshard.py").write_text(code)
    [command] = [text for text in blocks(PAGE) if text.startswith("torchrun")]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]],
        capture_output=True,
        text=True,
        cwd=spec.parent,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["fuscoc", "torch"]
