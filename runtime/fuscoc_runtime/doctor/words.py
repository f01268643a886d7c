"""A report as sections of rows, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fuscoc_runtime.doctor.report import Report

Row: TypeAlias = tuple[str, str]

ABILITIES = {
    "compile": "compile specs",
    "cpu_ranks": "ranks on CPUs",
    "triton_kernels": "Triton kernels on GPUs",
    "cuda_kernels": "CUDA kernels of one node",
    "gpus_of_one_node": "several GPUs as one node",
    "network": "several nodes",
}
"""What each of ``Report.abilities`` is called."""


@dataclass(frozen=True)
class Section:
    """Rows of a name and what there is to say of it, under a title."""

    title: str
    rows: tuple[Row, ...]


def sections(report: Report) -> list[Section]:
    """All that was found; last what can run, with the reasons."""
    found = report.document
    versions = [(name, version or "-") for name, version in found["versions"].items()]
    written: list[tuple[str, list[Row]]] = [
        ("Versions", versions),
        ("GPUs", list(_gpus(found["gpus"]))),
        ("Compilers", list(_compilers(found))),
        ("Memory and cache", list(_memory(found["memory"], found["cache"]))),
        ("Network", list(_network(found["network"]))),
        ("NCCL between two GPUs", list(_nccl_jobs(found["nccl_jobs"] or {}))),
        ("Environment", list(found["environment"].items())),
        ("What can run here", list(_abilities(report))),
    ]
    return [Section(title, tuple(rows)) for title, rows in written if rows]


def _gpus(found: Mapping[str, Any]) -> Iterator[Row]:
    if found["error"] is not None:
        yield "", found["error"]
    for index, gpu in enumerate(found.get("devices", ())):
        major, minor = gpu["capability"]
        peers = ", ".join(map(str, gpu["peers"])) or "none"
        yield (
            f"GPU {index}",
            f"{gpu['name']}, sm_{major}{minor}, {gpu['num_sms']} SMs, "
            f"{_size(gpu['memory_bytes'])}, {_size(gpu['shared_bytes'])} of shared memory for a "
            f"CTA; peers {peers}; {_fabric(gpu['fabric'])}",
        )


def _fabric(found: Mapping[str, Any]) -> str:
    if found["state"] is None:
        return f"NVLink domain not known: {found['problem']}"
    where = f"clique {found['clique']} of cluster {found['cluster']}"
    said = f"NVLink domain {found['state']}, {where}, health {found['health_mask']:#x}"
    return (
        said if found["problem"] is None else f"{said}, not used between hosts: {found['problem']}"
    )


def _compilers(found: Mapping[str, Any]) -> Iterator[Row]:
    c, cuda = found["c_compiler"], found["cuda_compiler"]
    yield "C", c["error"] or f"{c['command']}: {c['version']}"
    came = found["native"].get("built_in")
    yield "what is written in C", "built in" if came else "compiled at first use"
    yield "CUDA", cuda["error"] or f"{cuda['path'] or cuda['kind']}: {cuda['version']}"


def _memory(memory: Mapping[str, Any], cache: Mapping[str, Any]) -> Iterator[Row]:
    if memory["error"] is not None:
        yield "/dev/shm", memory["error"]
    else:
        free, whole = _size(memory["free_shared_bytes"]), _size(memory["shared_bytes"])
        yield "/dev/shm", f"{free} free of {whole}"
        locked, files = memory["max_locked_bytes"], memory["max_open_files"]
        yield "locked memory", "unlimited" if locked is None else _size(locked)
        yield "open files", "unlimited" if files is None else str(files)
    if cache["error"] is not None:
        yield "cache", cache["error"]
    else:
        trusted = "trusted" if cache["problem"] is None else f"not used: {cache['problem']}"
        files = f"{cache['num_files']} files, {_size(cache['num_bytes'])}"
        yield "cache", f"{cache['path']}, {files}, {trusted}"


def _network(found: Mapping[str, Any]) -> Iterator[Row]:
    if found["error"] is not None:
        yield "", found["error"]
    for each in found.get("interfaces", ()):
        speed = f", {each['mbit_per_s']} Mbit/s" if each["mbit_per_s"] is not None else ""
        yield each["name"], f"{each['state'] or 'state unknown'}{speed}"
    for each in found.get("rdma_devices", ()):
        yield f"{each['name']} port {each['port']}", f"{each['state']}, {each['rate']}"


def _nccl_jobs(jobs: Mapping[str, Any]) -> Iterator[Row]:
    for name, job in jobs.items():
        said = [", ".join(job["transports"]) or "no transport told"]
        if job["num_p2p_channels"] is not None:
            collective, p2p = job["num_collective_channels"], job["num_p2p_channels"]
            said.append(f"{collective} channels of collectives, {p2p} of point-to-point operations")
        if job["network"] is not None:
            said.append(f"network {job['network']}")
        yield name.replace("_", " "), job["problem"] or "; ".join(said)


def _abilities(report: Report) -> Iterator[Row]:
    for name, ability in report.abilities.items():
        yield (
            ABILITIES[name],
            ": ".join([ability.state, *filter(None, ["; ".join(ability.reasons)])]),
        )


def _size(num_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >> shift:
            return f"{num_bytes / (1 << shift):.1f} {unit}"
    return f"{num_bytes} B"
