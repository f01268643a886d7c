"""The native part: built once, with a clear word if it cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fuscoc_runtime import native as loader
from fuscoc_runtime.native import NativeLibrary
from fuscoc_runtime.plan import library, native
from fuscoc_runtime.plan.library import PLAN


def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path))
    built = PLAN.build()
    assert [path.name for path in (tmp_path / "native").iterdir()] == [built.name]
    made = built.stat().st_mtime_ns
    assert PLAN.build() == built
    assert built.stat().st_mtime_ns == made


def test_built_anew_from_whatever_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(loader, "_compile", lambda command, sources, target: target.write_text(""))
    header = tmp_path / "plan.h"
    header.write_bytes(PLAN.headers[0].read_bytes())
    built = {PLAN.build()}
    same = NativeLibrary("plan", PLAN.sources, (header,))
    assert same.build() in built  # wherever it lies
    header.write_text("// another one")
    built.add(same.build())
    built.add(NativeLibrary("plan", PLAN.sources[1:], (header,)).build())
    monkeypatch.setenv("CC", "another-cc")
    built.add(PLAN.build())
    monkeypatch.setattr(loader, "FLAGS", ("-O0",))
    built.add(PLAN.build())
    monkeypatch.setattr(loader, "LIBRARIES", ())
    built.add(PLAN.build())
    assert len(built) == 6


def test_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise library.BuildError("no compiler")

    assert library.is_there.__wrapped__()
    monkeypatch.setattr(library, "load", fail)
    assert not library.is_there.__wrapped__()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(library.BuildError, match="needs a C compiler"):
        PLAN.build()


def test_failing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "cc -DUNFINISHED=( -Dint64_t=UNFINISHED")
    with pytest.raises(library.BuildError, match=r"failed:\n(.|\n)*error"):
        PLAN.build()
    assert not list((tmp_path / "native").iterdir())


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("no folder")
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path / "taken"))
    with pytest.raises(library.BuildError, match=r"taken.*FUSCOC_CACHE_DIR"):
        PLAN.build()


def test_a_broken_library_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path))
    built = PLAN.build()
    built.write_text("cut short")
    assert library.load.__wrapped__().fuscoc_lpt
    assert "compiled again" in caplog.text
    caplog.clear()
    assert library.load.__wrapped__().fuscoc_lpt
    assert not caplog.text


def test_a_library_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.so").write_text("of another machine")
    monkeypatch.setattr(NativeLibrary, "build", lambda *_, **__: tmp_path / "plan.so")
    with pytest.raises(library.BuildError, match=r"plan\.so"):
        library.load.__wrapped__()


def test_a_library_of_a_wheel_is_of_the_sources_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FUSCOC_CACHE_DIR", str(tmp_path / "cache"))
    source, header = tmp_path / "number.c", tmp_path / "number.h"
    source.write_text('#include "number.h"\nint number(void) { return NUMBER; }')
    header.write_text("#define NUMBER 1")
    number = NativeLibrary("number", (source,), (header,))
    assert number.compile_into(tmp_path) == number.built_in
    first = number.built_in
    with monkeypatch.context() as without:
        without.delenv("CC", raising=False)
        without.setenv("PATH", "")
        assert number.load().number() == 1
        header.write_text("#define NUMBER 2")
        assert number.built_in != first
        with pytest.raises(library.BuildError, match=r"number-.*\.so is not there, and .* needs a"):
            number.load()
    assert not (tmp_path / "cache").exists()
    assert number.load().number() == 2
    assert not caplog.text
    number.built_in.write_text("of another machine")
    assert number.load().number() == 2
    assert f"{number.built_in.name}: file too short: it is compiled" in caplog.text


def test_a_build_whose_compiler_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(library.BuildError, match=r"/nowhere/cc.*CC names a compiler"):
        PLAN.compile_into(tmp_path)


def test_a_wheel_is_for_any_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -march=native")
    with pytest.raises(library.BuildError, match="CC has -march=native"):
        PLAN.compile_into(tmp_path)
    assert not list(tmp_path.iterdir())


def test_read_only_input() -> None:
    tile = np.array([[0, 2], [3, 0]])
    tile.flags.writeable = False
    peer, begin, end = native.decompose(tile, 1)
    assert peer.tolist() == [[1, 0]]
    assert (begin.tolist(), end.tolist()) == ([[0, 0]], [[2, 3]])


def test_strided_input_is_refused() -> None:
    with pytest.raises((TypeError, BufferError, ValueError)):
        native.decompose(np.zeros((2, 4), np.int64)[:, ::2], 1)
