"""What of fuscoc can run on a machine, and why not the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fuscoc_runtime.comm.nvml import NO_CLUSTER
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.kernels.cuda import OLDEST, kernels_capability

OLDEST_SHARED_BYTES = 163 * 1024
"""Shared memory of a CTA that CUDA kernels of the oldest generation are laid out for."""
CASTS_F8 = (8, 9)
SMALL_SHARED_BYTES = 1 << 30
"""Less in ``/dev/shm`` is soon used up by the windows of CPU ranks, or by NCCL."""

State: TypeAlias = Literal["ready", "absent", "broken"]


@dataclass(frozen=True)
class Found:
    """What a probe found, or the reason why it found nothing."""

    facts: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class Ability:
    """Something that fuscoc does, and whether it can do it here.

    Attributes:
        state: ``ready``; ``absent``: the machine has not what it takes; ``broken``: it has, and
            something keeps it from working.
        reasons: why not; of what is ready, what to know of it.
    """

    state: State
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """What is known of a machine: findings by probe, its environment variables, what is installed
    of fuscoc."""

    found: Mapping[str, Found]
    environment: Mapping[str, str]
    has_compiler: bool

    def facts(self, probe: str) -> Mapping[str, Any]:
        return self.found[probe].facts

    def failures(self, **names: str) -> Iterator[str]:
        """Why probes found nothing, with what each is called."""
        for probe, name in names.items():
            if (error := self.found[probe].error) is not None:
                yield f"{name}: {error}"

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        devices: list[Mapping[str, Any]] = self.facts("gpus").get("devices", [])
        return devices


def abilities(machine: Machine) -> dict[str, Ability]:
    """Every ability by name, in the order in which one needs another."""
    return {
        "compile": _compile(machine),
        "cpu_ranks": _cpu_ranks(machine),
        "triton_kernels": _triton_kernels(machine),
        "cuda_kernels": _cuda_kernels(machine),
        "gpus_of_one_node": _gpus_of_one_node(machine),
        "network": _network(machine),
    }


def _compile(machine: Machine) -> Ability:
    if not machine.has_compiler:
        return Ability("absent", ("the compiler is not installed; artifacts run without it",))
    return _unless(machine.failures(mlir="the compiler's MLIR"))


def _cpu_ranks(machine: Machine) -> Ability:
    problems = list(_of_any_rank(machine))
    if not machine.found["torch"].error and not machine.facts("torch")["gloo"]:
        problems.append("this PyTorch has no gloo, by which processes on CPUs talk")
    problems += machine.failures(memory="/dev/shm")
    if problems:
        return Ability("broken", tuple(problems))
    free = machine.facts("memory")["free_shared_bytes"]
    if free < SMALL_SHARED_BYTES:
        few = f"/dev/shm has {free >> 20} MiB free, and ranks of a node share memory there"
        return Ability("ready", (f"{few}: in a container, --shm-size",))
    return Ability("ready")


def _of_any_rank(machine: Machine) -> Iterator[str]:
    """What keeps every rank from running, on whatever device."""
    yield from machine.failures(torch="PyTorch", triton="Triton")
    if not machine.facts("native").get("built_in"):
        yield from machine.failures(c_compiler="the C compiler")
    yield from machine.failures(cache="the cache")
    if machine.facts("cache").get("problem"):
        yield machine.facts("cache")["problem"]


def _triton_kernels(machine: Machine) -> Ability:
    without = _without_gpus(machine)
    if without is not None:
        return without
    old = [index for index, gpu in enumerate(machine.gpus) if _capability(gpu) < OLDEST]
    if old:
        return Ability("absent", (f"{_named(old)} older than sm_{OLDEST[0]}{OLDEST[1]}",))
    no_f8 = [index for index, gpu in enumerate(machine.gpus) if _capability(gpu) < CASTS_F8]
    notes = (f"{_named(no_f8)} too old for casts of f8e4m3",) if no_f8 else ()
    return _unless(_of_any_rank(machine), notes)


def _cuda_kernels(machine: Machine) -> Ability:
    without = _without_gpus(machine)
    if without is not None:
        return without
    small = [
        index
        for index, gpu in enumerate(machine.gpus)
        if _capability(gpu) < OLDEST or gpu["shared_bytes"] < OLDEST_SHARED_BYTES
    ]
    if small:
        needs = f"CUDA kernels need {OLDEST_SHARED_BYTES >> 10} KiB of shared memory for a CTA"
        return Ability("absent", (f"{_named(small)} too small, {needs}: Triton kernels serve",))
    problems = list(_of_any_rank(machine))
    problems += machine.failures(cuda_compiler="only artifacts with machine code (--cubin)")
    try:
        for gpu in machine.gpus:
            kernels_capability(_capability(gpu))
    except OptionError as error:
        problems.append(str(error))
    return _unless(iter(problems))


def _gpus_of_one_node(machine: Machine) -> Ability:
    without = _without_gpus(machine)
    if without is not None:
        return without
    gpus = machine.gpus
    if len(gpus) == 1:
        return Ability("absent", ("there is one GPU",))
    apart = [
        f"{one} and {other}"
        for one in range(len(gpus))
        for other in range(one + 1, len(gpus))
        if other not in gpus[one]["peers"] or one not in gpus[other]["peers"]
    ]
    if apart:
        reason = f"GPUs {', '.join(apart)} cannot address each other's memory"
        return Ability("absent", (f"{reason}: give them other nodes by NCCL_HOSTID",))
    return Ability("ready", _beyond_host(gpus))


def _beyond_host(gpus: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Whether GPUs of other hosts can be of the same node."""
    problems = {gpu["fabric"]["problem"] for gpu in gpus}
    if problems == {None}:
        return ("with those of other hosts that have the same cluster and clique",)
    if {gpu["fabric"]["cluster"] for gpu in gpus} - {None, NO_CLUSTER}:
        found = "; ".join(sorted(filter(None, problems)))
        return (f"with those of other hosts not, for all their NVLink domain: {found}",)
    return ()


