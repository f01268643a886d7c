"""``fuscoc plan``: what it prints, what it writes, which routings it takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fuscoc
from fuscoc.cli import main
from fuscoc.planning import command
from fuscoc.planning.files import RoutingError
from fuscoc.planning.routing import make_routing
from fuscoc_runtime import Topology, load_artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Plan, key_to_rank
from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.native import BuildError
from tests.simulate.explorer.pages import parse

MOE, VIT = Path("examples/moe.fsc"), Path("examples/vit_patches.fsc")
SMALL = {"hidden": 64, "experts": 32, "topk": 4}
DEFINES = [text for name, value in SMALL.items() for text in ("-D", f"{name}={value}")]
FOUR = Topology(2, 2)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``fuscoc plan`` in this process: its exit code, stdout and stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fuscoc", "plan", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        return int(exit_.value.code or 0), output.out, output.err

    return run


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("artifacts")
    return {
        "moe": fuscoc.compile(MOE, out / "moe", **SMALL),
        "vit": fuscoc.compile(VIT, out / "vit"),
    }


@pytest.fixture(scope="module")
def moe(artifacts: dict[str, Path]) -> ShuffleSpec:
    return load_artifact(artifacts["moe"]).shuffle()


def test_without_a_c_compiler(
    plan: Run, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lpt(demand: object) -> None:
        raise BuildError("no compiler")

    monkeypatch.setitem(POLICIES, "lpt", lpt)
    code, _, err = plan(artifacts["moe"], "--nodes", "2", "--gpus-per-node", "2", "--tokens", "4")
    assert code == 1
    assert "error: [FSR004] rank 0 cannot plan: no compiler" in err


def keys(shuffle: ShuffleSpec, topology: Topology, routing: str, tokens: int = 200) -> list:
    ranks = make_routing(shuffle, topology, routing, tokens, seed=1)
    return [data.inputs["topk_idx"] for data in ranks]


@pytest.mark.parametrize("routing", ["uniform", "single-node", "zipf:1.0", "imbalanced"])
def test_prints_every_table(plan: Run, artifacts: dict[str, Path], routing: str) -> None:
    code, out, _ = plan(
        artifacts["moe"], "--nodes", "2", "--gpus-per-node", "4", "--tokens", "64",
        "--routing", routing, "--balance", "split", "--schedule", "fast",
    )  # fmt: skip
    assert code == 0
    assert f"moe on 2x4, {routing}: 512 segments of 128 B to 2,048 slots" in out
    for word in ("network", "NVLink", "NIC load", "split (this plan)", "fast (this plan)"):
        assert word in out
    assert re.search(r"predicted .* no plan can beat", out)


def test_same_seed_same_plan(plan: Run, artifacts: dict[str, Path]) -> None:
    options = (artifacts["moe"], "--nodes", "2", "--gpus-per-node", "2", "--tokens", "32")
    first, again = plan(*options), plan(*options)
    assert first == again
    assert plan(*options, "--seed", "1") != first


def test_compiles_a_spec_and_saves_the_plan(plan: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.npz"
    code, _, err = plan(
        MOE, *DEFINES, "--nodes", "2", "--gpus-per-node", "2", "--tokens", "16",
        "--balance", "lpt", "--save", file,
    )  # fmt: skip
    assert code == 0
    assert "saved" in err
    saved = Plan.load(file)
    assert (str(saved.topology), saved.rules.forwarder) == ("2x2", "lpt")
    assert saved.summary().num_segments == 64


def test_one_node_has_no_network(plan: Run, artifacts: dict[str, Path]) -> None:
    code, out, _ = plan(artifacts["moe"], "--gpus-per-node", "4", "--tokens", "8")
    assert code == 0
    assert "NIC" not in out.replace("on these NICs", "")


def test_dense_targets(plan: Run, artifacts: dict[str, Path]) -> None:
    code, out, _ = plan(artifacts["vit"], "--nodes", "2", "--gpus-per-node", "2", "--tokens", "3")
    assert code == 0
    assert "vit_patches on 2x2" in out
    code, _, err = plan(artifacts["vit"], "--routing", "zipf:1.0")
    assert code == 1
    assert "computes its slots" in err


def test_computed_keys(plan: Run) -> None:
    """Ids are made up alike, and hashed by the spec."""
    spec = Path("examples/hash_buckets.fsc")
    code, out, _ = plan(spec, "--gpus-per-node", "4", "--tokens", "50")
    assert code == 0
    assert "hash_buckets on 1x4, uniform: 200 segments" in out
    code, _, err = plan(spec, "--routing", "zipf:1.0")
    assert code == 1
    assert "computes its keys" in err


def test_page_is_one_file(plan: Run, artifacts: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="pages need the extra `plot`")
    pytest.importorskip("jinja2", reason="pages need the extra `plot`")
    page = tmp_path / "plan.html"
    options = (
        artifacts["moe"], "--nodes", "3", "--gpus-per-node", "2", "--tokens", "32",
        "--routing", "zipf:1.0", "--html", page,
    )  # fmt: skip
    # 32 keys cannot be dealt out to six ranks in equal blocks.
    assert plan(*options)[0] == 1
    options = tuple(text if text != "3" else "4" for text in options)
    assert plan(*options)[0] == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    shown = parse(text)
    names = [row.all("th")[0].text for row in shown.all("tbody")[0].all("tr")]
    assert names[0] == "this plan"
    assert {f"balance {name}" for name in POLICIES} <= set(names)
    assert "moe on 4x2: 256 segments of 128 B" in shown.all("title")[0].text
    assert plan(*options)[0] == 0
    assert page.read_text() == text, "the same plan gives the same page"


def test_missing_extra_is_said_before_planning(
    plan: Run, artifacts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    code, out, err = plan(artifacts["moe"], "--html", tmp_path / "plan.html")
    assert (code, out) == (1, "")
    assert "pip install 'fuscoc[plot]'" in err


def test_uniform_keys_are_distinct(moe: ShuffleSpec) -> None:
    for table in keys(moe, FOUR, "uniform"):
        assert table.shape == (200, 4)
        assert table.dtype == torch.int64
        assert all(len(row.unique()) == 4 for row in table)
        assert set(table.flatten().tolist()) == set(range(32))


def test_single_node_keys_stay_on_a_node(moe: ShuffleSpec) -> None:
    owner = key_to_rank(moe.program.target, FOUR, 0, {}, torch.device("cpu"))
    nodes = torch.cat(keys(moe, FOUR, "single-node"))
    nodes = owner[nodes] // 2
    assert (nodes == nodes[:, :1]).all()
    assert len(nodes[:, 0].unique()) == 2


def test_zipf_prefers_the_same_keys_on_all_ranks(moe: ShuffleSpec) -> None:
    counts = torch.stack([t.flatten().bincount(minlength=32) for t in keys(moe, FOUR, "zipf:1.5")])
    assert len(counts.argmax(1).unique()) == 1
    assert counts.max() > 4 * counts.float().mean()
    flat = torch.stack([t.flatten().bincount(minlength=32) for t in keys(moe, FOUR, "zipf:0")])
    assert flat.max() < 2 * flat.float().mean()


def test_imbalanced_is_bimodal(moe: ShuffleSpec) -> None:
    owner = key_to_rank(moe.program.target, FOUR, 0, {}, torch.device("cpu"))
    for rank, table in enumerate(keys(moe, FOUR, "imbalanced")):
        away = (owner[table] // 2 != FOUR.node(rank)).float().mean()
        assert away > 0.9 if rank % 2 == 0 else away < 0.1


def test_routing_from_files(moe: ShuffleSpec, tmp_path: Path) -> None:
    tables = np.stack([table.numpy() for table in keys(moe, FOUR, "uniform", tokens=5)])
    np.save(tmp_path / "a.npy", tables)
    np.savez(tmp_path / "b.npz", topk_idx=tables)
    uneven = {f"{rank}.topk_idx": table[: rank + 1] for rank, table in enumerate(tables)}
    np.savez(tmp_path / "c.npz", **uneven)
    for name in ("a.npy", "b.npz"):
        ranks = make_routing(moe, FOUR, str(tmp_path / name), None, seed=0)
        assert [data.extents for data in ranks] == [{"tokens": 5}] * 4
        assert all(
            np.array_equal(data.inputs["topk_idx"], table)
            for data, table in zip(ranks, tables, strict=True)
        )
    ranks = make_routing(moe, FOUR, str(tmp_path / "c.npz"), None, seed=0)
    assert [data.extents["tokens"] for data in ranks] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("routing", "problem"),
    [
        ("zipf", "neither uniform"),
        ("gone.npy", "No such file"),
        ("short.npy", "has 3 rows, one for each of 4 ranks"),
        ("flat.npy", "1 dimensions, the spec says 2"),
        ("wide.npy", r"is \[5, 3\], the spec says \[5, 4\]"),
        ("other.npz", "holds no `0.topk_idx`"),
        ("floats.npy", "`topk_idx` holds float64, the spec says i64"),
        ("damaged.npz", "damaged.npz is no .npz file of plain arrays"),
    ],
)
def test_routings_that_do_not_fit(
    moe: ShuffleSpec, tmp_path: Path, routing: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("short.npy", np.zeros((3, 5, 4), np.int64))
    np.save("flat.npy", np.zeros((4, 5), np.int64))
    np.save("wide.npy", np.zeros((4, 5, 3), np.int64))
    np.savez("other.npz", other=np.zeros(3))
    np.save("floats.npy", np.zeros((4, 5, 4)))
    np.savez_compressed("damaged.npz", topk_idx=np.zeros((4, 5, 4), np.int64))
    damaged = bytearray(Path("damaged.npz").read_bytes())
    damaged[90:100] = bytes(10)
    Path("damaged.npz").write_bytes(damaged)
    with pytest.raises(RoutingError, match=problem):
        make_routing(moe, FOUR, routing, None, seed=0)


def test_keys_out_of_range_are_a_coded_error(
    plan: Run, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    np.save(tmp_path / "bad.npy", np.full((4, 1, 4), 99))
    code, _, err = plan(
        artifacts["moe"], "--nodes", "2", "--gpus-per-node", "2",
        "--routing", tmp_path / "bad.npy",
    )  # fmt: skip
    assert code == 1
    assert "[FSR010] `topk_idx[0, 0]` on rank 0 is 99" in err
