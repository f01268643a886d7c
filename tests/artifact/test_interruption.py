"""An artifact is whole or absent, whenever the compiler is stopped, whatever a file is called."""

from __future__ import annotations

import ast
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fuscoc
from fuscoc import artifact
from fuscoc_runtime import load_artifact

VIT = Path("examples/vit_patches.fsc")
FILES = {"manifest.json": b'{"schema": 1, "compiler": "", "shuffles": []}', "kernels/a.py": b"new"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An artifact that is to be replaced."""
    return artifact.write_artifact(tmp_path / "out", {**FILES, "kernels/a.py": b"old"})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_names_are_given(
    number: signal.Signals, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the old artifact has lost its name and the new one has none yet."""
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        rename(source, target)
        os.kill(os.getpid(), number)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            artifact.write_artifact(old, FILES)
    finally:
        signal.signal(number, before)
    assert (old / "kernels" / "a.py").read_bytes() == b"new"
    assert os.listdir(old.parent) == ["out"]


def test_an_interrupted_write_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def interrupted(path: Path, content: bytes) -> int:
        if path.name == "a.py":
            raise KeyboardInterrupt
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        artifact.write_artifact(old, FILES)
    assert (old / "kernels" / "a.py").read_bytes() == b"old"
    assert os.listdir(old.parent) == ["out"]


def test_a_full_disk_is_told_of_the_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as caught:
        artifact.write_artifact(tmp_path / "out", FILES)
    assert caught.value.filename == str(tmp_path / "out")
    assert os.listdir(tmp_path) == []


SLOW = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background are deaf to it
from fuscoc.cli import main
write = Path.write_bytes
def slow(path, content):
    write(path, content)
    print("writing", flush=True)
    while True:  # one long sleep would not notice a signal that comes just before it
        time.sleep(0.01)
Path.write_bytes = slow
sys.argv = ["fuscoc", "compile", "examples/vit_patches.fsc", "-o", sys.argv[1]]
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_leaves_nothing(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == "writing\n"
            command.send_signal(number)
            _, err = command.communicate(timeout=60)
        finally:
            command.kill()
    assert "Traceback" not in err
    assert command.returncode == code
    assert os.listdir(tmp_path) == []


IN_NUMPY = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.matrixlib":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from fuscoc.cli import main
sys.argv = ["fuscoc", sys.argv[1], "examples/moe.fsc"]
main()
"""


@pytest.mark.parametrize("command", ["plan", "run", "test"])
def test_a_command_stops_also_while_numpy_is_being_loaded(command: str) -> None:
    """Torch's C++ would load it, too, and forget the exception."""
    done = subprocess.run([sys.executable, "-c", IN_NUMPY, command], timeout=60, check=False)
    assert done.returncode == 130


@pytest.mark.parametrize(
    "name",
    ['a"""b', 'quote"', "back\\slash", "end\\", "line\nbreak", "tab\tx", "é中\u2028", b"\xff\xfe"],
)
def test_any_file_name_will_do(name: str | bytes, tmp_path: Path) -> None:
    """The name stands in docstrings and comments of generated code."""
    spec = tmp_path / f"{os.fsdecode(name)}.fsc"
    spec.write_text(VIT.read_text())
    out = fuscoc.compile(spec, tmp_path / "out")
    kernels = (out / "kernels" / "vit_patches.py").read_text()
    tree = ast.parse(kernels)
    assert "Kernels of shuffle ``vit_patches``" in (ast.get_docstring(tree) or "")
    plain = fuscoc.compile(VIT, tmp_path / "plain")
    expected = ast.parse((plain / "kernels" / "vit_patches.py").read_text())
    for module in (tree, expected):
        module.body = module.body[1:]
    assert ast.dump(tree) == ast.dump(expected)
    assert json.loads((out / "manifest.json").read_text())["spec"]["file"] == spec.name
    assert load_artifact(out).manifest.shuffles[0].name == "vit_patches"


def test_any_file_name_will_do_for_cuda(tmp_path: Path) -> None:
    """A backslash at the end of a line comment would swallow the next line."""
    spec = tmp_path / "end\\\n.fsc"
    spec.write_text(Path("examples/moe.fsc").read_text())
    text = "".join(
        path.read_text() for path in fuscoc.compile(spec, tmp_path / "out").rglob("*.cu")
    )
    assert "\\\n" not in text.split("#include")[0]
    assert "end__.fsc" in text
