"""Weights may come with dispatch or with combine, and travel with either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fuscoc
from fuscoc_runtime import Shuffle
from fuscoc_runtime.comm.lockstep import COLLECTIVES
from fuscoc_runtime.comm.requests import StartGather
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine.path import PreparedPath
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import inputs_of, lockstep
from tests.forked import run_program
from tests.specs import EXAMPLES

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys

import torch

import fuscoc
from fuscoc_runtime.errors import InputError

shuffle = fuscoc.load(sys.argv[1])
assert shuffle.backend == "triton"
x, weights = torch.randn(3, 16).bfloat16(), torch.rand(3, 2)
idx = torch.tensor([[0, 1], [1, -1], [1, 0]])
rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
early = shuffle.combine(rows, handle)
rows, handle = shuffle.dispatch(x, topk_idx=idx)
late = shuffle.combine(rows, handle, topk_weights=weights)
assert torch.equal(early, late) and bool((early != 0).any())
try:
    shuffle.combine(rows, handle)
except InputError as error:
    print(error)
shuffle.check()
"""


def test_weights_with_dispatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "moe", hidden=16, experts=2, topk=2)
    job = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 0}
    environment = {name: str(value) for name, value in job.items()}
    environment |= {"MASTER_ADDR": "localhost", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_program(tmp_path / "program.py", str(artifact), folder=ROOT)
    assert done.returncode == 0, done.stderr
    assert "`topk_weights` on rank 0 is missing" in done.stdout


WAYS = ("dispatch", "combine", "both", "changed")
"""When a rank gives its weights; ``changed`` in place between dispatch and combine."""


@settings(max_examples=8)
@given(st.lists(st.lists(st.sampled_from(WAYS), min_size=2, max_size=2), min_size=1, max_size=5))
def test_whenever_which_rank_gives_them(calls: list[list[str]]) -> None:
    """What combine is given counts, else what dispatch was given, as it is at combine's call."""
    shuffle, oracle = (lockstep(specs.routed("f32"), "2x1", programs) for programs in (2, 1))
    came = False
    for number, ways in enumerate([*calls, ["dispatch", "dispatch"]]):
        ranks = generate(shuffle.spec, shuffle.topology, 5, number)
        weights = [inputs_of(shuffle.spec, data, weights=True)["weights"] for data in ranks]
        sources = [list(data.source.values()) for data in ranks]
        named = [inputs_of(shuffle.spec, data, weights=False) for data in ranks]
        first = [
            w + 1 if way == "both" else w.clone() for w, way in zip(weights, ways, strict=True)
        ]
        done = shuffle.dispatch(
            sources,
            [
                each if way == "combine" else {**each, "weights": w}
                for each, way, w in zip(named, ways, first, strict=True)
            ],
        )
        assert number == 0 or (done[0].handle.sent_weights is not None) == came
        came = set(ways) <= {"dispatch", "changed"}
        for w, late, way in zip(weights, first, ways, strict=True):
            if way == "changed":
                w.mul_(3)
                late.mul_(3)
        rows, handles = [each.rows["x"].clone() for each in done], [each.handle for each in done]
        given_now = [
            {"weights": w} if way in ("combine", "both") else {}
            for w, way in zip(weights, ways, strict=True)
        ]
        found = shuffle.combine(rows, handles, given_now)
        handles = [each.handle for each in oracle.dispatch(sources, named)]
        wanted = oracle.combine(rows, handles, [{"weights": w} for w in weights])
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one["x"], other["x"])


def test_a_combine_is_prepared_while_the_ranks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its windows are there and weights travel with dispatch; before, nobody can."""
    seen: list[str] = []
    start, prepare = COLLECTIVES[StartGather], PreparedPath.__init__

    def started(requests: Sequence[StartGather]) -> Sequence[Any]:
        def heard(answer: Callable[[], Tensor]) -> Callable[[], Tensor]:
            return lambda: (seen.append("heard"), answer())[1]

        return [heard(answer) for answer in start(requests)]

    def prepared(self: PreparedPath, *arguments: Any) -> None:
        seen.append("prepared")
        prepare(self, *arguments)

    monkeypatch.setitem(COLLECTIVES, StartGather, started)
    monkeypatch.setattr(PreparedPath, "__init__", prepared)
    artifact = specs.artifact(specs.routed("f32"))
    shuffle = LockstepShuffle(artifact, topology=Topology(2, 1))
    ranks = generate(shuffle.spec, shuffle.topology, 5, 1)
    sources = [list(data.source.values()) for data in ranks]
    named = [
        {
            **inputs_of(shuffle.spec, each, weights=False),
            **inputs_of(shuffle.spec, each, weights=True),
        }
        for each in ranks
    ]
    orders = []
    for _ in range(2):
        done = shuffle.dispatch(sources, named)
        rows, handles = [each.rows["x"].clone() for each in done], [each.handle for each in done]
        seen.clear()
        shuffle.combine(rows, handles, [{}, {}])
        orders.append(list(seen))
    assert orders == [["heard", "heard", "prepared", "prepared"], ["prepared", "heard"] * 2]


def test_weights_that_torch_counts_no_changes_of() -> None:
    """Those of inference mode may have changed since they were sent."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)))
    with torch.inference_mode():
        x, idx, weights = torch.ones(5, 24), torch.ones(5, 2, dtype=torch.int64), torch.ones(5, 2)
        for _ in range(2):
            rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
            assert torch.equal(shuffle.combine(rows, handle), 2 * x)
        assert handle.sent_weights is not None
        weights.mul_(2)
        assert torch.equal(shuffle.combine(rows, handle), 4 * x)


def test_weights_travel_without_their_history() -> None:
    """A handle that is kept keeps no graph of autograd."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)))
    x, idx = torch.ones(5, 24), torch.ones(5, 2, dtype=torch.int64)
    weights = torch.ones(5, 2, requires_grad=True)
    with torch.no_grad():
        rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        shuffle.combine(rows, handle)
    _, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    assert handle.sent_weights is not None
    assert not handle.sent_weights.received.requires_grad
