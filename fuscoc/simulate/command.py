"""What ``fuscoc simulate`` does, behind its options."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, track

from fuscoc.planning.command import check_extra, open_shuffle
from fuscoc.planning.points import each_points
from fuscoc.planning.routing import make_routing
from fuscoc.simulate.clusters import GB, MICROSECOND, Cluster, load_cluster
from fuscoc.simulate.contenders import (
    AUTO,
    CONTENDERS,
    FUSCOC,
    Contender,
    Rewrite,
    SimulationError,
    ablated,
    contender,
)
from fuscoc.simulate.counts import Counts, Int64Array, Sharing, count
from fuscoc.simulate.record import AblationRow, Record, Run, SweepPoint
from fuscoc.simulate.runs import PathProgress, simulate
from fuscoc.simulate.tables import show
from fuscoc_runtime import Topology
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData

SWEEPS: Mapping[str, tuple[str, float]] = {
    "nic": ("nic", GB),
    "nvlink": ("nvlink", GB),
    "hbm": ("hbm", GB),
    "latency": ("latency", MICROSECOND),
    "oversubscription": ("oversubscription", 1.0),
}
"""What ``--sweep`` takes besides ``tokens``: the field of a ``Cluster``, and its unit."""


@dataclass(frozen=True)
class SimulateOptions:
    """``against``: names of ``CONTENDERS``. ``sweep``: a name and its values. ``layers``: layers of
    the model that shuffle."""

    cluster: str
    tokens: int | None = None
    traffic: str = "uniform"
    against: tuple[str, ...] = ()
    ablate: bool = False
    sweep: tuple[str, tuple[float, ...]] | None = None
    layers: int = 1
    seed: int = 0
    json: Path | None = None
    html: Path | None = None


@dataclass
class Workload:
    """A shuffle on a cluster, and the counts of its routing, made once for all contenders.

    ``module``: the shuffle's own, at L0.
    """

    shuffle: ShuffleSpec
    module: Any
    cluster: Cluster
    traffic: str = "uniform"
    tokens: int | None = None
    seed: int = 0
    console: Console | None = None
    counted: dict[Sharing, Counts] = field(default_factory=dict)
    num_tokens: int = 0

    @property
    def topology(self) -> Topology:
        return Topology(self.cluster.nodes, self.cluster.ranks_per_node)

    def count(
        self, contenders: Iterable[Contender], ranks: Sequence[RankData] | None = None
    ) -> None:
        """Route, and count what every contender's program makes of it, if nobody has.

        ``ranks``: inputs that are given, instead of made up.
        """
        missing = {Sharing.of(each.program) for each in contenders} - self.counted.keys()
        if not missing:
            return

        def progress(ranks: Iterable[int]) -> Iterable[int]:
            return track(ranks, "routing", console=self.console, transient=True)

        if ranks is None:
            ranks = make_routing(
                self.shuffle, self.topology, self.traffic, self.tokens, self.seed,
                progress if self.console is not None else iter,
            )  # fmt: skip
        self.counted |= count(self._destinations(ranks), self.topology, missing)
        self.num_tokens = int(next(iter(self.counted.values())).sources.max())

    def _destinations(self, ranks: Sequence[RankData]) -> Iterator[Int64Array]:
        fanout = self.shuffle.program.num_points_each(self.topology.num_ranks)
        for points in each_points(self.module, self.shuffle, self.topology, ranks):
            rank = points.columns["rank"]
            live = (rank >= 0) & (rank < self.topology.num_ranks)
            yield np.where(live, rank, -1).reshape(-1, fanout)

    def counts(self, found: Contender, ranks: Sequence[RankData] | None = None) -> Counts:
        """Of one contender's program; see ``count``."""
        self.count([found], ranks)
        return self.counted[Sharing.of(found.program)]


