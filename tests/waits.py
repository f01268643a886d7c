"""Where a host waits for its device, counted where host and device are one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.comm import gather
from fuscoc_runtime.engine.node.report import Report

READS = (
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "nonzero",
)  # fmt: skip
"""What of a tensor takes its values, or their number, to the host."""
RUNTIME, KERNELS = "fuscoc_runtime", "kernels"
FRAMED = gather._difference.__name__
"""Reads what gloo has brought to the host."""


@contextmanager
def host_waits() -> Iterator[list[str]]:
    """Lines of the runtime that read a tensor meanwhile, and "plan" for what planning reports.
    Interpreted kernels do not count, nor what there is on CPUs alone."""
    found: list[str] = []

    def counting(name: str) -> Any:
        read = getattr(torch.Tensor, name)

        def counted(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            caller = sys._getframe(1)
            path = Path(caller.f_code.co_filename)
            is_there = RUNTIME in path.parts and KERNELS not in path.parts
            if is_there and caller.f_code.co_name != FRAMED:
                found.append(f"{path.name}:{caller.f_lineno} {name}")
            return read(tensor, *arguments, **named)

        return counted

    wait = Report.wait

    def for_plan(report: Report, epoch: int) -> Any:
        found.append("plan")
        return wait(report, epoch)

    with ExitStack() as stack:
        for name in READS:
            stack.enter_context(mock.patch.object(torch.Tensor, name, counting(name)))
        stack.enter_context(mock.patch.object(Report, "wait", for_plan))
        yield found
