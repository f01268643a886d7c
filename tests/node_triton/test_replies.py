"""Replies by the Triton kernels of one node, interpreted: processes that store into each other's
memory, compared with torch's ``embedding_bag`` on each rank by itself."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.engine.specs import artifact
from tests.engine.test_replies import QUERIES
from tests.node_triton import reply_work
from tests.static import specs

MOST = 5


pool = pool_of(4)


@pytest.fixture(scope="module")
def embedding() -> str:
    return str(specs.artifact("embedding.fsc", **reply_work.SIZES).path)


# Bags of every rank, batch after batch in the same memory.
BATCHES = [[(5,), (0,)], [(3, 5), (0, 4)], [(2, 0, 5, 1)]]


@pytest.mark.parametrize("sizes", BATCHES, ids=lambda sizes: f"{len(sizes[0])} ranks")
def test_bags_and_their_gradients(pool: Pool, embedding: str, sizes: list[tuple[int, ...]]) -> None:
    """``max_sources`` need not be whole bags."""
    pool.run(reply_work.fixed, len(sizes[0]), embedding, sizes, MOST * reply_work.BAG - 1)


@pytest.mark.nightly
@given(data=st.data(), num_ranks=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bags(pool: Pool, embedding: str, data: st.DataObject, num_ranks: int) -> None:
    bags = st.tuples(*[st.integers(0, MOST)] * num_ranks)
    sizes = data.draw(st.lists(bags, min_size=1, max_size=3))
    pool.run(reply_work.fixed, num_ranks, embedding, sizes, MOST * reply_work.BAG - 1)


def test_exact_sizes(pool: Pool, embedding: str) -> None:
    """Windows grow for rows of the reply, too."""
    pool.run(reply_work.exact, 2, embedding, [(1, 2), (4, 0)])


def test_weights_of_a_reply_have_gradients_beside_what_was_sent(pool: Pool) -> None:
    weighed = "  weight w(t, k) : f32 = input ws\n  dispatch"
    text = QUERIES.replace("ALIGN", "").replace("  dispatch", weighed)
    text = text.replace(", n : f64[1]", "").replace("reduce sum", "reduce sum(w)")
    pool.run(reply_work.weighed_questions, 2, str(artifact(text).path))


def test_weights_of_a_reply_that_change(pool: Pool, embedding: str) -> None:
    for said in pool.run(reply_work.changed_weights, 2, embedding):
        assert "`per_sample_weights` on rank" in said[0]
        assert "has been changed in place since the handle's dispatch" in said[0]


def test_rows_that_a_dispatch_without_answers_has_overwritten(pool: Pool) -> None:
    text = QUERIES.replace("ALIGN", "").replace("of answer", "of query")
    for said in pool.run(reply_work.no_answers, 2, str(artifact(text).path)):
        assert "no memory" in said[0]
        assert "is what dispatch 1 returned, where dispatch 2 has put its own rows" in said[1]


@pytest.mark.nightly
def test_calls_that_kernels_leave_out(pool: Pool, embedding: str) -> None:
    pool.run(reply_work.left_out, 2, embedding)


@pytest.mark.parametrize(
    ("packing", "is_fixed"),
    [
        pytest.param("", True, id="fixed", marks=pytest.mark.nightly),
        pytest.param("compact", True, id="compact"),
        pytest.param("", False, id="exact", marks=pytest.mark.nightly),
        pytest.param("compact", False, id="compact, exact"),
    ],
)
def test_what_was_sent_has_gradients(pool: Pool, packing: str, is_fixed: bool) -> None:
    path = str(artifact(QUERIES.replace("ALIGN", packing)).path)
    pool.run(reply_work.questions, 2, path, is_fixed)


def test_mistakes(pool: Pool, embedding: str) -> None:
    """Each is counted once, and named by ``check``; every other call is whole."""
    first, second = pool.run(reply_work.mistakes, 2, embedding)
    refused = "rank 1 refused 1 calls"
    assert [first[i] for i in (0, 1, 5)] == ["no error", "0", "no error"]
    assert all(refused in first[i] for i in (2, 3, 4))
    said, dropped, *others = second
    assert "is no key for 1 points" in said
    assert dropped == "1"
    wrong = ("is torch.int32", "has the shape", "`handle` on rank 1")
    assert all(part in said for part, said in zip(wrong, others[0::2], strict=False))
    assert others[1::2] == ["no error"] * 3
    assert others[-1] == "no error"
