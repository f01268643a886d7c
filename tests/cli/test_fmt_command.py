"""``fuscoc fmt`` as a user meets it."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path

import pytest

from fuscoc.cli import main

UGLY = "shuffle a{index t:tokens}"
NEAT = "shuffle a {\n  index t : tokens\n}\n"


@pytest.fixture
def fmt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run ``fuscoc fmt`` in this process: returns its exit code, stdout and stderr."""

    def run(*arguments: str | Path, stdin: bytes | None = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fuscoc", "fmt", *map(str, arguments)])
        text = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", text)
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        return int(exit_.value.code or 0), output.out, output.err

    return run


def test_files_are_rewritten_in_place(fmt, tmp_path: Path) -> None:
    ugly, neat = tmp_path / "ugly.fsc", tmp_path / "neat.fsc"
    ugly.write_text(UGLY)
    neat.write_text(NEAT)
    ugly.chmod(0o640)
    os.utime(neat, (1, 1))
    assert fmt(ugly, neat) == (0, "", f"formatted {ugly}\n")
    assert ugly.read_text() == NEAT
    assert stat.S_IMODE(ugly.stat().st_mode) == 0o640
    assert neat.stat().st_mtime == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neat.fsc", "ugly.fsc"]


def test_check_and_diff_write_nothing(fmt, tmp_path: Path) -> None:
    path = tmp_path / "ugly.fsc"
    path.write_text(UGLY)
    assert fmt("--check", path) == (1, "", f"{path} would change\n")
    code, out, _ = fmt("--diff", path)
    assert code == 1
    assert out.splitlines()[2:] == [
        "@@ -1 +1,3 @@",
        f"-{UGLY}",
        "\\ No newline at end of file",
        *(f"+{line}" for line in NEAT.splitlines()),
    ]
    assert path.read_text() == UGLY
    path.write_text(NEAT)
    assert fmt("--check", "--diff", path) == (0, "", "")


def test_errors_are_shown_and_other_files_still_formatted(fmt, tmp_path: Path) -> None:
    bad, ugly = tmp_path / "bad.fsc", tmp_path / "ugly.fsc"
    bad.write_text("shuffle a{index t")
    ugly.write_text(UGLY)
    code, out, err = fmt(bad, tmp_path / "missing.fsc", ugly)
    assert (code, out) == (1, "")
    assert f"{bad}:1:17" in err
    assert "error[FSC001]" in err
    assert "missing.fsc: no such file or directory" in err
    assert bad.read_text() == "shuffle a{index t"
    assert ugly.read_text() == NEAT


def test_bytes_that_are_no_text_are_not_lost(fmt, tmp_path: Path) -> None:
    path = tmp_path / "latin.fsc"
    path.write_bytes(b"shuffle a{index t:1 // caf\xe9\n}")
    code, _, err = fmt(path)
    assert code == 1
    assert "not UTF-8" in err
    assert path.read_bytes() == b"shuffle a{index t:1 // caf\xe9\n}"
    code, out, err = fmt("-", stdin=path.read_bytes())
    assert (code, out) == (1, "")
    assert "<stdin> is not UTF-8" in err


def test_standard_input(fmt) -> None:
    assert fmt("-", stdin=UGLY.encode()) == (0, NEAT, "")
    assert fmt("--check", "-", stdin=UGLY.encode()) == (1, "", "<stdin> would change\n")
    code, out, err = fmt("-", stdin=b"shuffle {")
    assert (code, out) == (1, "")
    assert "<stdin>:1:9" in err


def test_what_is_written_is_utf8_in_every_locale(fmt, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    spec = f"// 雪\n{NEAT}".encode()
    assert fmt("-", stdin=spec)[0] == 0
    sys.stdout.flush()
    assert written.getvalue() == spec


def test_closed_standard_input(fmt) -> None:
    assert fmt("-", stdin=None) == (1, "", "error: <stdin>: it is closed\n")
