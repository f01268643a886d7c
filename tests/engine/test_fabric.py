"""NVLink domains of GPUs that are made up: what a library says that is compiled here, `nvml.c`."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuscoc_runtime.ccompiler import compiler_command
from fuscoc_runtime.comm import fabric, nvml
from fuscoc_runtime.comm.fabric import Fabric, fabric_of
from fuscoc_runtime.kernels import driver
from tests.gpus import need_gpus

SOURCE = Path(__file__).with_name("nvml.c")
GPU, DEVICE = "GPU-0b1d", torch.device("cuda", 3)
GOOD = {"UUID": GPU, "NEWEST": 3, "STATE": 3, "CLUSTER": 5, "CLIQUE": 7, "DEVICE": 3}
CLUSTER = bytes(5 * (byte + 1) for byte in range(16)).hex()
WHOLE = Fabric(CLUSTER, 7)
NO_HANDLES = "the driver gives no handles of the fabric"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a driver, and of one from before there were domains."""
    folder = tmp_path_factory.mktemp("nvml")
    made = {name: folder / f"{name}.so" for name in ("new", "old")}
    for name, path in made.items():
        options = ["-shared", "-fPIC", "-Wall", "-Werror", *(["-DOLD"] if name == "old" else [])]
        subprocess.run([*compiler_command(), *options, "-o", path, SOURCE], check=True)
    return made


@pytest.fixture
def ask(
    libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Fabric | str]]:
    """The domain of a GPU where the libraries answer so, and nothing of theirs stays open."""
    new = ctypes.CDLL(str(libraries["new"]))

    def function(name: str) -> Any:
        found = getattr(new, name)
        found.argtypes = driver._SIGNATURES[name]
        return found

    def asked(library: str = "new", **answers: int) -> Fabric | str:
        path = libraries.get(library, library)
        monkeypatch.setattr(nvml, "LIBRARY", str(path))
        for name, answer in {**GOOD, **answers}.items():
            monkeypatch.setenv(name, str(answer))
        fabric_of.cache_clear()
        found = fabric_of(DEVICE)
        assert new.num_open() == 0
        return found

    monkeypatch.setattr(fabric, "uuid_of", lambda device: GPU)
    monkeypatch.setattr(driver, "function", function)
    yield asked
    fabric_of.cache_clear()


def test_a_domain_of_several_hosts(ask: Callable[..., Fabric | str]) -> None:
    assert ask() == ask(NEWEST=2) == WHOLE
    assert ask(CLIQUE=8) == Fabric(CLUSTER, 8)
    assert ask(CLUSTER=6) != WHOLE
    info = nvml.fabric_info(GPU)
    assert (info.state, info.problem, info.health_mask) == ("completed", "", 0x1234)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"library": "/nowhere/libnvidia-ml.so.1"}, "there is no /nowhere/libnvidia-ml.so.1"),
        ({"library": "old"}, "this NVML has no nvmlDeviceGetGpuFabricInfoV"),
        ({"INIT": 3}, "NVML's nvmlInit_v2 says: Not Supported"),
        ({"UUID": 0}, "NVML's nvmlDeviceGetHandleByUUID says: Not Found"),
        ({"FABRIC": 3}, "NVML's nvmlDeviceGetGpuFabricInfoV says: Not Supported"),
        ({"NEWEST": 1}, "NVML's nvmlDeviceGetGpuFabricInfoV says: Not Supported"),
        ({"STATE": 0}, "its NVLink domain is in the state `not supported`"),
        ({"STATE": 1}, "its NVLink domain is in the state `not started`"),
        ({"STATE": 2}, "its NVLink domain is in the state `in progress`"),
        ({"STATE": 9}, "its NVLink domain is in the state `state 9`"),
        ({"STATUS": 6}, "its GPU has not come into an NVLink domain: Not Found"),
        ({"CLUSTER": 0}, "its NVLink domain has no cluster id: it is of one host"),
        ({"GRANULARITY": 801}, f"{NO_HANDLES} (cuMemGetAllocationGranularity failed"),
        ({"CREATE": 1}, f"{NO_HANDLES} (cuMemCreate failed with CUDA error 800)"),
        ({"CREATE": 1, "library": "/nowhere/libnvidia-ml.so.1"}, NO_HANDLES),
        ({"EXPORT": 1}, f"{NO_HANDLES} (cuMemExportToShareableHandle failed"),
        ({"IMPORT": 1}, f"{NO_HANDLES} (cuMemImportFromShareableHandle failed"),
    ],
)
def test_why_a_domain_is_of_one_host(
    ask: Callable[..., Fabric | str], answers: dict[str, Any], reason: str
) -> None:
    found = ask(**answers)
    assert isinstance(found, str)
    assert found.startswith(reason)


@pytest.mark.gpu
def test_a_driver_that_is_there() -> None:
    need_gpus(1)
    device = torch.device("cuda", torch.cuda.current_device())
    info = nvml.fabric_info(fabric.uuid_of(device))
    assert info.state in nvml.STATES
    found = fabric_of(device)
    assert found == fabric.as_fabric(info) or str(found).startswith(NO_HANDLES)


def test_a_rank_on_a_cpu_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "fabric_info", None)
    assert fabric_of(torch.device("cpu")) == "it computes on cpu"
