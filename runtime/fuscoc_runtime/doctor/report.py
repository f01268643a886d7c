"""Everything that is to be known of a machine, as one document: ``docs/doctor.schema.json``."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import fuscoc_runtime
from fuscoc_runtime.doctor.abilities import Ability, Found, Machine, abilities
from fuscoc_runtime.doctor.children import Outcome, run_python
from fuscoc_runtime.doctor.nccl import NUM_RANKS, try_nccl
from fuscoc_runtime.doctor.probes import PROBES

SCHEMA = "fuscoc.doctor/2"
LIMIT_SECONDS = 60.0
"""For all probes together, and for each job of NCCL: a first import from a network disk is slow."""

PREFIXES = ("CUDA_", "FUSCOC_", "GLOO_", "NCCL_", "NVSHMEM_", "TORCH_NCCL_", "TRITON_", "UCX_")
VARIABLES = (
    "CC", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE",
    "XDG_CACHE_HOME",
)  # fmt: skip
"""Environment variables that fuscoc, or a library beneath it, follows."""


@dataclass(frozen=True)
class Report:
    """What was found on a machine.

    Attributes:
        document: the JSON document, without the abilities.
        abilities: what of fuscoc can run here.
    """

    document: Mapping[str, Any]
    abilities: Mapping[str, Ability]

    @property
    def healthy(self) -> bool:
        """Whether all works that this machine has; it need not have everything."""
        jobs = self.document["nccl_jobs"] or {}
        working = all(each.get("problem") is None for each in jobs.values())
        return working and all(each.state != "broken" for each in self.abilities.values())

    def as_json(self) -> str:
        """The whole document as text."""
        able = {name: asdict(each) for name, each in self.abilities.items()}
        return json.dumps({**self.document, "healthy": self.healthy, "abilities": able}, indent=2)


def examine(*, nccl: bool = False, seconds: float = LIMIT_SECONDS) -> Report:
    """Look at this machine; nothing is left on it, and nothing outlasts ``seconds``.

    ``nccl`` also starts two jobs of NCCL, one after the other, where there are two GPUs.
    """
    environment = dict(os.environ)
    names = list(PROBES)
    commands = [["-m", "fuscoc_runtime.doctor.probes", name] for name in names]
    outcomes = run_python(commands, [environment] * len(commands), seconds)
    found = {name: _found(each) for name, each in zip(names, outcomes, strict=True)}
    compiler = importlib.util.find_spec("fuscoc")
    has_compiler = compiler is not None and compiler.origin is not None  # not just a folder
    followed = {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES) or name in VARIABLES
    }
    machine = Machine(found, followed, has_compiler)
    tried = nccl and len(machine.gpus) >= NUM_RANKS
    document = {
        "schema": SCHEMA,
        "versions": _versions(machine),
        "environment": followed,
        **{name: {**each.facts, "error": each.error} for name, each in found.items()},
        "nccl_jobs": try_nccl(environment, seconds) if tried else None,
    }
    return Report(document, abilities(machine))


def _found(outcome: Outcome) -> Found:
    if outcome.problem is not None:
        return Found({}, outcome.problem)
    # What a library writes to standard output comes before.
    said = json.loads(outcome.output.splitlines()[-1])
    return Found(said.get("facts", {}), said.get("error"))


def _versions(machine: Machine) -> dict[str, str | None]:
    """By name; ``None`` is not there, or not known."""
    ours = fuscoc_runtime.__version__  # both distributions have the same
    return {
        "fuscoc": ours if machine.has_compiler else None,
        "fuscoc-runtime": ours,
        "python": platform.python_version(),
        **{name: _installed(name) for name in ("torch", "triton", "numpy", "torch-mlir")},
        "nccl": machine.facts("torch").get("nccl"),
        "cuda": machine.facts("torch").get("cuda"),
        "cuda-bindings": _installed("cuda-bindings"),
        "nvidia-driver": machine.facts("gpus").get("driver"),
    }


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
