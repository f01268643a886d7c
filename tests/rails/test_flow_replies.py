"""Replies whose rows travel as flows, interpreted: by a policy, and where slabs would be too large
for what is asked or for what is answered."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.topology import Topology
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.engine.specs import artifact
from tests.engine.test_replies import QUERIES
from tests.node_triton.reply_work import SIZES
from tests.node_triton.test_wide_nodes import with_room
from tests.rails import exact_reply_work, flow_work
from tests.static.specs import EXAMPLES

NIGHTLY = pytest.mark.nightly
STAGED = "balance rebalance schedule fast"

pool = pool_of(6)


def bags(policy: str) -> str:
    """Of small bags, whose rows travel by a policy."""
    text = (EXAMPLES / "embedding.fsc").read_text()
    numbers = ", ".join(f"{name} = {value}" for name, value in {**SIZES, "parts": 12}.items())
    for old, new in [
        ("rows = 1_048_576, width = 128, bag = 32, parts = 256", numbers),
        ("cdiv(rows, parts), *]\n", f"cdiv(rows, parts), *] {policy}\n"),
    ]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return str(artifact(text).path)


@pytest.mark.parametrize(
    ("policy", "topology", "sizes"),
    [
        ("balance rebalance", "2x2", [(3, 0, 18, 1)]),
        pytest.param(STAGED, "3x1", [(2, 0, 5), (0, 30, 1), (0, 0, 0)], marks=NIGHTLY),
        pytest.param(STAGED, "3x2", [(2, 0, 5, 1, 0, 3)], marks=NIGHTLY),
        pytest.param("balance split", "2x2", [(2, 0, 5, 1), (0, 9, 0, 0)], marks=NIGHTLY),
        pytest.param("balance auto", "2x2", [(0, 0, 0, 0), (0, 9, 4, 0)], marks=NIGHTLY),
    ],
)  # fmt: skip
def test_bags_and_their_gradients(
    pool: Pool, policy: str, topology: str, sizes: list[tuple[int, ...]]
) -> None:
    """By the routing of what was asked, by weights of before and of now, and once more along it."""
    work = partial(exact_reply_work.bags, topology=topology)
    pool.run(work, len(sizes[0]), bags(policy), sizes)


@NIGHTLY
def test_room_for_many_ranks(pool: Pool) -> None:
    """Few ranks whose kernels have room for 128."""
    work = partial(exact_reply_work.bags, topology="2x2")
    pool.run(with_room, 4, work, bags("balance rebalance"), [(3, 0, 18, 1)])


@NIGHTLY
@pytest.mark.parametrize("topology", ["2x2", "3x1"])
@given(data=st.data())
@settings(
    max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_bags(pool: Pool, topology: str, data: st.DataObject) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    sizes = st.tuples(*[st.one_of(st.integers(0, 5), st.integers(17, 40))] * num_ranks)
    batches = data.draw(st.lists(sizes, min_size=1, max_size=3))
    work = partial(exact_reply_work.bags, topology=topology)
    pool.run(work, num_ranks, bags(STAGED), batches)


@NIGHTLY
@pytest.mark.parametrize("topology", ["2x1", "2x2"])
def test_bags_without_a_policy(pool: Pool, topology: str) -> None:
    """Of so many ids and sums that no slabs carry them."""
    num_ranks = Topology.parse(topology).num_ranks
    work = partial(flow_work.without_slabs, work=partial(exact_reply_work.bags, topology=topology))
    pool.run(work, num_ranks, bags(""), [(3, 20, 0, 1)[:num_ranks], (0, 1, 0, 0)[:num_ranks]])


@NIGHTLY
@pytest.mark.parametrize(("packing", "topology"), [("compact", "2x2"), ("", "2x2"), ("", "3x1")])
def test_what_was_sent_has_gradients(pool: Pool, packing: str, topology: str) -> None:
    """Answers of two fields to queries that go to two places, maybe of two nodes."""
    text = QUERIES.replace("ALIGN", packing).replace("k), *]", f"k), *] {STAGED}")
    work = partial(exact_reply_work.questions, topology=topology)
    pool.run(work, Topology.parse(topology).num_ranks, str(artifact(text).path))


def test_answers_that_slabs_do_not_carry(pool: Pool) -> None:
    """Queries of 12 bytes go as flows where their answers of 16 do, and in slabs before and
    behind; ways back are right in any order."""
    path = str(artifact(QUERIES.replace("ALIGN", "")).path)
    for kinds in pool.run(exact_reply_work.too_large, 2, path, "2x1"):
        assert kinds[:2] == [("RailKnown",) * 2, ("FlowKnown",) * 2]
        assert kinds[-1] == ("RailKnown",) * 2


@NIGHTLY
def test_a_refused_reply(pool: Pool) -> None:
    """Sums that need it are lost, and the next call is whole."""
    work = partial(flow_work.without_slabs, work=exact_reply_work.refused_reply)
    first, second = pool.run(work, 2, bags(""), "2x1")
    assert "rank 1 refused 1 calls" in first[0]
    assert "has the shape" in second[0]
    assert first[1] == second[1] == "no error"


@NIGHTLY
def test_a_refused_dispatch_along_a_known_routing(pool: Pool) -> None:
    """Who has refused it can make no further call, neither way."""
    found = pool.run(exact_reply_work.refused_dispatch, 3, bags(STAGED), "3x1")
    assert "rank 1 refused 1 calls" in found[0][0]
    assert "is torch.int32" in found[1][0]
    assert all("cannot follow" in each for each in found[1][1:])


@NIGHTLY
def test_mistakes(pool: Pool) -> None:
    """All ranks raise what the general engine raises, and the next call is whole."""
    work, path = exact_reply_work.mistakes, bags(STAGED)
    found = pool.run(work, 3, path, "3x1", True)
    assert found == pool.run(work, 3, path, "3x1", False)
    assert all(each == found[0] and "no error" not in each for each in found)
