"""``fuscoc test``: planted bugs are found, shrunk, shown, saved and replayed."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reproduce_failure
from rich.console import Console

import fuscoc
from fuscoc import CompileError
from fuscoc.testing import (
    Routing,
    RoutingFileError,
    Spec,
    TestReport,
    cases,
    check_execution,
    check_planning,
    load_spec,
    planning,
    run_lockstep_shuffle,
    run_tests,
    runner,
    topologies,
)
from fuscoc.testing.routes import NoRoutingError
from fuscoc_runtime.errors import ArtifactError, OptionError, TopologyError
from fuscoc_runtime.plan import Plan, plan_all
from fuscoc_runtime.topology import Topology
from tests.altered import digest_anew
from tests.testing import broken

VIT = Path(__file__).parents[2] / "examples" / "vit_patches.fsc"


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.fsc"
    path.write_text(broken.TEXT)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuscoc.compile(broken.TEXT, tmp_path_factory.mktemp("artifact") / "rows")


def outcome(path: Path, **options: Any) -> tuple[TestReport, str]:
    """Run the tests of a spec; the report and what was printed."""
    console = Console(file=io.StringIO(), width=100)
    options = {"seed": 1, "save_to": path.parent / "failures", **options}
    report = run_tests(path, console=console, **options)
    assert isinstance(console.file, io.StringIO)
    return report, console.file.getvalue()


def live_points(routing: Routing) -> int:
    return sum(int((data.inputs["keys_of"] >= 0).sum()) for data in routing.ranks)


def test_a_correct_spec_passes(spec_file: Path) -> None:
    report, printed = outcome(spec_file, examples=30)
    assert report.passed
    assert [(each.name, each.num_examples) for each in report.properties] == [
        ("plan", 30),
        ("execution", 3),
    ]
    assert "rows: plan: ok (30 examples)" in printed


def test_ragged_sources_and_constants_from_outside() -> None:
    report, _ = outcome(VIT, examples=20, defines={"p": 2})
    assert report.passed


def test_a_planted_placement_bug_is_found_and_shrunk(
    spec_file: Path, built: Path, tmp_path: Path
) -> None:
    """The artifact deals the keys out one by one; the spec says in blocks."""
    planted = copy_artifact(built, tmp_path / "planted")
    manifest = json.loads((planted / "manifest.json").read_text())
    manifest["shuffles"][0]["program"]["target"]["placement"]["kind"] = "cyclic"
    (planted / "manifest.json").write_text(json.dumps(manifest))
    digest_anew(planted)

    report, printed = outcome(spec_file, artifact=planted, examples=100)
    plan, execution = report.properties
    assert plan.failure is None
    failure = execution.failure
    assert failure is not None
    assert failure.invariant == "check_relation"
    assert failure.routing.topology.num_ranks == 2
    assert sum(data.extents["num_rows"] for data in failure.routing.ranks) == 0
    assert "the artifact places key 1 on rank 1; the spec places it on rank 0" in printed
    assert "@reproduce_failure(" in printed

    assert failure.saved is not None
    again, _ = outcome(spec_file, artifact=planted, replay=failure.saved)
    assert [each.failure is None for each in again.properties] == [True, False]
    assert outcome(spec_file, artifact=built, replay=failure.saved)[0].passed


def test_a_planted_kernel_bug_is_found_and_shrunk(spec_file: Path, tmp_path: Path) -> None:
    """The relation kernel looks up the owner of the next key."""
    spec_file.write_text(broken.TEXT.replace("keys = 12, fan = 4", "keys = 2, fan = 1"))
    planted = fuscoc.compile(spec_file, tmp_path / "planted")
    kernels = planted / "kernels" / "rows.py"
    text = kernels.read_text()
    wrong = text.replace("tl.where(is_key, keys_of_value, 0)", "(keys_of_value + 1) % 2")
    assert wrong != text
    kernels.write_text(wrong)
    digest_anew(planted)

    report, printed = outcome(spec_file, artifact=planted, examples=100, properties=["execution"])
    failure = report.properties[0].failure
    assert failure is not None
    assert failure.invariant == "check_relation"
    assert "the kernel gives point" in printed
    assert failure.routing.topology.num_ranks == 2
    assert sum(data.extents["num_rows"] for data in failure.routing.ranks) == 1
    assert live_points(failure.routing) == 1


def wrong_slot(*arguments: Any, **options: Any) -> Plan:
    """A planner that writes a rank's second local row one slot too far."""
    plan = plan_all(*arguments, **options)
    for each in plan.ranks:
        if len(each.lists["direct"]["dst_slot"]) > 1:
            ranks = list(plan.ranks)
            lists = {name: dict(columns) for name, columns in each.lists.items()}
            lists["direct"]["dst_slot"] = lists["direct"]["dst_slot"].copy()
            lists["direct"]["dst_slot"][1] += 1
            ranks[each.rank] = replace(each, lists=lists)
            return replace(plan, ranks=tuple(ranks))
    return plan


