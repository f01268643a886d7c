"""Real processes on the CPU: gradients, compiled functions, errors, groups and pools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.torch import rank_work

ENGINES: list[dict[str, Any]] = [{}, {"max_sources": 16}]


pool = pool_of(4)


@pytest.fixture(scope="module")
def artifact() -> str:
    return str(specs.artifact(specs.routed("f32")).path)


@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [(3, {}), (4, {"topology": "2x2"}), (3, {"max_sources": 16})],
    ids=["node", "nodes", "fixed"],
)
def test_gradients(pool: Pool, artifact: str, num_ranks: int, options: dict[str, Any]) -> None:
    for errors in pool.run(rank_work.gradients, num_ranks, artifact, options):
        assert max(errors) < 1e-5, errors


@pytest.mark.parametrize(
    "options", [{}, {"max_sources": 16}, {"max_sources": 16, "zero_unused": False}],
    ids=["exact", "fixed", "fixed, without zeros"],
)  # fmt: skip
def test_rows_that_are_cut_to_a_step(pool: Pool, artifact: str, options: dict[str, Any]) -> None:
    for errors in pool.run(rank_work.few, 4, artifact, options):
        assert not errors or max(errors) < 1e-5, errors


def test_compiled(pool: Pool, artifact: str) -> None:
    assert max(pool.run(rank_work.compiled, 2, artifact, {})) < 1e-5


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("options", ENGINES, ids=["exact", "fixed"])
def test_tangents_are_refused(
    pool: Pool, artifact: str, options: dict[str, Any], wants: bool
) -> None:
    """Those of forward mode would be lost, in calls like earlier ones, too."""
    for said in pool.run(rank_work.tangents, 2, artifact, options, wants):
        for message, name in zip(said, ["x", "x", "weights", "x", "x"], strict=True):
            assert message.startswith(f"[FSR003] `{name}` on rank")
            assert "has a tangent of forward-mode differentiation" in message


def test_mistakes_are_told_on_every_rank(pool: Pool, artifact: str) -> None:
    first, *others = pool.run(rank_work.mistakes, 3, artifact)
    assert all(messages == first for messages in others)
    wanted = [
        "`x` on rank 1 is torch.float64; the spec says torch.float32",
        "`x` on rank 1 has the shape [4, 23]; the spec says [tokens, 24] = [4, 24]",
        "`x` on rank 1 is on meta; this rank computes on cpu",
        "`x` on rank 1 is a list; it must be a tensor",
        "`idx` on rank 1 has the shape [3, 3]; the spec says [tokens, 3] = [4, 3]",
        "`idx[0, 0]` on rank 1 is ",
        "`weights` on rank 1 has the shape [4, 1]; the spec says [tokens, 3] = [4, 3]",
        "`weights` on rank 1 is torch.float16; the spec says torch.float32",
        "`idx` on rank 1 is missing",
        "`weights` on rank 1 is missing",
        "`gates` on rank 1 is no argument of this call",
    ]
    assert len(first) == len(wanted)
    for message, part in zip(first, wanted, strict=True):
        assert part in message
        assert "\n" not in message


def test_closing_raises_where_something_was_wrong(pool: Pool, artifact: str) -> None:
    """With ``max_sources`` no call has waited for it."""
    fine, wrong = pool.run(rank_work.closed, 2, artifact)
    assert fine == []
    assert len(wrong) == 2
    assert all("12 points of rank 1, which were dropped" in each for each in wrong)


@pytest.mark.parametrize("options", ENGINES, ids=["exact", "fixed"])
def test_a_forked_process_is_refused(pool: Pool, artifact: str, options: dict[str, Any]) -> None:
    """At once: nobody would answer it. What it closes stays open."""
    for *said, closed in pool.run(rank_work.forked, 2, artifact, options):
        assert len(said) == 4
        for message in said:
            assert message.startswith("ClosedError: [FSR008] the shuffle routed")
            assert message.endswith(" is closed, or was opened by another process")
        assert closed == "no error"


def test_groups_and_meshes(pool: Pool, artifact: str) -> None:
    for rank, seen in enumerate(pool.run(rank_work.groups, 4, artifact)):
        ep, dp = rank % 2, rank // 2
        assert [text.split()[3] for text in seen[:3]] == [str(ep), str(dp), str(ep)]
        assert all("dimensions dp, ep" in each for each in seen[3:5])
        assert "a str is no process group" in seen[5]
        assert "this rank is not in the group" in seen[6]


@pytest.mark.parametrize("options", ENGINES, ids=["exact", "fixed"])
def test_layers_share_a_pool(pool: Pool, artifact: str, options: dict[str, Any]) -> None:
    for pooled, alone in pool.run(rank_work.layers, 2, artifact, options):
        assert pooled > 0
        assert alone == 3 * pooled
