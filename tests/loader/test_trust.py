"""What is executed from the cache: only what this user has put where nobody else may write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuscoc.torch import as_artifact
from fuscoc_runtime.kernels import cuda
from fuscoc_runtime.plan import library
from fuscoc_runtime.trust import UntrustedError, check_own
from tests.engine import specs

ROUTED = specs.routed("f32", keys=4, topk=2)
TEXT, ARCH = "// nothing", "sm_90"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, of a user whose files the group may write, as many systems have it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(folder))
    monkeypatch.setattr(cuda, "find_compiler", lambda: cuda.Compiler("nvcc", "13"))
    monkeypatch.setattr(cuda, "_nvcc", lambda *_: b"code")
    before = os.umask(0o002)
    yield folder
    os.umask(before)


def load_library() -> object:
    return library.load.__wrapped__()


def load_cubin() -> object:
    return cuda.cubin(TEXT, ARCH)


def load_spec() -> object:
    return as_artifact(ROUTED, {}, Path(os.environ["FUSCOC_CACHE_DIR"]))


LOADERS = [
    (load_library, library.BuildError),
    (load_cubin, cuda.CudaError),
    (load_spec, UntrustedError),
]
everywhere = pytest.mark.parametrize(("load", "error"), LOADERS, ids=["library", "cubin", "spec"])


@everywhere
def test_what_is_made_here_is_nobody_elses(
    load: Callable[[], object], error: type[Exception], cache: Path
) -> None:
    load()
    made = [cache, *cache.rglob("*")]
    assert len(made) >= 3
    for path in made:
        assert not path.stat().st_mode & 0o022 or path.suffix == ".lock", path
    load()


@everywhere
@pytest.mark.parametrize("right", [0o020, 0o002], ids=["group", "all"])
def test_what_others_may_write_is_not_executed(
    load: Callable[[], object], error: type[Exception], cache: Path, right: int
) -> None:
    """The cache, a folder in it, or a file."""
    load()
    for path in [path for path in (cache, *cache.rglob("*")) if path.suffix != ".lock"]:
        mode = path.stat().st_mode & 0o7777
        path.chmod(mode | right)
        said = rf"{path} may be written by others \(mode {mode | right:o}\)"
        with pytest.raises(error, match=said):
            load()
        path.chmod(mode)
    load()


@everywhere
def test_what_another_user_has_put_there_is_not_executed(
    load: Callable[[], object],
    error: type[Exception],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load()
    [*_, last] = sorted(path for path in cache.rglob("*") if path.suffix != ".lock")
    uid = make_anothers(last, monkeypatch)
    with pytest.raises(error, match=rf"belongs to another user \(uid {uid}\)"):
        load()


def make_anothers(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give the file away, or where only root may do that be another user. Returns its owner."""
    uid = os.geteuid()
    if uid == 0:
        os.chown(path, 12345, -1)
        return 12345
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    return uid


def test_what_root_has_put_there_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_own(Path("/usr"))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    check_own(Path("/usr"))


def test_a_cubin_is_not_kept_where_others_may_write(cache: Path) -> None:
    """Then it is compiled each time."""
    cache.mkdir()
    cache.chmod(0o777)
    assert load_cubin() == load_cubin() == b"code"
    assert not list(cache.rglob("*.cubin"))