def test_a_planted_planner_bug_is_found_and_reproduced(
    spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "plan_all", wrong_slot)
    report, printed = outcome(spec_file, examples=100, properties=["plan"])
    failure = report.properties[0].failure
    assert failure is not None
    assert failure.invariant in ("check_writes", "check_lists")
    assert failure.routing.topology.num_ranks <= 2
    assert live_points(failure.routing) == 2
    assert "direct[1] on rank 0 (NVLink hop)" in printed

    assert failure.reproduce is not None
    scope = {"reproduce_failure": reproduce_failure}
    decorate = eval(failure.reproduce.removeprefix("@"), scope)
    seen = []

    @decorate  # type: ignore[untyped-decorator]
    @given(cases(load_spec(spec_file)))
    def holds(routing: Routing) -> None:
        seen.append(routing)
        check_planning(load_spec(spec_file), routing)

    with pytest.raises(AssertionError):
        holds()
    assert repr(seen[-1]) == repr(failure.routing)


def test_only_the_topologies_that_are_named_are_drawn(
    spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def note(spec: Spec, routing: Routing) -> None:
        seen.add(str(routing.topology))

    monkeypatch.setattr(runner, "check_planning", note)
    options: dict[str, Any] = {"examples": 40, "properties": ["plan"]}
    assert outcome(spec_file, topologies=["2x3", "1x4"], **options)[0].passed
    assert seen == {"2x3", "1x4"}
    with pytest.raises(CompileError, match="12 keys, which 5 ranks"):
        outcome(spec_file, topologies=["2x3", "1x5"], **options)
    with pytest.raises(TopologyError):
        outcome(spec_file, topologies=["2by3"], **options)


def test_topologies_have_to_fit(spec_file: Path) -> None:
    spec_file.write_text(broken.TEXT.replace("num_rows", "12 / ranks").replace("block", "cyclic"))
    with pytest.raises(NoRoutingError, match=r"sizes that 5 ranks \(1x5\) do not divide"):
        outcome(spec_file, topologies=["1x5"], examples=1)


def test_limits_leave_a_topology() -> None:
    with pytest.raises(NoRoutingError, match="no topology of up to 0 nodes of 8 ranks"):
        topologies(max_nodes=0)


def test_properties_have_to_exist(spec_file: Path) -> None:
    with pytest.raises(OptionError, match="`properties` has 'plans'; there are plan, execution"):
        run_tests(spec_file, properties=["execution", "plans"])


def test_a_failure_says_how_to_see_it_again(
    spec_file: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed is run: the command, and the decorators."""

    def refuse(artifact: Path, spec: Spec, routing: Routing) -> None:
        assert not live_points(routing)

    monkeypatch.setattr(runner, "check_execution", refuse)
    options: dict[str, Any] = {"examples": 300, "properties": ["execution"], "defines": {"fan": 4}}
    _, printed = outcome(spec_file, artifact=built, topologies=["2x1"], **options)
    _, command, _, *lines = printed[printed.index("run it again:") :].splitlines()
    saved = tmp_path / "failures" / "rows.rows.execution.npz"
    assert command.split() == [
        *("fuscoc", "test", str(spec_file), "--replay", str(saved)),
        *("-D", "fan=4", "--artifact", str(built)),
    ]
    test = "\n".join(line if "check_" in line else line.strip() for line in lines)
    imports = "from hypothesis import *; from fuscoc.testing import *\n"
    scope = {"Topology": Topology, "artifact": built, "__name__": "user"}
    exec(f"{imports}check_execution = None\n{test}", scope)
    scope["check_execution"] = refuse
    with pytest.raises(AssertionError):
        scope["test"]()


def test_an_artifact_of_other_constants_is_refused(spec_file: Path, built: Path) -> None:
    with pytest.raises(ArtifactError, match="was compiled with fan=4 keys=12; to be tested with"):
        outcome(spec_file, artifact=built, defines={"fan": 2})


def test_replaying_something_else_is_an_error(spec_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RoutingFileError):
        outcome(spec_file, replay=tmp_path / "nothing.npz")


def test_a_lockstep_run_gives_rows_and_brings_them_back(built: Path) -> None:
    run = run_lockstep_shuffle(built, broken.routing())
    assert [len(each.rows["x"]) for each in run.dispatched] == [
        plan.rows.target for plan in broken.plan().ranks
    ]
    results = run.combine([each.rows for each in run.dispatched])
    assert [len(each["x"]) for each in results] == list(broken.ROWS)
    check_execution(built, broken.spec(), broken.routing())


def copy_artifact(built: Path, to: Path) -> Path:
    for file in sorted(built.rglob("*")):
        if file.is_file():
            target = to / file.relative_to(built)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return to
