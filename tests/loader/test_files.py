"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuscoc_runtime.files import whole_file


def test_a_file_is_replaced_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text("old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["plan"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError(), OSError(28, "full")])
def test_nothing_is_left_of_a_part(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "plan"

    def write() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        write()
    assert os.listdir(tmp_path) == []
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "plan"
    with pytest.raises(FileNotFoundError) as caught, whole_file(path):
        pass
    assert caught.value.filename == str(path)


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("old")
    (tmp_path / "link").symlink_to("plan")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "plan").read_text() == "new"


def test_a_pipe_without_a_path_is_written_to() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as end, os.fdopen(writer, "wb"):
        with whole_file(f"/dev/fd/{writer}") as file:
            file.write(b"through")
        assert end.read(7) == b"through"


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with whole_file(pipe) as file:
            file.write(b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]