def run(
    what: Path,
    name: str | None,
    defines: Mapping[str, int],
    options: SimulateOptions,
    console: Console | None = None,
) -> Record:
    """Simulate the shuffle of a spec or artifact, print it, and write the files asked for.

    Tables go to ``console``, default stdout; progress to stderr.

    Raises:
        SimulationError, LookupError: there is no such contender, cluster or sweep.
        MissingExtraError: a page is asked for, and what draws it is not installed.
        CompileError: the spec, or the cluster's file, has errors.
        ArtifactError: there is no such shuffle.
        RoutingError, FuscoRuntimeError: the routing does not fit it.
        OSError: a file cannot be read or written.
    """
    console, aside = console or Console(), Console(stderr=True)
    for path in filter(None, (options.json, options.html)):
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    write_page = page_writer() if options.html is not None else None
    rewrites = chosen(options)
    cluster = load_cluster(options.cluster)
    if options.sweep is not None:
        check_sweep(options.sweep[0])
    torch.set_num_threads(1)
    with aside.status(f"opening {what}"):
        shuffle, module = open_shuffle(what, name, defines)
    workload = Workload(
        shuffle, module, cluster, options.traffic, options.tokens, options.seed, aside
    )
    record = simulate_all(workload, rewrites, options, aside)
    show(record, options.layers, cluster, console)
    if options.json is not None:
        record.save(options.json)
        aside.print(f"wrote {options.json}")
    if write_page is not None and options.html is not None:
        with aside.status("drawing"):
            write_page(record, options.html)
        aside.print(f"wrote {options.html}")
    return record


def chosen(options: SimulateOptions) -> dict[str, Rewrite]:
    """The contenders that are asked for, fuscoc first.

    Raises SimulationError: there is no such contender.
    """
    for each in options.against:
        if each not in CONTENDERS:
            raise SimulationError(f"no contender `{each}`; there are {', '.join(CONTENDERS)}")
    return {each: CONTENDERS[each] for each in (FUSCOC, *options.against)}


def check_sweep(name: str) -> None:
    """Raise SimulationError unless there is such a sweep."""
    if name != "tokens" and name not in SWEEPS:
        raise SimulationError(f"cannot sweep `{name}`; only {', '.join(('tokens', *SWEEPS))}")


def page_writer() -> Callable[[Record, Path], None]:
    """What writes the page; raises MissingExtraError where it cannot."""
    check_extra()
    from fuscoc.simulate.explorer import write

    return write


def simulate_all(
    workload: Workload, rewrites: Mapping[str, Rewrite], options: SimulateOptions, aside: Console
) -> Record:
    """Contenders, ablation and sweep, as a record."""
    shuffle, cluster = workload.shuffle, workload.cluster
    made = [contender(name, each, workload.module) for name, each in rewrites.items()]
    without = [
        contender(f"without {name}", each, workload.module)
        for name, each in (ablated(AUTO).items() if options.ablate else ())
    ]
    with aside.status(f"counting {cluster.num_ranks} ranks"):
        workload.count([*made, *without])
    with bars(aside) as progress:
        runs = [simulate(each, workload.counts(each), cluster, progress=progress) for each in made]
        rows = [
            simulate(each, workload.counts(each), cluster, detailed=False, progress=progress)
            for each in without
        ]
        points = list(sweep(workload, made, options.sweep)) if options.sweep is not None else []
    return Record(
        title=f"{shuffle.name} on {cluster.title}",
        source="simulation",
        spec=shuffle.name,
        traffic=options.traffic,
        tokens=workload.num_tokens,
        cluster=cluster.record(),
        runs=tuple(runs),
        sweep=tuple(points),
        ablation=tuple(_ablation(runs[0], row) for row in rows),
    )


def _ablation(whole: Run, row: Run) -> AblationRow:
    change = (whole.seconds - row.seconds) / row.seconds
    return AblationRow(row.contender.removeprefix("without "), row.seconds, change)


def sweep(
    workload: Workload, contenders: Sequence[Contender], wanted: tuple[str, tuple[float, ...]]
) -> Iterator[SweepPoint]:
    """Every contender for every value."""
    name, values = wanted
    for value in values:
        if name == "tokens":
            other = replace(workload, tokens=int(value), counted={}, console=None)
        else:
            place, unit = SWEEPS[name]
            changes: dict[str, Any] = {place: value * unit}
            other = replace(workload, cluster=replace(workload.cluster, **changes))
        other.count(contenders)
        for each in contenders:
            found = simulate(each, other.counts(each), other.cluster, detailed=False)
            yield SweepPoint(name, value, each.name, found.seconds)


@contextmanager
def bars(console: Console) -> Iterator[PathProgress]:
    """A bar for every call that is simulated, gone when all are."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:

        def begin(name: str) -> Any:
            task = progress.add_task(name, total=1.0)
            return lambda part: progress.update(task, completed=part)

        yield begin
