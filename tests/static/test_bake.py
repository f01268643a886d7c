"""Plans made when compiling: the same as those made when running, and used instead of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fuscoc.bake import make_plan
from fuscoc.diagnostics import CompileError
from fuscoc.planning.modules import read_module
from fuscoc_runtime.comm.lockstep import COLLECTIVES
from fuscoc_runtime.comm.requests import AllToAll, AllToAlls, StartGather
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.errors import ArtifactError, InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.plan import Plan, RankPlan
from fuscoc_runtime.topology import Topology
from tests.static import specs
from tests.static.test_examples import Ranks

TOPOLOGIES = ("1x4", "2x2", "4x1")
BAKED: dict[str, Callable[..., Artifact]] = {
    "ulysses": specs.ulysses,
    "redistribute": specs.redistribute,
    "transpose": lambda *topologies: specs.artifact(specs.TRANSPOSE, topologies),
    "broadcast": lambda *topologies: specs.artifact(specs.BROADCAST, topologies),
    "lopsided": lambda *topologies: specs.artifact(specs.LOPSIDED, topologies),
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[StartGather | AllToAll | AllToAlls]:
    """What rank 0 asks of the others, other than to move rows."""
    seen: list[StartGather | AllToAll | AllToAlls] = []

    def record(kind: type) -> Callable[[Sequence[Any]], Sequence[Any]]:
        answer = COLLECTIVES[kind]

        def recorded(asked: Sequence[Any]) -> Sequence[Any]:
            seen.append(asked[0])
            return answer(asked)

        return recorded

    for kind in (StartGather, AllToAll, AllToAlls):
        monkeypatch.setitem(COLLECTIVES, kind, record(kind))
    return seen


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    launch = Machine.launch

    def record(self: Machine, kernel: str, values: Any, num_programs: int) -> None:
        names.add(kernel)
        launch(self, kernel, values, num_programs)

    monkeypatch.setattr(Machine, "launch", record)
    return names


def source_of(artifact: Artifact, ranks: int) -> list[torch.Tensor]:
    """Different values on every rank, of the shape that a dispatch takes there."""
    spec = artifact.shuffle()
    plan = make_plan(read_module(artifact.path, spec.name), spec, Topology(1, ranks)).ranks[0]
    shape = {"ulysses": (16 // ranks, 8, 4), "transpose": (12 // ranks, 16)}
    rows = shape.get(spec.name, (plan.num_sources, *spec.declared.fields[0].shape))
    dtype = torch.bfloat16 if spec.name == "ulysses" else torch.float32
    return [torch.randn(rows).to(dtype) for _ in range(ranks)]


def assert_same(found: RankPlan, wanted: RankPlan) -> None:
    assert found.lists.keys() == wanted.lists.keys()
    for name, columns in wanted.lists.items():
        assert found.lists[name].keys() == columns.keys()
        for column, values in columns.items():
            assert torch.equal(found.lists[name][column], values)
    for name in ("num_sources", "rows", "max_rows", "net_send_counts", "point_recv_counts"):
        assert getattr(found, name) == getattr(wanted, name)
    assert torch.equal(found.point_order, wanted.point_order)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", BAKED)
def test_a_baked_plan_is_the_one_made_at_run_time(name: str, topology: str) -> None:
    """The compiler evaluates the manifest's expressions, a dispatch runs the relation kernel."""
    baked = Ranks(BAKED[name](*TOPOLOGIES), topology)
    plain = Ranks(BAKED[name](), topology)
    parts = source_of(BAKED[name](), len(plain.shuffle.machines))
    assert all(machine.plan is None for machine in plain.shuffle.machines)
    for found, wanted in zip(baked.dispatch(parts), plain.dispatch(parts), strict=True):
        assert torch.equal(found, wanted)
    for baked_machine, machine in zip(baked.shuffle.machines, plain.shuffle.machines, strict=True):
        assert baked_machine.plan is not None
        assert machine.plan is not None
        assert_same(baked_machine.plan, machine.plan)


@pytest.mark.parametrize("name", BAKED)
def test_a_baked_shuffle_plans_nothing_when_it_runs(
    name: str, requests: list[StartGather | AllToAll | AllToAlls], launched: set[str]
) -> None:
    """No relation, no counts, no descriptions: the ranks only say that all is well."""
    ranks = Ranks(BAKED[name](*TOPOLOGIES), "2x2")
    parts = source_of(BAKED[name](), 4)
    requests.clear()
    ranks.dispatch(parts)
    [only] = requests
    assert isinstance(only, StartGather)
    assert len(only.tensor) < 4, "more than whether there is an error"
    assert f"{name}_send" in launched
    assert f"{name}_relation" not in launched


def test_baked_rows_are_carried() -> None:
    """There and back twice, with the plan of the artifact."""
    ranks = Ranks(BAKED["lopsided"](*TOPOLOGIES), "2x2")
    handed = [machine.plan.rows.carried for machine in ranks.shuffle.machines if machine.plan]
    assert handed == [0, 3, 0, 3]
    for _ in range(2):
        parts = source_of(BAKED["lopsided"](), 4)
        found = ranks.dispatch(parts)
        assert torch.equal(found[2], parts[0])
        assert torch.equal(found[0], parts[2])
        back = ranks.combine(found)
        assert torch.equal(back[0], parts[0])
        assert not back[1].any()