def _network(machine: Machine) -> Ability:
    problems = list(machine.failures(torch="PyTorch", network="network interfaces"))
    if problems:
        return Ability("broken", tuple(problems))
    facts = machine.facts("network")
    names = [each["name"] for each in facts["interfaces"]]
    up = [each for each in facts["interfaces"] if each["name"] != "lo" and each["state"] != "down"]
    if not up:
        return Ability("absent", ("no network interface is up but loopback",))
    problems += _wrong_interfaces(machine.environment, names)
    if machine.gpus and machine.facts("torch")["nccl"] is None:
        problems.append("this PyTorch has no NCCL, by which GPUs of several nodes talk")
    return _unless(iter(problems), tuple(_of_transport(machine)))


def _wrong_interfaces(environment: Mapping[str, str], names: list[str]) -> Iterator[str]:
    """Variables that name interfaces which are not there: libraries fail with less clear words."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        said = environment.get(variable, "")
        if not said or said.startswith("^"):  # those that are not to be used
            continue
        wanted = said.removeprefix("=").split(",")
        if not any(name.startswith(prefix) for prefix in wanted for name in names):
            yield f"{variable} is {said}; there are {', '.join(names)}"


def _of_transport(machine: Machine) -> Iterator[str]:
    """What is to be known of the way between nodes."""
    if not machine.gpus:
        yield "gloo between processes on CPUs: there is no GPU"
        return
    active = [
        each["name"]
        for each in machine.facts("network")["rdma_devices"]
        if "ACTIVE" in (each["state"] or "")
    ]
    if machine.environment.get("NCCL_IB_DISABLE", "0") != "0":
        yield "sockets: NCCL_IB_DISABLE is set"
    elif not active:
        yield "sockets: no InfiniBand or RoCE device is active"
    else:
        yield f"RDMA by {', '.join(active)}"
        if machine.facts("memory").get("max_locked_bytes") is not None:
            yield "locked memory is limited, and RDMA needs much: ulimit -l unlimited"
        if machine.facts("network")["peer_memory"] is None:
            yield "nvidia_peermem is not loaded: RDMA reaches GPU memory by DMA-BUF, or not at all"
    if "CUDA_DEVICE_MAX_CONNECTIONS" not in machine.environment:
        yield "CUDA_DEVICE_MAX_CONNECTIONS=32 gives every stream of the hop a queue of its own"


def _without_gpus(machine: Machine) -> Ability | None:
    """Why no GPU can be used; ``None`` if one can."""
    if machine.gpus:
        return None
    problems = list(machine.failures(torch="PyTorch", gpus="looking for GPUs"))
    if problems:
        return Ability("broken", tuple(problems))
    facts = machine.facts("gpus")
    if not facts["device_files"] and facts["driver"] is None:
        return Ability("absent", ("there is no GPU",))
    if machine.facts("torch")["cuda"] is None:
        return Ability("broken", ("there are GPUs, and this PyTorch is built without CUDA",))
    said = facts["problem"] or "are they hidden by CUDA_VISIBLE_DEVICES?"
    return Ability("broken", (f"there are GPUs, and PyTorch finds none: {said}",))


def _unless(problems: Iterator[str], notes: tuple[str, ...] = ()) -> Ability:
    found = tuple(problems)
    return Ability("broken", found) if found else Ability("ready", notes)


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = gpu["capability"]
    return major, minor


def _named(gpus: list[int]) -> str:
    numbers = ", ".join(map(str, gpus))
    return f"GPU {numbers} is" if len(gpus) == 1 else f"GPUs {numbers} are"
