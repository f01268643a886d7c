"""``--help`` of every command: it says how to use it, and what it says exists."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys

import pytest

import fuscoc_runtime
from fuscoc.cli import COMMANDS, load_command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_exit_codes_and_gives_examples(name: str) -> None:
    text = load_command(name).help or ""
    summary, *_ = text.split("\n\n")
    assert "\n" not in summary.strip()
    assert "Exit code: 0" in text
    assert examples(text)


def examples(text: str) -> list[list[str]]:
    """The command lines of a help text, in words."""
    _, _, end = inspect.cleandoc(text).partition("Examples")
    return [
        shlex.split(line, comments=True)
        for line in re.findall(r"^ {4}(.*fuscoc .*)$", end, re.MULTILINE)
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_options_that_exist(name: str) -> None:
    command = load_command(name)
    options = {option for parameter in command.params for option in parameter.opts}
    for words in examples(command.help or ""):
        start = words.index("fuscoc")
        assert words[start + 1] == name
        used = [word for word in words[start + 2 :] if re.match(r"--?[A-Za-z]", word)]
        assert {word.partition("=")[0] for word in used} <= options


def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuscoc", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"fuscoc {fuscoc_runtime.__version__}\n"
