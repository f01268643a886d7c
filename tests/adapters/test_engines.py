"""vLLM's and SGLang's DeepEP backends with fuscoc's ``deep_ep``, on four CPU ranks."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from fuscoc_runtime import deep_ep
from fuscoc_runtime.adapters import plugins
from tests.adapters import engine_work
from tests.engine.pool import Pool

ROOT = Path(__file__).parents[2]
SOURCES = {"vllm": "FUSCOC_VLLM", "sglang": "FUSCOC_SGLANG"}
"""Variables that name folders in which a release's wheel was unpacked."""


@pytest.mark.parametrize("is_fp8", [pytest.param(False, marks=pytest.mark.nightly), True])
@pytest.mark.parametrize("engine", [engine_work.vllm, engine_work.sglang])
def test_calls(pool: Pool, engine: Callable[..., Any], is_fp8: bool) -> None:
    rest = (512, is_fp8) if engine is engine_work.vllm else (is_fp8,)
    for wrong in pool.run(engine, 4, None, *rest):
        assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("engine", [engine_work.vllm, engine_work.sglang])
def test_own_dispatchers(engine: Callable[..., Any], is_fp8: bool) -> None:
    """vLLM's low-latency one takes no fewer than 2048 elements."""
    name = SOURCES[engine.__name__]
    if name not in os.environ:
        pytest.skip(f"{name} names no folder with {engine.__name__}'s source")
    rest = (2048, is_fp8) if engine is engine_work.vllm else (is_fp8,)
    pool = Pool(4)  # whose processes then have the engine's modules
    try:
        for wrong in pool.run(engine, 4, os.environ[name], *rest):
            assert not wrong, "\n".join(wrong)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("named", "served"), [(None, False), ("other", False), ("other,fuscoc", True)]
)
def test_vllm_has_to_name_the_plugin(
    monkeypatch: pytest.MonkeyPatch, named: str | None, served: bool
) -> None:
    monkeypatch.setitem(sys.modules, "deep_ep", os)  # so that what is there before comes back
    monkeypatch.delitem(sys.modules, "deep_ep")
    if named is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", named)
    plugins.vllm()
    assert sys.modules.get("deep_ep") is (deep_ep if served else None)
    if served:
        assert util.find_spec("deep_ep") is deep_ep.__spec__  # how vLLM looks for it
        plugins.vllm()  # vLLM calls it more than once
        monkeypatch.setitem(sys.modules, "deep_ep", os)
        with pytest.raises(ImportError, match="install this before its import"):
            plugins.vllm()


def test_the_runtime_tells_vllm_of_the_plugin() -> None:
    project = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text())["project"]
    found = project["entry-points"]["vllm.general_plugins"]
    assert {name: pkgutil.resolve_name(at) for name, at in found.items()} == {
        plugins.NAME: plugins.vllm
    }


def test_a_program_and_what_it_spawns(tmp_path: Path) -> None:
    """As SGLang's server, whose processes look for DeepEP when they are imported."""
    (tmp_path / "worker.py").write_text(
        "import deep_ep\ndef work():\n    print('worker', deep_ep.__name__, flush=True)\n"
    )
    (tmp_path / "server.py").write_text(
        "import multiprocessing, sys, worker\n"
        "if __name__ == '__main__':\n"
        "    print('server', *sys.argv[1:], flush=True)\n"
        "    process = multiprocessing.get_context('spawn').Process(target=worker.work)\n"
        "    process.start()\n    process.join()\n    sys.exit(process.exitcode)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "fuscoc_runtime.deep_ep.run", "server", "--port", "1"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["server --port 1", "worker fuscoc_runtime.deep_ep"]