def test_a_static_shuffle_plans_once(
    requests: list[StartGather | AllToAll | AllToAlls], launched: set[str]
) -> None:
    """Without a plan for its topology, the first dispatch makes it."""
    ranks = Ranks(specs.redistribute("1x2"), "2x2")
    parts = source_of(specs.redistribute(), 4)
    first = ranks.dispatch(parts)
    assert "redistribute_relation" in launched
    assert len(requests) > 1
    requests.clear()
    launched.clear()
    again = ranks.dispatch(parts)
    assert "redistribute_relation" not in launched
    assert len(requests) == 1
    assert all(map(torch.equal, first, again))


def test_wrong_arguments_are_still_raised_everywhere() -> None:
    ranks = Ranks(specs.redistribute("2x2"), "2x2")
    parts = source_of(specs.redistribute(), 4)
    with pytest.raises(InputError, match="`x` on rank 2 has the shape"):
        ranks.dispatch([*parts[:2], parts[2][1:], parts[3]])
    assert torch.equal(ranks.dispatch(parts)[1], torch.cat(parts)[1::4])


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (
        specs.compile("ulysses.fsc", tmp_path / name, "2x2", "1x4", tokens=16, block=2)
        for name in ("one", "two")
    )
    files = {path.relative_to(one): path.read_bytes() for path in one.rglob("*") if path.is_file()}
    assert files == {p.relative_to(two): p.read_bytes() for p in two.rglob("*") if p.is_file()}
    assert {path.name for path in files} >= {"ulysses.2x2.npz", "ulysses.1x4.npz"}


def test_a_plan_is_small_however_many_rows_it_moves() -> None:
    """Lists of 262144 rows are a few progressions; most of the file says what the shuffle is."""
    opened = specs.artifact("redistribute.fsc", ("1x2", "2x4"), rows=2**18, columns=512)
    for path in opened.shuffle().baked.values():
        assert (opened.path / path).stat().st_size < 20_000


def test_a_plan_is_small_however_odd_its_sizes_are() -> None:
    """Rows for three ranks in turn are three progressions, whichever rank comes first."""
    opened = specs.artifact("redistribute.fsc", ("3x1", "3x3"), rows=9 * 29_101, columns=512)
    for path in opened.shuffle().baked.values():
        assert (opened.path / path).stat().st_size < 25_000
    text = specs.TRANSPOSE.replace("rows = 12, columns = 16", "rows = 333, columns = 129")
    opened = specs.artifact(text, ("3x1",))
    for path in opened.shuffle().baked.values():
        assert (opened.path / path).stat().st_size < 25_000


COMMANDS = """
import sys
from fuscoc.cli import main
for name in sys.argv[1:]:
    for options in (["compile", "--out", "out"], ["check"]):
        sys.argv = ["fuscoc", *options, name, "--topology", "1x2", "--topology", "2x2"]
        try:
            main()
        except SystemExit as error:
            print("code", int(error.code or 0), "torch" in sys.modules)
"""


def test_plans_take_no_torch(tmp_path: Path) -> None:
    """It takes longer to load than all that the compiler does: with plans, and with errors."""
    texts = {"transpose": specs.TRANSPOSE, "lopsided": specs.LOPSIDED, "broadcast": specs.BROADCAST}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", COMMANDS, *texts]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    codes = [line for line in ran.stdout.splitlines() if line.startswith("code")]
    assert codes == ["code 0 False"] * 4 + ["code 1 False"] * 2, ran.stderr
    assert ran.stderr.count("error[FSC057]") == 2


def test_the_artifact_holds_the_plans() -> None:
    opened = specs.ulysses(*TOPOLOGIES)
    baked = opened.shuffle().baked
    assert baked == {each: f"plans/ulysses.{each}.npz" for each in TOPOLOGIES}
    assert all((opened.path / file).is_file() for file in baked.values())
    plan = Plan.load(opened.path / baked["2x2"])
    assert plan.topology == Topology(2, 2)
    assert plan.traffic is not None


def test_an_altered_plan_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "altered"
    shutil.copytree(specs.ulysses("2x2").path, root)
    with (root / "plans" / "ulysses.2x2.npz").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactError, match=r"ulysses\.2x2\.npz: was altered"):
        load_artifact(root)


@pytest.mark.parametrize(
    ("source", "topology", "code", "parts"),
    [
        ("moe.fsc", "2x4", "FSC057", ["`topk_idx` is only known when the shuffle runs"]),
        (specs.PARTS, "2x4", "FSC057", ["its extent `rows` is only known when the shuffle runs"]),
        ("ulysses.fsc", "1x3", "FSC057", ["planned for 1x3", "FSR011: 3 does not divide 64"]),
        (specs.BROADCAST, "1x2", "FSC057", ["FSR010: `c` on rank 0 is 2"]),
    ],
)
def test_what_cannot_be_planned(
    tmp_path: Path, source: str, topology: str, code: str, parts: list[str]
) -> None:
    with pytest.raises(CompileError) as raised:
        specs.compile(source, tmp_path / "out", topology)
    assert [each.code for each in raised.value.diagnostics] == [code]
    for part in parts:
        assert part in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_static_shuffle_is_planned_beside_one_that_is_not(tmp_path: Path) -> None:
    text = specs.PARTS + specs.TRANSPOSE
    opened = load_artifact(specs.compile(text, tmp_path / "both", "1x4"))
    assert opened.shuffle("parts").baked == {}
    assert opened.shuffle("transpose").baked.keys() == {"1x4"}
    assert LockstepShuffle(opened, "transpose", topology=Topology(1, 4)).machines[0].plan
