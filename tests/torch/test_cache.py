"""The cache of compiled specs: where it is, what its keys are, and that damage does not last."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from fuscoc import driver, spec_cache
from fuscoc.source import as_source
from fuscoc.spec_cache import compile_cached
from fuscoc.torch import as_artifact
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.manifest.artifact import Artifact
from tests.engine import specs

ROUTED = specs.routed("f32", keys=4, topk=2)
KERNELS = "kernels/routed.py"


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """What the cache ``tmp_path`` holds for ``ROUTED``."""
    return as_artifact(ROUTED, {}, tmp_path).path


def truncate(entry: Path) -> None:
    os.truncate(entry / KERNELS, 100)


def cut_manifest_short(entry: Path) -> None:
    os.truncate(entry / "manifest.json", 100)


def delete_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def delete_kernels(entry: Path) -> None:
    (entry / KERNELS).unlink()


def delete_all_but_the_folder(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.mkdir()


def put_a_file_there(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("")


def point_nowhere(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.symlink_to(entry.parent / "nothing")


DAMAGES = [
    truncate,
    cut_manifest_short,
    delete_manifest,
    delete_kernels,
    delete_all_but_the_folder,
    put_a_file_there,
    point_nowhere,
]


def test_the_key_is_the_content(tmp_path: Path) -> None:
    text = as_source(ROUTED)
    first = compile_cached(text, {}, tmp_path).path
    assert compile_cached(text, {}, tmp_path).path == first
    constants = {"hidden": 8, "keys": 6}
    small = compile_cached(text, constants, tmp_path).path
    assert small != first
    assert compile_cached(text, dict(reversed(constants.items())), tmp_path).path == small
    other = as_source(ROUTED + "// said differently\n")
    assert compile_cached(other, {}, tmp_path).path != first
    with ThreadPoolExecutor(4) as together:
        artifacts = list(
            together.map(lambda _: compile_cached(text, {"hidden": 4}, tmp_path), range(4))
        )
    assert len({artifact.path for artifact in artifacts}) == 1
    assert as_artifact(artifacts[0].path, {}).shuffle().declared.constants["hidden"] == 4


def test_a_compiler_is_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them changes, whatever else is beside them."""
    (tmp_path / "passes").mkdir()
    files = [tmp_path / "driver.py", tmp_path / "lang.lark", tmp_path / "passes" / "fuse.py"]
    for path in files:
        path.write_text("first")
    monkeypatch.setattr(spec_cache, "__file__", str(tmp_path / "spec_cache.py"))

    def digest() -> str:
        found: str = spec_cache._compiler_digest.__wrapped__()
        return found

    digests = [digest()]
    for path in files:
        path.write_text("second")
        digests.append(digest())
    files[0].rename(tmp_path / "other.py")
    digests.append(digest())
    assert len(set(digests)) == 5
    (tmp_path / "notes.txt").write_text("beside")
    assert digest() == digests[-1]


def test_what_cannot_be_removed_does_no_harm(
    entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as files that another process reads over NFS."""
    intact = content(entry)
    truncate(entry)

    rmdir = os.rmdir

    def busy(path: str, **folder: Any) -> None:
        if Path(path).name == "old":
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        rmdir(path, **folder)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", busy)
        assert as_artifact(ROUTED, {}, tmp_path).path == entry
    assert content(entry) == intact


def test_another_compiler_compiles_anew(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_cache, "_compiler_digest", lambda: "other")
    assert as_artifact(ROUTED, {}, entry.parents[1]).path != entry


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() != tmp_path / "fuscoc"
    monkeypatch.delenv("FUSCOC_CACHE_DIR")
    assert cache_folder() == tmp_path / "fuscoc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "fuscoc"


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_compiled_again(
    damage: Callable[[Path], None],
    entry: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    intact = content(entry)
    damage(entry)
    assert as_artifact(ROUTED, {}, tmp_path).path == entry
    assert content(entry) == intact
    [said] = caplog.records
    assert said.levelno == logging.WARNING
    assert f"{entry} is damaged" in said.getMessage()
    assert sorted(os.listdir(entry.parent)) == [entry.name, f"{entry.name}.lock"]


def test_what_is_whole_or_new_is_not_spoken_of(
    entry: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = entry.stat()
    assert as_artifact(ROUTED, {}, tmp_path).path == entry
    assert entry.stat() == before
    assert not caplog.records


@pytest.mark.parametrize("damage", [truncate, delete_kernels])
def test_what_the_user_compiled_is_refused(damage: Callable[[Path], None], entry: Path) -> None:
    """Wherever it lies: as a spec it is compiled again, as an artifact it is not."""
    damage(entry)
    before = content(entry)
    with pytest.raises(ArtifactError, match=r"routed\.py: .* compile it again"):
        as_artifact(entry, {})
    assert content(entry) == before


def test_a_failure_replaces_nothing(
    entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intact = content(entry)
    truncate(entry)
    before = content(entry)

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(driver, "compile_source", fail)
        with pytest.raises(OSError, match="no space left"):
            as_artifact(ROUTED, {}, tmp_path)
    assert content(entry) == before
    assert sorted(os.listdir(entry.parent)) == [entry.name, f"{entry.name}.lock"]
    as_artifact(ROUTED, {}, tmp_path)
    assert content(entry) == intact


def test_who_comes_while_it_is_replaced_waits(
    entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other looks when the old one has lost its name and the new one has none yet."""
    truncate(entry)
    rename, alone = os.rename, spec_cache._alone
    others: list[Future[Artifact]] = []
    locks: list[Path] = []
    waits = Event()

    def announced(lock: Path) -> AbstractContextManager[None]:
        locks.append(lock)
        if len(locks) == 2:
            waits.set()
        return alone(lock)

    with ThreadPoolExecutor(1) as another:

        def renamed(source: Path, target: Path) -> None:
            rename(source, target)
            if source == entry:
                others.append(another.submit(as_artifact, ROUTED, {}, tmp_path))
                assert waits.wait(60)

        monkeypatch.setattr(spec_cache, "_alone", announced)
        monkeypatch.setattr(os, "rename", renamed)
        assert as_artifact(ROUTED, {}, tmp_path).path == entry
        [other] = others
        assert other.result().path == entry
    assert len(caplog.records) == 1


ANOTHER_PROCESS = """
import logging, sys
from pathlib import Path
from fuscoc import spec_cache
from fuscoc.source import as_source
logging.basicConfig(format="%(message)s")
alone = spec_cache._alone
def announced(lock):
    print("waiting", flush=True)
    return alone(lock)
spec_cache._alone = announced
print(spec_cache.compile_cached(as_source(sys.argv[1]), {}, Path(sys.argv[2])).path)
"""


def test_processes_that_find_it_damaged_at_the_same_time(entry: Path, tmp_path: Path) -> None:
    """Both have seen the damage before one of them may repair it; the other then finds it whole."""
    intact = content(entry)
    truncate(entry)
    command = [sys.executable, "-c", ANOTHER_PROCESS, ROUTED, str(tmp_path)]
    with (entry.parent / f"{entry.name}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        try:
            for each in both:
                assert each.stdout is not None
                assert each.stdout.readline() == "waiting\n"
            fcntl.flock(lock, fcntl.LOCK_UN)
            said = [each.communicate(timeout=60) for each in both]
        finally:
            for each in both:
                each.kill()
    assert [out for out, _ in said] == [f"{entry}\n"] * 2
    assert sorted("is damaged and is compiled again" in err for _, err in said) == [False, True]
    assert content(entry) == intact
    assert sorted(os.listdir(entry.parent)) == [entry.name, f"{entry.name}.lock"]
