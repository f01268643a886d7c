"""What testing a spec found, and how it is shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fuscoc.planning.files import Routing
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True, eq=False)
class Failure:
    """The smallest example that was found.

    ``error``: what is wrong with it. ``invariant``: the check that says so, if it is one of
    ``fuscoc.testing.invariants``. ``saved``: the routing as a file, for ``fuscoc test --replay``.
    ``reproduce``: hypothesis' decorator that makes a test draw this example again, if it was drawn.
    """

    routing: Routing
    error: str
    invariant: str | None
    saved: Path | None
    reproduce: str | None


@dataclass(frozen=True, eq=False)
class PropertyReport:
    """A property of one shuffle, ``plan`` or ``execution``, over ``num_examples`` routings."""

    shuffle: str
    name: str
    num_examples: int
    failure: Failure | None


@dataclass(frozen=True, eq=False)
class TestReport:
    """Everything that ``run_tests`` found; ``seed`` repeats it.

    ``defines``, ``artifact``, ``topologies``: what it was told to test.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    spec: Path
    seed: int
    properties: tuple[PropertyReport, ...]
    defines: Mapping[str, int]
    artifact: Path | None
    topologies: Sequence[Topology]

    @property
    def passed(self) -> bool:
        """Whether every property held."""
        return all(each.failure is None for each in self.properties)


def show(report: TestReport, console: Console) -> None:
    """Print a line for every property, and the failures at length."""
    for each in report.properties:
        verdict = "[green]ok[/]" if each.failure is None else "[red]FAILED[/]"
        console.print(
            f"{each.shuffle}: {each.name}: {verdict} ({each.num_examples} examples)",
            highlight=False,
        )
    for each in report.properties:
        if each.failure is not None:
            console.print()
            console.print(explain(report, each), markup=False, highlight=False, soft_wrap=True)


def explain(report: TestReport, failed: PropertyReport) -> str:
    """A failure as text: what is wrong, the example, and how to see it again."""
    failure = failed.failure
    assert failure is not None
    routing = failure.routing
    lines = [
        f"{failed.shuffle}: {failed.name} fails on {routing.topology} (nodes x ranks per node)",
        f"  {failure.error}",
        "smallest example found; ranks that are not listed have nothing:",
        *(f"  {line}" for line in routing.lines()),
    ]
    if failure.saved is not None:
        lines += ["run it again:", f"  {_command(report, failure.saved)}"]
    if failure.reproduce is not None:
        lines += [
            "draw it again, in a test of your own:",
            *_test(report, failed, failure.reproduce),
        ]
    return "\n".join(lines)


def _command(report: TestReport, saved: Path) -> str:
    words = ["fuscoc", "test", str(report.spec), "--replay", str(saved)]
    for name, value in report.defines.items():
        words += ["-D", f"{name}={value}"]
    if report.artifact is not None:
        words += ["--artifact", str(report.artifact)]
    return shlex.join(words)


def _test(report: TestReport, failed: PropertyReport, reproduce: str) -> list[str]:
    check, arguments = {
        "plan": ("check_planning", "spec, routing"),
        "execution": ("check_execution", "artifact, spec, routing"),
    }[failed.name]
    limits = ", **EXECUTION_LIMITS" if failed.name == "execution" else ""
    if report.topologies:
        limits = f", on={list(report.topologies)}"
    defines = "".join(f", {name}={value}" for name, value in report.defines.items())
    return [
        f'  spec = load_spec("{report.spec}", "{failed.shuffle}"{defines})',
        f"  {reproduce}",
        f"  @given(cases(spec{limits}))",
        "  def test(routing):",
        f"      {check}({arguments})",
    ]
