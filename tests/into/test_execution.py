"""Rows that go into memory of the caller's, on all ranks in lockstep, against plain torch."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fuscoc
from fuscoc.testing import cases, check_execution, specs
from fuscoc_runtime.engine import dispatch
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.into.models import MODELS, build, differences, draw

FEW = {"max_nodes": 2, "max_ranks_per_node": 2}
Opened = dict[tuple[str, str], LockstepShuffle]
TOPOLOGIES = ("1x4", "2x2")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    built = build(Path(tmp_path_factory.mktemp("into")))
    return {
        (name, topology): LockstepShuffle(path, topology=Topology.parse(topology))
        for name, path in built.items()
        for topology in TOPOLOGIES
    }


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", MODELS)
def test_memory_is_what_torch_makes_it(opened: Opened, name: str, topology: str) -> None:
    """All of it, bit by bit: what no row goes into as well."""

    @settings(max_examples=5)
    @given(st.integers(0, 2**32))
    def holds(seed: int) -> None:
        call = draw(name, 4, seed)
        done = opened[name, topology].dispatch([[]] * 4, call.given)
        for rank, wanted in enumerate(call.wanted):
            assert not differences(wanted, call.given[rank][call.memory]), f"rank {rank}"
            found = done[rank].rows
            assert not differences(wanted, found if len(found) > 1 else found["x"])

    holds()


STATIC = """
shuffle static {
  const rows = 8
  index i : rows / ranks
  index a : 2
  index b : rows / 2 / ranks
  segment row { x : f32[2, 3] }
  layout  mine[i]      of row
  layout  there[a, b]  of row
  layout  memory[y, m] of f32[3]  dense(4, rows / ranks + 1)
  view    kept[a, b] = memory[1 .. 3, a * (rows / 2 / ranks) + b + 1]
  dispatch mine[i] -> there[i % 2, i / 2] on (rank + 1) % ranks  into kept[a, b]
}
"""


def test_computed_places(tmp_path: Path) -> None:
    """A static shuffle, whose second call plans nothing; slots of several dimensions."""
    artifact = fuscoc.compile(STATIC, tmp_path / "static")
    shuffle = LockstepShuffle(artifact, topology=Topology.parse("2x2"))
    evaluate = dispatch.evaluate_relation
    with mock.patch.object(dispatch, "evaluate_relation", wraps=evaluate) as planned:
        for _ in range(2):
            rows = [torch.rand(2, 2, 3) for _ in range(4)]
            memory = [torch.rand(4, 3, 3) for _ in range(4)]
            wanted = [each.clone() for each in memory]
            for rank, mine in enumerate(rows):
                wanted[(rank + 1) % 4][1:3, 1:3] = mine.transpose(0, 1)
            shuffle.dispatch([[each] for each in rows], [{"memory": each} for each in memory])
            assert all(map(torch.equal, memory, wanted))
            assert planned.call_count == 4


def check_any_spec(folder: Path, data: st.DataObject) -> None:
    """Any source, fields, policy and topology, against the reference."""
    spec = data.draw(specs(into=True).filter(lambda each: each.shuffle.into is not None))
    routing = data.draw(cases(spec, **FEW))
    check_execution(fuscoc.compile(spec.text, folder / "generated"), spec, routing)


@settings(max_examples=3)
@given(st.data())
def test_any_spec(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_any_spec(tmp_path_factory.mktemp("into"), data)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=500)
@given(st.data())
def test_any_spec_at_night(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_any_spec(tmp_path_factory.mktemp("into"), data)
