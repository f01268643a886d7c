"""What can run on machines that are made up: CPUs alone, good and bad GPUs, clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fuscoc_runtime.comm.nvml import NO_CLUSTER
from fuscoc_runtime.doctor.abilities import Found, Machine, abilities

H100 = {"capability": [9, 0], "shared_bytes": 227 << 10}
L4 = {"capability": [8, 9], "shared_bytes": 99 << 10}
A100 = {"capability": [8, 0], "shared_bytes": 163 << 10}
V100 = {"capability": [7, 0], "shared_bytes": 96 << 10}
OF_ONE_HOST = {"state": "completed", "cluster": NO_CLUSTER, "problem": "of one host"}
ANY = {"name": "GPU", "num_sms": 1, "memory_bytes": 1, "fabric": OF_ONE_HOST}
ETHERNET = {"name": "eth0", "state": "up", "mbit_per_s": 10000}
LOOPBACK = {"name": "lo", "state": "unknown", "mbit_per_s": None}
RDMA = {"name": "mlx5_0", "port": 1, "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}

NODE = "gpus_of_one_node"

GOOD: dict[str, Any] = {
    "torch": {"cuda": "13.0", "gloo": True, "nccl": "2.28.9"},
    "triton": {},
    "mlir": {},
    "gpus": {"driver": None, "device_files": [], "problem": None, "devices": []},
    "native": {"built_in": False, "reason": "plan.so: cannot open shared object file"},
    "c_compiler": {"command": "cc", "version": "12"},
    "cuda_compiler": {"kind": "nvrtc", "version": "13.0", "path": None},
    "cache": {"path": "/c", "num_files": 0, "num_bytes": 0, "problem": None},
    "memory": {
        "shared_bytes": 8 << 30,
        "free_shared_bytes": 8 << 30,
        "max_open_files": 1024,
        "max_locked_bytes": None,
    },
    "network": {"interfaces": [LOOPBACK, ETHERNET], "rdma_devices": [], "peer_memory": None},
}


def gpus(*kinds: Mapping[str, Any], apart: tuple[int, int] | None = None) -> dict[str, Any]:
    devices = []
    for index, kind in enumerate(kinds):
        peers = [peer for peer in range(len(kinds)) if peer != index]
        if apart and index in apart:
            peers = [peer for peer in peers if peer not in apart]
        devices.append({**ANY, "peers": peers, **kind})
    return {"driver": "580", "device_files": ["nvidia0"], "problem": None, "devices": devices}


def found(
    errors: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    has_compiler: bool = True,
    **changed: Mapping[str, Any],
) -> dict[str, tuple[str, str]]:
    """State and reasons by ability, on a good machine but for what is given."""
    facts = {name: {**each, **changed.get(name, {})} for name, each in GOOD.items()}
    errors = errors or {}
    probes = {
        name: Found({}, errors[name]) if name in errors else Found(each)
        for name, each in facts.items()
    }
    able = abilities(Machine(probes, environment or {}, has_compiler))
    return {name: (each.state, "; ".join(each.reasons)) for name, each in able.items()}


def states(found: Mapping[str, tuple[str, str]]) -> list[str]:
    return [state for state, _ in found.values()]


def test_cpus_alone_are_healthy() -> None:
    assert states(found()) == ["ready", "ready", "absent", "absent", "absent", "ready"]


def test_a_node_of_gpus_has_everything() -> None:
    able = found(gpus=gpus(H100, H100), network={"rdma_devices": [RDMA]})
    assert states(able) == ["ready"] * 6
    assert able["network"][1].startswith("RDMA by mlx5_0; nvidia_peermem is not loaded")


def test_nodes_that_span_hosts() -> None:
    domain = {"state": "completed", "cluster": "0f" * 16, "clique": 3, "problem": None}
    refused = {**domain, "problem": "does nvidia-imex run?"}
    for fabrics, note in (
        ((domain, domain), "with those of other hosts that have the same cluster and clique"),
        ((domain, refused), "with those of other hosts not, for all their NVLink domain: "),
        ((OF_ONE_HOST, OF_ONE_HOST), ""),
    ):
        state, said = found(gpus=gpus(*({**H100, "fabric": each} for each in fabrics)))[NODE]
        assert (state, said.startswith(note), bool(said)) == ("ready", True, bool(note))
    assert "does nvidia-imex run?" in found(gpus=gpus(*[{**H100, "fabric": refused}] * 2))[NODE][1]


def test_without_the_compiler_artifacts_still_run() -> None:
    able = found({"mlir": "ModuleNotFoundError: No module named 'fuscoc'"}, has_compiler=False)
    assert able["compile"][0] == "absent"
    assert able["cpu_ranks"] == ("ready", "")
    assert found({"mlir": "ImportError: libz"})["compile"] == (
        "broken",
        "the compiler's MLIR: ImportError: libz",
    )


@pytest.mark.parametrize(
    ("probe", "ability"),
    [
        ("torch", "cpu_ranks"),
        ("triton", "cpu_ranks"),
        ("c_compiler", "cpu_ranks"),
        ("cache", "triton_kernels"),
        ("triton", "triton_kernels"),
        ("cuda_compiler", "cuda_kernels"),
        ("c_compiler", "cuda_kernels"),
        ("memory", "cpu_ranks"),
        ("network", "network"),
    ],
)
def test_a_failure_is_the_reason(probe: str, ability: str) -> None:
    state, reasons = found({probe: "no answer within 60 s"}, gpus=gpus(H100))[ability]
    assert state == "broken"
    assert reasons.endswith("no answer within 60 s")


def test_what_came_compiled_needs_no_c_compiler() -> None:
    able = found({"c_compiler": "none"}, gpus=gpus(H100), native={"built_in": True, "reason": None})
    assert able["cpu_ranks"] == able["triton_kernels"] == able["cuda_kernels"] == ("ready", "")


def test_what_the_cache_is_not_trusted_for() -> None:
    able = found(cache={"problem": "/c may be written by others (mode 777)"}, gpus=gpus(H100))
    for name in ("cpu_ranks", "triton_kernels", "cuda_kernels"):
        assert able[name] == ("broken", "/c may be written by others (mode 777)")
    assert able["compile"][0] == "ready"


def test_gpus_by_their_kind() -> None:
    assert states(found(gpus=gpus(L4)))[2:5] == ["ready", "absent", "absent"]
    assert "GPU 0 is too small" in found(gpus=gpus(L4))["cuda_kernels"][1]
    assert "GPUs 0, 1 are too old for casts" in found(gpus=gpus(A100, A100))["triton_kernels"][1]
    assert states(found(gpus=gpus(V100)))[2:4] == ["absent", "absent"]


def test_gpus_that_are_no_peers_are_named() -> None:
    state, reason = found(gpus=gpus(H100, H100, H100, apart=(0, 2)))["gpus_of_one_node"]
    assert state == "absent"
    assert reason.startswith("GPUs 0 and 2 cannot")


def test_gpus_that_cannot_be_used() -> None:
    hidden = {"gpus": {**gpus(), "problem": "CUDA driver initialization failed"}}
    assert found(**hidden)["triton_kernels"] == (
        "broken",
        "there are GPUs, and PyTorch finds none: CUDA driver initialization failed",
    )
    without = found(torch={"cuda": None}, **hidden)
    assert "built without CUDA" in without["cuda_kernels"][1]
    hangs = found({"gpus": "no answer within 60 s"})
    assert hangs["triton_kernels"] == ("broken", "looking for GPUs: no answer within 60 s")
    assert hangs["cpu_ranks"] == ("ready", "")


def test_a_variable_that_names_no_older_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSCOC_CUDA_ARCH", "sm_80")
    assert found(gpus=gpus(H100))["cuda_kernels"][0] == "ready"
    monkeypatch.setenv("FUSCOC_CUDA_ARCH", "sm_100")
    state, reason = found(gpus=gpus(H100))["cuda_kernels"]
    assert state == "broken"
    assert "sm_100" in reason


@pytest.mark.parametrize(
    ("said", "state"),
    [("eth0", "ready"), ("eth", "ready"), ("^docker", "ready"), ("=ib0,eth0", "ready"),
     ("ib", "broken")],
)  # fmt: skip
def test_interfaces_that_variables_name(said: str, state: str) -> None:
    able = found(environment={"NCCL_SOCKET_IFNAME": said})["network"]
    assert able[0] == state
    assert state == "ready" or able[1] == "NCCL_SOCKET_IFNAME is ib; there are lo, eth0"


def test_no_network() -> None:
    down = {**ETHERNET, "state": "down"}
    assert found(network={"interfaces": [LOOPBACK, down]})["network"][0] == "absent"
    assert found(torch={"nccl": None}, gpus=gpus(H100))["network"][0] == "broken"
    disabled = found(
        environment={"NCCL_IB_DISABLE": "1"},
        gpus=gpus(H100),
        network={"rdma_devices": [RDMA], "interfaces": [ETHERNET]},
    )
    assert disabled["network"][1].startswith("sockets: NCCL_IB_DISABLE is set")


def test_little_shared_memory_is_told() -> None:
    state, reason = found(memory={"free_shared_bytes": 64 << 20})["cpu_ranks"]
    assert state == "ready"
    assert reason.startswith("/dev/shm has 64 MiB free")
