"""The plan of all ranks: its traffic against a count by hand, its numbers, and its file."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Plan, plan_all
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.plan.specs import ALL_DEDUP, Balance, balanced, relation, routed, routed_data
from tests.plan.test_plan import patches_case, routed_case, tiles_case

cases = st.one_of(routed_case(), patches_case(), tiles_case())
Case = tuple[ShuffleSpec, Topology, list[RankData]]


def plan_case(case: Case, schedule: str | None = None) -> Plan:
    spec, topology, ranks = case
    points = [relation(spec, topology, rank, data) for rank, data in enumerate(ranks)]
    return plan_all(spec, topology, points, schedule=schedule)


def worked(balance: Balance = "static", **spec: Any) -> Plan:
    """The routing of ``test_lists``, 12-byte segments."""
    routing = [[[0, 2, 6], [7, 6, -1], [4, 7, 0]], [[0, -1, -1]], [], [[6, 6, 6], [1, 5, -1]]]
    idx = [torch.tensor(rows, dtype=torch.int64).view(len(rows), 3) for rows in routing]
    ranks = [routed_data(each, rank) for rank, each in enumerate(idx)]
    shuffle = balanced(routed(topk=3, num_keys=8, **spec), balance)
    return plan_case((shuffle, Topology(2, 2), ranks), schedule="auto")


def test_traffic_of_the_worked_example() -> None:
    traffic = worked().traffic
    assert traffic.points.tolist() == [[2, 1, 1, 4], [1, 0, 0, 0], [0] * 4, [1, 0, 1, 3]]
    assert traffic.pairs.tolist() == [[2, 1, 1, 3], [1, 0, 0, 0], [0] * 4, [1, 0, 1, 1]]
    assert traffic.network.tolist() == [[0, 0, 3, 0], [0] * 4, [0] * 4, [0, 1, 0, 0]]
    # Rank 0's three rows go through rank 2, rank 3's one through rank 1.
    assert traffic.nvlink.tolist() == [[2, 1, 0, 0], [2, 0, 0, 0], [0, 0, 1, 3], [0, 0, 1, 1]]
    assert traffic.local.tolist() == [0, 0, 0, 3]
    assert traffic.nvlink_rows == 7
    assert traffic.nic_load.tolist() == [3, 1, 3, 1]
    assert traffic.by_node(traffic.network).tolist() == [[0, 3], [1, 0]]
    naive = traffic.without_dedup()
    assert naive.network.sum() == 6
    assert naive.nvlink_rows == 3


@given(cases)
@settings(max_examples=at_night(80))
def test_traffic_is_conserved(case: Case) -> None:
    spec = case[0]
    plan = plan_case(case)
    traffic = plan.traffic
    assert traffic.pairs.sum() + traffic.local.sum() == traffic.points.sum()
    assert traffic.nvlink.sum(axis=0).tolist() == traffic.pairs.sum(axis=0).tolist()
    assert (traffic.nvlink.sum(axis=0) + traffic.local).tolist() == [
        sum(each.point_recv_counts) for each in plan.ranks
    ]
    once_a_node, once_a_rank = map(spec.program.copies_once, ("node", "rank"))
    if once_a_rank or not once_a_node:  # else a row may have several copies for one rank
        traffic.demand.check()
    static = traffic.unbalanced()
    assert static.by_node(static.network).tolist() == traffic.by_node(traffic.network).tolist()
    assert static.nvlink.sum(axis=0).tolist() == traffic.nvlink.sum(axis=0).tolist()
    if spec.program.exchange.forwarder == "static":
        assert np.array_equal(static.network, traffic.network)
        assert np.array_equal(static.nvlink, traffic.nvlink)


def test_summary() -> None:
    summary = worked().summary()
    assert (summary.num_segments, summary.num_points, summary.segment_bytes) == (6, 14, 12)
    assert (summary.network.rows, summary.network.rows_before, summary.network.bytes) == (4, 6, 48)
    assert summary.network.saved == pytest.approx(1 / 3)
    assert (summary.nvlink.rows, summary.local.rows) == (7, 3 + 4)
    assert (summary.nic.busiest, summary.nic.mean, summary.nic.imbalance) == (3, 1.0, 3.0)
    assert summary.predicted >= summary.oracle > 0
    assert str(summary) == (
        "routed on 2x2: 6 segments of 12 B to 14 slots, balance static, 1 stages (pairwise)\n"
        "  hop      rows  bytes  plain all-to-all  saved\n"
        "  network     4   48 B                 6    33%\n"
        "  NVLink      7   84 B                 3       \n"
        "  local       7   84 B                 5       \n"
        "busiest NIC 3 rows, 3.00 of the mean (3.00 before balancing)\n"
        "predicted 10 µs, no plan can beat 0 µs"
    )


def test_one_node_and_nothing_at_all() -> None:
    ranks = [routed_data(torch.zeros(0, 2, dtype=torch.int64), rank) for rank in range(4)]
    for topology in (Topology(1, 4), Topology(4, 1)):
        plan = plan_case((routed(), topology, ranks), schedule="auto")
        assert plan.predicted.completion == plan.oracle == 0
        assert plan.summary().nic.imbalance == 1
        assert (plan.schedule is None) == (topology.num_nodes == 1)


def same(one: Any, other: Any) -> bool:
    """Equal to the last element, whatever it is made of."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one) and not isinstance(one, ShuffleSpec):
        fields = [each.name for each in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in fields)
    return bool(one == other)


