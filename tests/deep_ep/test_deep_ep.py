"""DeepEP's calls on four CPU ranks, against torch; and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.deep_ep import EventHandle, EventOverlap, specs
from fuscoc_runtime.deep_ep.low_latency import count_places
from fuscoc_runtime.errors import AdapterError
from tests.deep_ep import cases, elastic_work, rank_work
from tests.deep_ep.artifacts import compile_all
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.gpus import torchrun

SIZES, MORE = [3, 0, 2, 4], [23, 0, 7, 11]
CALLS = [rank_work.normal, rank_work.low_latency, elastic_work.elastic]


pool = pool_of(4)


@pytest.mark.parametrize("calls", CALLS)
def test_calls(pool: Pool, calls: Callable[..., Any]) -> None:
    for wrong in pool.run(calls, 4, "cpu", cases.SMALL, SIZES, {}):
        assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("options", [{}, {"topology": "2x2"}], ids=["node", "nodes"])
def test_more(pool: Pool, calls: Callable[..., Any], options: dict[str, Any]) -> None:
    for wrong in pool.run(calls, 4, "cpu", cases.SMALL, MORE, options):
        assert not wrong, "\n".join(wrong)


def test_defaults_of_the_program(pool: Pool) -> None:
    assert pool.run(rank_work.defaults, 2) == [[], []]


def test_a_layout_that_changes_behind_its_dispatch(pool: Pool) -> None:
    assert pool.run(rank_work.changed_layout, 2) == [[], []]


def test_an_expert_that_is_none_is_raised_in_the_end(pool: Pool) -> None:
    wrong, right = pool.run(rank_work.strayed, 2)
    assert right == "nothing"
    assert "[FSR019] 1 points of rank 0" in wrong, wrong


def test_weights_that_one_rank_gets_wrong(pool: Pool) -> None:
    """The others, which have joined the call, do not wait for them."""
    (wrong, _, _), (right, told, are_nan) = pool.run(rank_work.misweighed, 2)
    assert "topk_weights are torch.bfloat16" in wrong
    assert right == "nothing"
    assert "rank 0 refused 1 calls" in told
    assert are_nan


def test_what_is_not_here_is_refused_by_name(pool: Pool) -> None:
    for said in pool.run(rank_work.refusals, 4):
        for name, message in said.items():
            assert name in message, message
            assert message.startswith("[FSR030] deep_ep: ")


@given(st.data())
def test_places_are_those_of_counting(data: st.DataObject) -> None:
    """One slot a point, the first of every expert, in the order of rank, token and choice."""
    ranks, local, tokens, topk = (data.draw(st.integers(1, 4)) for _ in range(4))
    experts = st.lists(st.integers(-1, ranks * local - 1), min_size=topk, max_size=topk)
    rows = data.draw(st.lists(experts, min_size=ranks * tokens, max_size=ranks * tokens))
    once = [[-1 if e in row[:k] else e for k, e in enumerate(row)] for row in rows]
    chosen = torch.tensor(once).view(ranks, tokens, topk)
    found = [count_places(chosen, rank, ranks * local) for rank in range(ranks)]
    filled = [0] * (ranks * local)
    for rank, token, choice in product(*map(range, chosen.shape)):
        expert, place = int(chosen[rank, token, choice]), found[rank].places[token, choice]
        if expert < 0:
            assert place[0] == -1
            continue
        owner, row, at = expert // local, expert % local, filled[expert]
        assert place.tolist() == [owner, row * ranks * tokens + at]
        assert found[owner].src_info[row, at] == token
        begin, count = divmod(int(found[owner].layout_range[row, rank]), 2**32)
        assert begin <= at < begin + count
        filled[expert] += 1
    assert torch.cat([each.counts for each in found]).tolist() == filled


def test_too_many_for_an_expert_have_no_slot() -> None:
    """One token of one rank that wants the only slot twice."""
    places = count_places(torch.zeros(1, 1, 2, dtype=torch.int64), 0, 1).places
    assert places.tolist() == [[[0, 0], [0, 1]]]


def test_artifacts_come_from_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the compiler: what it has made elsewhere, by the command that the error tells."""
    sizes = {"hidden": 128, "topk": 2}
    monkeypatch.setenv(specs.FOLDER, str(tmp_path))
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "fuscoc.torch", None)
        with pytest.raises(AdapterError, match="compiler is not here") as error:
            specs.find_artifact("slots", sizes)
    words = str(error.value).split("`")[1].split()
    assert words[0] == "fuscoc"
    command = [each.replace("FOLDER", str(tmp_path)) for each in words[1:]]
    subprocess.run([sys.executable, "-m", "fuscoc", *command], check=True, capture_output=True)
    monkeypatch.setitem(sys.modules, "fuscoc.torch", None)
    assert specs.find_artifact("slots", sizes).path == tmp_path / "slots-hidden128-topk2"


def test_installed(pool: Pool) -> None:
    assert pool.run(rank_work.installed, 1) == [True]


def test_events() -> None:
    event, called = EventOverlap(EventHandle()), []
    event.register_hook_after_wait(lambda: called.append(1))
    with event(release_handle=True):
        assert not called
    assert called == [1]
    assert event.event is None
    with pytest.raises(AssertionError, match="async_finish"):
        event.current_stream_wait()


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_gpus(num_ranks: int, tmp_path: Path) -> None:
    compile_all(tmp_path, [num_ranks])
    torchrun(num_ranks, "tests/deep_ep/gpu_run.py", environment={specs.FOLDER: str(tmp_path)})
