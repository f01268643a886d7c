"""Commands by name: which one is loaded, what is said of one that there is not, and completion."""

from __future__ import annotations

import subprocess
import sys
from inspect import cleandoc
from textwrap import indent

import pytest
from click.shell_completion import ShellComplete

from fuscoc.cli import COMMANDS, app, load_command


def test_only_the_command_that_runs_is_loaded() -> None:
    script = (
        "import sys; from fuscoc.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('fuscoc.commands.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "explain-error", "FSC040"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].split() == [
        "fuscoc.commands.explaining",
        "fuscoc.commands.options",
    ]


def test_a_command_that_there_is_not(fuscoc) -> None:
    code, out, err = fuscoc("chek")
    assert (code, out) == (2, "")
    assert "No such command 'chek'. Did you mean 'check'?" in err
    code, _, err = fuscoc("shuffle")
    assert code == 2
    assert "Did you mean" not in err


def test_help_says_what_each_command_does(fuscoc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = fuscoc("--help")
    words = " ".join(out.split())
    assert code == 0
    for name in COMMANDS:
        summary, _, _ = (load_command(name).help or "").partition("\n")
        assert f"{name} {summary}" in words


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_the_lines_of_examples(
    fuscoc, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, _, end = cleandoc(load_command(name).help or "").partition("\b\n")
    monkeypatch.setenv("COLUMNS", "60")
    assert f"{indent(end, '  ')}\n" in fuscoc(name, "--help")[1]


def test_nothing_asked_for_is_answered_by_help(fuscoc) -> None:
    code, _, err = fuscoc()
    assert code == 2
    assert "Usage: " in err


def test_choices_are_written_as_their_values(fuscoc) -> None:
    _, out, _ = fuscoc("plan", "--help")
    assert "[pairwise|spread-out|fast|auto]" in out
    assert "[default: auto]" in out
    code, _, err = fuscoc("plan", "examples/moe.fsc", "--schedule", "SPREAD_OUT")
    assert code == 2
    assert "'SPREAD_OUT' is not one of 'pairwise', 'spread-out', 'fast', 'auto'" in err


def test_nan_is_in_no_range(fuscoc) -> None:
    code, _, err = fuscoc("plan", "examples/moe.fsc", "--nic", "nan")
    assert code == 2
    assert "nan is no number" in err


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        ([], "ch", ["check"]),
        (["plan"], "--sch", ["--schedule"]),
        (["compile", "--emit"], "k", ["kernels"]),
    ],
)
def test_completion(words: list[str], begun: str, found: list[str]) -> None:
    completion = ShellComplete(app, {}, "fuscoc", "_FUSCOC_COMPLETE")
    assert [each.value for each in completion.get_completions(words, begun)] == found