@given(cases, st.sampled_from([None, "pairwise", "fast", "auto"]))
@settings(max_examples=at_night(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_file_round_trip(tmp_path: Path, case: Case, schedule: str | None) -> None:
    plan = plan_case(case, schedule)
    file = tmp_path / "plan.npz"
    plan.save(file)
    loaded = Plan.load(file)
    assert same(plan, loaded)
    assert plan.summary() == loaded.summary()
    written = file.read_bytes()
    loaded.save(file)
    assert file.read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["plan.npz"]


def test_file_holds_no_pickle(tmp_path: Path) -> None:
    file = tmp_path / "plan.npz"
    worked("split").save(file)
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            assert b"|O" not in archive.read(name)[:128]


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    def refused(file: Path, problem: str) -> None:
        with pytest.raises(ArtifactError, match=problem):
            Plan.load(file)

    refused(tmp_path / "gone.npz", "no such file")
    file = tmp_path / "plan.npz"
    file.write_bytes(b"text")
    refused(file, "is not a plan")
    file.write_bytes(pickle.dumps({"a": 1}))
    refused(file, "is not a plan")
    np.savez(file, other=np.zeros(3))
    refused(file, "is not a plan")
    np.savez(file, header=np.array(json.dumps({"format": 99})))
    refused(file, "has plan format 99; this runtime reads 7: compile or plan it again")
    np.savez(file, header=np.array(json.dumps({"format": 4, "columns": {}})), keys=np.zeros(3))
    refused(file, "has plan format 4;")
    worked().save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:2000])
    refused(file, "is not a plan")
    entry = whole.index(b"PK\x01\x02")
    file.write_bytes(whole[: entry + 8] + b"\x01" + whole[entry + 9 :])
    refused(file, "is not a plan: .* is encrypted")
    with np.load(io.BytesIO(whole)) as arrays:
        header = json.loads(arrays["header"].item())

        def refused_with(problem: str, *, forms: Any = None, **damaged: Any) -> None:
            text = json.dumps({**header, "forms": {**header["forms"], **(forms or {})}})
            np.savez(file, **{**arrays, "header": np.array(text.encode()), **damaged})
            refused(file, f"is not a plan: .*{problem}")

        refused_with("1 of `u1` are of no column", u1=np.append(arrays["u1"], [np.uint8(0)]))
        refused_with("goes beyond the end of `u1`", u1=arrays["u1"][:-1])
        refused_with("`u1` is float64", u1=arrays["u1"].astype(float))
        refused_with("allow_pickle", u1=np.array([None]))
        refused_with("`keys` has no length and shape", forms={"keys": "u1"})
        refused_with("`more` has values of the type `u8`", forms={"more": [1, "u8"]})
        assert header["forms"]["num_sources"] == [4, "u1"]
        found = "`num_sources` has entries for 2 ranks, not 4"
        refused_with(found, forms={"num_sources": [2, "u1"], "rest": [2, "u1"]})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "plan.npz"
    worked().save(file)
    before = file.read_bytes()

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        worked("split").save(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["plan.npz"]


@pytest.mark.parametrize("balance", get_args(Balance))
@pytest.mark.parametrize("dedup", [ALL_DEDUP, ()], ids="+".join)
def test_saved_for_every_policy(tmp_path: Path, balance: Balance, dedup: tuple[str, ...]) -> None:
    plan = worked(balance, dedup=dedup)
    plan.save(tmp_path / "plan.npz")
    assert same(Plan.load(tmp_path / "plan.npz"), plan)
