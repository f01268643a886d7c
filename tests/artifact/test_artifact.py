"""Writing an artifact: all of it or nothing, and over nothing but an artifact."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc import artifact
from fuscoc.artifact import MANIFEST, write_artifact
from fuscoc_runtime.manifest.artifact import load_artifact
from tests.artifact.test_manifest import compiled
from tests.specs import moe, vit_patches


def files_of(version: int) -> dict[str, bytes]:
    """Files of a made-up artifact; the first one has a file that no other has."""
    manifest = {"schema": 1, "compiler": "0", "shuffles": [version]}
    extra = {"kernels/old.py": b"old\n"} if version == 0 else {}
    kernels = f"version = {version}\n".encode()
    return {"kernels/s.py": kernels, **extra, MANIFEST: json.dumps(manifest).encode()}


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_runtime_opens_it(tmp_path: Path) -> None:
    for checked in (moe(), vit_patches()):
        path = write_artifact(tmp_path / checked.name, compiled(checked))
        assert load_artifact(path).shuffle().name == checked.name


def test_writes_what_it_is_given(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "down"
    assert write_artifact(str(target), files_of(0)) == target
    assert content(target) == files_of(0)
    assert os.listdir(target.parent) == ["down"]


def test_replaces_an_artifact(tmp_path: Path) -> None:
    target = tmp_path / "a"
    write_artifact(target, files_of(0))
    write_artifact(target, files_of(1))
    assert content(target) == files_of(1)
    assert os.listdir(tmp_path) == ["a"]


def test_fills_an_empty_directory(tmp_path: Path) -> None:
    write_artifact(tmp_path, files_of(0))
    assert content(tmp_path) == files_of(0)


def test_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_artifact(tmp_path / "link", files_of(0))
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == files_of(0)


def test_permissions_are_the_users(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    target = write_artifact(tmp_path / "a", files_of(0))
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize(
    "existing",
    [
        {"notes.txt": "mine"},
        {MANIFEST: "{}"},
        {MANIFEST: "[]"},
        {MANIFEST: "no json"},
        {MANIFEST: '{"name": "a web page", "icons": []}'},
    ],
)
def test_keeps_what_is_no_artifact(tmp_path: Path, existing: dict[str, str]) -> None:
    target = tmp_path / "a"
    target.mkdir()
    for name, text in existing.items():
        (target / name).write_text(text)
    with pytest.raises(FileExistsError, match="not an artifact"):
        write_artifact(target, files_of(0))
    assert content(target) == {name: text.encode() for name, text in existing.items()}
    assert os.listdir(tmp_path) == ["a"]


def test_keeps_a_file(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("mine")
    with pytest.raises(FileExistsError, match="not an artifact"):
        write_artifact(target, files_of(0))
    assert target.read_text() == "mine"


@pytest.mark.parametrize("failing", ["new", "a"])
def test_a_failure_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Whichever step fails, the name has the old artifact and nothing is left beside it."""
    target = tmp_path / "a"
    write_artifact(target, files_of(0))
    rename = os.rename

    def fails(source: Path, to: Path) -> None:
        if source.name == failing:
            raise PermissionError("no")
        rename(source, to)

    monkeypatch.setattr(artifact.os, "rename", fails)
    with pytest.raises(PermissionError):
        write_artifact(target, files_of(1))
    assert content(target) == files_of(0)
    assert os.listdir(tmp_path) == ["a"]


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    bad = {**files_of(0), "kernels/s.py/impossible": b""}
    with pytest.raises(FileExistsError):
        write_artifact(tmp_path / "a", bad)
    assert os.listdir(tmp_path) == []


def test_compilers_at_the_same_time(tmp_path: Path) -> None:
    """Several write one name at once: one of them wins, whole, and nobody fails."""
    target, failures = tmp_path / "a", []

    def write(version: int) -> None:
        try:
            for _ in range(20):
                write_artifact(target, files_of(version))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(version,)) for version in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert content(target) in [files_of(version) for version in range(4)]
    assert os.listdir(tmp_path) == ["a"]


def test_the_same_artifact_is_never_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a job compile one spec, and open it, while others still compile."""
    target = write_artifact(tmp_path / "a", files_of(0))
    os.utime(target / MANIFEST, (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(artifact, "_replace", lambda *_: pytest.fail("it was missed meanwhile"))
        write_artifact(target, files_of(0))
    assert (target / MANIFEST).stat().st_mtime > 0
    assert os.listdir(tmp_path) == ["a"]
    with monkeypatch.context() as patched:  # another user's
        patched.setattr(os, "utime", mock.Mock(side_effect=PermissionError))
        assert write_artifact(target, files_of(0)) == target
    name, outside = "kernels/s.py", tmp_path / "outside"
    for spoil in (
        (target / name).unlink,
        lambda: (target / name).write_bytes(b"altered"),
        lambda: (target / "more").write_bytes(b""),
        lambda: os.symlink((target / name).rename(outside), target / name),
    ):
        spoil()
        assert write_artifact(target, files_of(0)) == target
        assert content(target) == files_of(0)
        assert not (target / name).is_symlink()


@settings(max_examples=30)
@given(content=st.binary())
def test_bytes_are_unchanged(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    target = tmp_path_factory.mktemp("bytes") / "a"
    write_artifact(target, {"x": content, MANIFEST: b"{}"})
    assert (target / "x").read_bytes() == content
