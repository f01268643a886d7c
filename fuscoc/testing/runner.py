"""``fuscoc test``: property tests of a user's own spec, without a line of test code."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import fuscoc
from fuscoc import driver
from fuscoc.planning.files import Routing, RoutingFileError
from fuscoc.source import read_source
from fuscoc.testing.execution import check_execution
from fuscoc.testing.planning import check_planning
from fuscoc.testing.report import Failure, PropertyReport, TestReport, show
from fuscoc.testing.routes import NoRoutingError
from fuscoc.testing.spec import Spec, load_spec, load_specs
from fuscoc.testing.strategies import cases, fits
from fuscoc.testing.violations import PlanViolation
from fuscoc_runtime.errors import ArtifactError, OptionError
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology

EXECUTION_LIMITS = {"max_nodes": 3, "max_ranks_per_node": 2}
"""Topologies on which kernels are interpreted; plans are checked on up to 8 x 8."""

PLANS_PER_EXECUTION = 10
PROPERTIES = ("plan", "execution")

Property = Callable[[Routing], None]


def run_tests(
    spec_path: str | Path,
    *,
    examples: int = 200,
    seed: int | None = None,
    replay: str | Path | None = None,
    artifact: str | Path | None = None,
    topologies: Sequence[str] = (),
    shuffle: str | None = None,
    properties: Sequence[str] = PROPERTIES,
    defines: Mapping[str, int] | None = None,
    save_to: str | Path = "build/failures",
    console: Console | None = None,
) -> TestReport:
    """Test every shuffle of a spec on random topologies, sizes and routings, and print the result.

    Two properties: ``plan``, every invariant of the plan (``examples`` routings, up to 8 x 8
    ranks); and ``execution``, the generated kernels on all ranks in lockstep against the
    references (a tenth as many, up to 3 x 2 ranks). A failing example is shrunk, shown and
    saved below ``save_to``.

    Args:
        seed: repeats a run; default: a random one, which the report names.
        replay: a saved routing; only this is tested, and nothing is drawn.
        artifact: test this artifact instead of compiling the spec, against what the spec says.
        topologies: such as ``2x4``: draw only these, for both properties.
        shuffle: test only this one of several.
        properties: which of ``PROPERTIES`` to test.
        defines: overrides constants of the spec.

    Raises:
        CompileError: the spec has errors, or cannot run on the topologies.
        OptionError: there is no such property.
        TopologyError: one of them is no topology.
        UnknownShuffleError: the spec has no such shuffle.
        ArtifactError: ``artifact`` is none of this spec.
        NoRoutingError: there are no routings on the topologies.
        RoutingFileError: ``replay`` holds no routing of this spec.
    """
    for each in properties:
        if each not in PROPERTIES:
            raise OptionError("properties", f"has {each!r}; there are {', '.join(PROPERTIES)}")
    path, console = Path(spec_path), console or Console()
    seed = random.randrange(2**32) if seed is None else seed
    overrides: dict[str, Any] = dict(defines or {})
    specs = load_specs(path, **overrides)
    if shuffle is not None:
        specs = [load_spec(path, shuffle, **overrides)]
    on = [Topology.parse(each) for each in topologies]
    if on:
        driver.check_source(read_source(path), overrides, topologies)
        _check_fit(specs, on)
    if replay is not None:
        specs, routing = _find(specs, Path(replay))
    with tempfile.TemporaryDirectory(prefix="fuscoc-test-") as scratch:
        built = Path(artifact) if artifact is not None else None
        if built is not None:
            _check_artifact(built, specs)
        elif "execution" in properties:
            built = fuscoc.compile(path, Path(scratch) / "artifact", **overrides)
        reports = []
        for spec in specs:
            for name in properties:
                check = _property(spec, name, built)
                if replay is not None:
                    reports.append(_replay(spec, name, check, routing, Path(replay)))
                    continue
                saved = Path(save_to) / f"{path.stem}.{spec.shuffle.name}.{name}.npz"
                reports.append(_search(spec, name, check, examples, seed, on, saved, console))
    report = TestReport(path, seed, tuple(reports), overrides, built if artifact else None, on)
    show(report, console)
    return report


def _check_fit(specs: Sequence[Spec], topologies: Sequence[Topology]) -> None:
    for spec in specs:
        for topology in topologies:
            if not fits(spec, topology):
                raise NoRoutingError(
                    f"`{spec.shuffle.name}` has sizes that {topology.num_ranks} ranks ({topology}) "
                    f"do not divide"
                )


def _check_artifact(artifact: Path, specs: Sequence[Spec]) -> None:
    """It holds the shuffles, with the constants of the specs."""
    loaded = load_artifact(artifact)
    for spec in specs:
        theirs, ours = (
            loaded.shuffle(spec.shuffle.name).declared.constants,
            spec.shuffle.declared.constants,
        )
        if theirs != ours:
            texts = [
                " ".join(f"{k}={v}" for k, v in sorted(each.items())) for each in (theirs, ours)
            ]
            raise ArtifactError(
                str(artifact), f"was compiled with {texts[0]}; to be tested with {texts[1]}"
            )


def _property(spec: Spec, name: str, artifact: Path | None) -> Property:
    if name == "plan":
        return partial(check_planning, spec)
    assert artifact is not None
    return partial(check_execution, artifact, spec)


def _search(
    spec: Spec,
    name: str,
    check: Property,
    examples: int,
    seed: int,
    on: Sequence[Topology],
    saved: Path,
    console: Console,
) -> PropertyReport:
    """Look for a counterexample; hypothesis runs the smallest one last."""
    limits = EXECUTION_LIMITS if name == "execution" else {}
    count = max(1, examples // PLANS_PER_EXECUTION) if name == "execution" else examples
    failing: list[tuple[Routing, Exception]] = []
    num_run = 0
    with _progress(console) as progress:
        task = progress.add_task(f"{spec.shuffle.name}: {name}", total=count)

        @seeded(seed)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(cases(spec, on=on, **limits))
        def holds(routing: Routing) -> None:
            nonlocal num_run
            num_run += 1
            if failing:
                progress.update(task, description=f"{spec.shuffle.name}: {name}: shrinking")
            else:
                progress.advance(task)
            try:
                check(routing)
            except Exception as error:
                failing.append((routing, error))
                raise

        try:
            holds()
        except Exception as error:
            if not failing:
                raise
            routing, found = failing[-1]
            saved.parent.mkdir(parents=True, exist_ok=True)
            routing.save(saved)
            failure = _failure(routing, found, saved, _decorator(error))
            return PropertyReport(spec.shuffle.name, name, num_run, failure)
    return PropertyReport(spec.shuffle.name, name, num_run, None)


def _find(specs: list[Spec], file: Path) -> tuple[list[Spec], Routing]:
    """The shuffle whose routing ``file`` holds."""
    problems = []
    for spec in specs:
        try:
            return [spec], Routing.load(file, spec.shuffle)
        except RoutingFileError as error:
            problems.append(error)
    raise problems[-1]


def _replay(spec: Spec, name: str, check: Property, routing: Routing, file: Path) -> PropertyReport:
    failure = None
    try:
        check(routing)
    except Exception as error:
        failure = _failure(routing, error, file, None)
    return PropertyReport(spec.shuffle.name, name, 1, failure)


def _failure(routing: Routing, error: Exception, saved: Path, reproduce: str | None) -> Failure:
    invariant = error.invariant if isinstance(error, PlanViolation) else None
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return Failure(routing, f"{kind}{error}", invariant, saved, reproduce)


def _decorator(error: Exception) -> str | None:
    """The ``@reproduce_failure(...)`` that hypothesis notes on the error."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    found = re.search(r"@reproduce_failure\(.*?\)(?= as a decorator)", notes, re.DOTALL)
    return found[0] if found else None


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
