"""What a user chooses when opening a shuffle, and whether it makes sense."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.topology import Topology

OVERLAP: Literal["overlap"] = "overlap"
ENGINE_VARIABLE, GENERAL = "FUSCOC_ENGINE", "general"
DEVICES = ("cpu", "cuda")
MAX_TIMEOUT = 10**8
"""Seconds, three years: what PyTorch's waits can count."""


def wanted_engine() -> str | None:
    """That which ``$FUSCOC_ENGINE`` names for calls of exact sizes, if it does.

    Raises:
        OptionError: there is no such engine.
    """
    named = os.environ.get(ENGINE_VARIABLE)
    if named and named != GENERAL:
        raise OptionError(ENGINE_VARIABLE, f"is `{named}`; it must be {GENERAL}")
    return named or None


@dataclass(frozen=True)
class Options:
    """What the user chose for one shuffle; see ``Shuffle``. Equal on all ranks.

    Raises:
        OptionError: a number that makes no sense, or none.
    """

    timeout: float | None
    num_sms: int | Literal["overlap"] | None
    max_sources: int | None
    capacity: int | None
    num_handles: int
    slice_bytes: int | None = None
    nic_bandwidth: float | None = None
    trace: bool = False
    zero_unused: bool = True
    engine: str | None = field(default_factory=wanted_engine)

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_timeout(self.timeout)
        if self.nic_bandwidth is not None:
            _check_positive("nic_bandwidth", self.nic_bandwidth)
        if self.num_sms not in (None, OVERLAP):
            check_count("num_sms", self.num_sms, 1, f", or {OVERLAP!r}")
        if self.max_sources is not None:
            check_count("max_sources", self.max_sources, 0)
        for name in ("capacity", "slice_bytes"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        check_count("num_handles", self.num_handles, 1)


def check_timeout(value: Any) -> None:
    """Raise ``OptionError`` unless it is a number of seconds that can be waited for."""
    _check_positive("timeout", value)
    if value > MAX_TIMEOUT:
        raise OptionError("timeout", f"is {value!r}; it must be {MAX_TIMEOUT} seconds or less")


def as_device(device: torch.device | str | None) -> torch.device | None:
    """The device that a user names.

    Raises:
        OptionError: it is neither a CPU nor a CUDA device, or there is none such here.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError:
        raise OptionError("device", f"is {device}; it must be cpu or cuda") from None
    if found.type not in DEVICES:
        raise OptionError("device", f"is {device}; it must be cpu or cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device", f"is {device}; this machine has no CUDA device")
    return found


def as_topology(topology: Topology | str | None) -> Topology | None:
    """The topology that a user names.

    Raises:
        OptionError: it is no topology, such as a tuple of sizes.
        TopologyError: text of another form, or sizes that cannot be.
    """
    if isinstance(topology, str):
        return Topology.parse(topology)
    if topology is None or isinstance(topology, Topology):
        return topology
    raise OptionError("topology", f"is {topology!r}; it must be a Topology, or text such as '2x4'")


def check_count(name: str, value: Any, least: int, otherwise: str = "") -> None:
    """Raise ``OptionError`` unless it is a whole number, ``least`` or more."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and value >= least):
        needed = f"a whole number of {least} or more{otherwise}"
        raise OptionError(name, f"is {value!r}; it must be {needed}")


def _check_positive(name: str, value: Any) -> None:
    if not (isinstance(value, int | float) and value > 0 and math.isfinite(value)):
        raise OptionError(name, f"is {value!r}; it must be a positive number")
