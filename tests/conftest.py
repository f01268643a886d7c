"""What holds for every test: no deadlines, the same draws, one thread, caches that end with the
run."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is decides no test, not even through hypothesis' default deadline. By day
# neither does chance; `make nightly` draws anew, and keeps what it finds for its next run.
of_any = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("night", of_any)
settings.register_profile("day", of_any, derandomize=True)
settings.load_profile("day")

# Tensors are tiny, and several processes share the cores. Torch reads this when it is imported,
# here and in whatever a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a test starts, wherever, imports what is tested.
ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))

MOST_WORKERS = 8
GIB_OF_A_WORKER = 2  # with the ranks that its tests start


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is compiled on the fly is kept for one run of pytest, and for all its workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["FUSCOC_CACHE_DIR"] = str(folder / "cache")


@pytest.fixture
def forked_ranks() -> Generator[None, Any, None]:
    """``fuscoc_runtime.run`` starts no process that imports all anew: see `tests.forked`."""
    from tests.forked import forking_ranks

    with forking_ranks():
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What tests of GPUs compile is compiled where there are GPUs."""
    if (mark := item.get_closest_marker("gpu")) is not None:
        from tests.gpus import need_gpus

        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        need_gpus(**{"num_ranks": parameters.get("num_ranks", 1)} | mark.kwargs)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave modules and tests, a million objects that stay, out of every search for garbage."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # modules are taken apart at the end; some tell what is left
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: three workers for two cores, since tests wait, for ranks that are late or lost,
    for a fifth of their time; no more than there is memory for; a single one beside GPUs."""
    if Path("/dev/nvidiactl").exists():
        return 1
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    cores = len(os.sched_getaffinity(0))
    return max(1, min(3 * cores // 2, gib // GIB_OF_A_WORKER, MOST_WORKERS))
