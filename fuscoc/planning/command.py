"""What ``fuscoc plan`` does, behind its options."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import fuscoc
from fuscoc.lang.policy import SAME_RULE
from fuscoc.planning.files import RoutingError
from fuscoc.planning.modules import read_module
from fuscoc.planning.points import points_of
from fuscoc.planning.routing import make_routing
from fuscoc.planning.tables import show
from fuscoc_runtime import Topology, load_artifact
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Plan, plan_all
from fuscoc_runtime.plan.links import NIC_BANDWIDTH, NVLINK_BANDWIDTH, cost_model

__all__ = ["MissingExtraError", "PlanOptions", "RoutingError", "run"]


@dataclass(frozen=True)
class PlanOptions:
    """``balance``: ``None`` for the spec's. Bandwidths are bytes a second, rank and direction."""

    topology: Topology
    routing: str = "uniform"
    tokens: int | None = None
    balance: str | None = None
    schedule: str = "auto"
    seed: int = 0
    nic_bandwidth: float = NIC_BANDWIDTH
    nvlink_bandwidth: float = NVLINK_BANDWIDTH
    save: Path | None = None
    html: Path | None = None


def run(
    what: Path,
    name: str | None,
    defines: Mapping[str, int],
    options: PlanOptions,
    console: Console | None = None,
) -> Plan:
    """Plan the shuffle of a spec or artifact, print it, and write the files asked for.

    Tables go to ``console``, default stdout; progress to stderr.

    Raises:
        MissingExtraError: a report is asked for, and what draws it is not installed.
        CompileError, ArtifactError: there is no such shuffle.
        RoutingError, FuscoRuntimeError: the routing does not fit it.
        OSError: a file cannot be read or written.
    """
    console, aside = console or Console(), Console(stderr=True)
    for path in filter(None, (options.save, options.html)):
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if options.html is not None:
        check_extra()
    # Ranks are planned one after the other on small tensors, where threads cost more than they do.
    torch.set_num_threads(1)
    with aside.status(f"opening {what}"):
        shuffle, module = open_shuffle(what, name, defines)
    plan = make_plan(shuffle, module, options, aside)
    show(plan, options.routing, console)
    if options.save is not None:
        plan.save(options.save)
        aside.print(f"saved {options.save}")
    if options.html is not None:
        from fuscoc.planning.record import plan_record
        from fuscoc.simulate.explorer import write

        with aside.status("drawing"):
            write(plan_record(plan, options.routing), options.html)
        aside.print(f"wrote {options.html}")
    return plan


class MissingExtraError(RuntimeError):
    """An optional part of fuscoc that is not installed; the message says how to get it."""


def check_extra() -> None:
    """Raise ``MissingExtraError`` unless pages can be written."""
    missing = [name for name in ("jinja2", "plotly") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"a page needs {' and '.join(missing)}: pip install 'fuscoc[plot]'")


def open_shuffle(
    what: Path, name: str | None, defines: Mapping[str, int]
) -> tuple[ShuffleSpec, Any]:
    """The shuffle of an artifact directory, or of a spec, which is compiled, and its module."""
    if what.is_dir():
        shuffle = load_artifact(what).shuffle(name)
        return shuffle, read_module(what, shuffle.name)
    with tempfile.TemporaryDirectory(prefix="fuscoc-") as scratch:
        artifact = load_artifact(fuscoc.compile(what, Path(scratch) / what.stem, **defines))
        try:
            shuffle = artifact.shuffle(name)
        except ArtifactError as error:
            raise ArtifactError(str(what), error.problem) from None
        return shuffle, read_module(artifact.path, shuffle.name)


def make_plan(shuffle: ShuffleSpec, module: Any, options: PlanOptions, console: Console) -> Plan:
    """Route, evaluate the relation and plan, saying so."""
    if options.balance is not None:
        rule = SAME_RULE.get(options.balance, options.balance)
        shuffle = replace(shuffle, program=shuffle.program.with_rules(forwarder=rule))
    model = cost_model(shuffle.program, options.nic_bandwidth, options.nvlink_bandwidth)

    def progress(ranks: Iterable[int]) -> Iterable[int]:
        return track(ranks, "routing", console=console, transient=True)

    ranks = make_routing(
        shuffle, options.topology, options.routing, options.tokens, options.seed, progress
    )
    with console.status("evaluating the relation"):
        points = points_of(module, shuffle, options.topology, ranks)
    with console.status(f"planning {options.topology.num_ranks} ranks"):
        return plan_all(shuffle, options.topology, points, model, schedule=options.schedule)
