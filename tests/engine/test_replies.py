"""Replies against torch in one process: bags of a table, and queries that come back as answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import embedding_bag

import fuscoc
from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.engine.pool import Pool
from tests.engine.specs import artifact
from tests.specs import EXAMPLES
from tests.static import specs

ROWS, WIDTH, BAG, PARTS, RANKS = 24, 4, 3, 8, 4
SIZES = {"rows": ROWS, "width": WIDTH, "bag": BAG, "parts": PARTS}
TOPOLOGIES = ["1x4", "2x2"]
QUERIES = """shuffle ask {
  index t : queries
  index k : 2
  index p : 8
  segment query { x : f32[3] }
  segment answer { y : f32[2], n : f64[1] }
  layout asked[t] of query
  layout by_part[p, s] of query packed(s) align 4 ALIGN
  place p on rank by cyclic
  route part(t, k) -> p = input parts : int64
  dispatch asked[t] -> by_part[part(t, k), *]
  reply answers[t] of answer reduce sum
}
"""


def embedding(topology: str) -> LockstepShuffle:
    compiled = specs.artifact("embedding.fsc", **SIZES)
    return LockstepShuffle(compiled, topology=Topology.parse(topology))


@pytest.fixture(scope="module", params=TOPOLOGIES)
def lookup(request: pytest.FixtureRequest) -> LockstepShuffle:
    return embedding(request.param)


bags = st.lists(st.lists(st.integers(-1, ROWS - 1), min_size=BAG, max_size=BAG), max_size=4)


@given(st.lists(bags, min_size=RANKS, max_size=RANKS), st.integers(0, 99))
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_bags_and_their_gradients(
    lookup: LockstepShuffle, drawn: list[list[list[int]]], seed: int
) -> None:
    """Sums, gradients of the table (rows named twice are added up) and of the weights."""
    random = torch.Generator().manual_seed(seed)
    ids = [torch.tensor(each, dtype=torch.int64).view(-1, BAG) for each in drawn]
    weights = [torch.rand(each.shape, generator=random) for each in ids]
    table = torch.randn(ROWS, WIDTH, generator=random)
    upstream = [torch.randn(len(each), WIDTH, generator=random) for each in ids]

    ours, weighed = table.clone().requires_grad_(), [w.clone().requires_grad_() for w in weights]
    done = lookup.dispatch(
        [[each] for each in ids],
        [
            {"indices": each, "per_sample_weights": weight}
            for each, weight in zip(ids, weighed, strict=True)
        ],
    )
    for rank, each in enumerate(done):
        asked = each.rows["row"]
        assert set((asked // (ROWS // RANKS)).tolist()) <= {rank}
    answers = [ours[each.rows["row"]] for each in done]
    sums = lookup.combine(answers, [each.handle for each in done], [{}] * RANKS)
    torch.autograd.backward([each["x"] for each in sums], upstream)

    wanted, wanted_weights = table.clone().requires_grad_(), [w.requires_grad_() for w in weights]
    expected = [bag(wanted, *each) for each in zip(ids, wanted_weights, strict=True)]
    torch.autograd.backward(expected, upstream)
    assert wanted.grad is not None
    for got, want in zip(sums, expected, strict=True):
        torch.testing.assert_close(got["x"], want)
    torch.testing.assert_close(ours.grad if ours.grad is not None else 0 * table, wanted.grad)
    for held, want in zip(weighed, wanted_weights, strict=True):
        torch.testing.assert_close(held.grad, want.grad)


def bag(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """What a rank looks up, by torch alone."""
    there = torch.where(ids >= 0, weights, 0.0)
    return embedding_bag(ids.clamp(min=0), table, mode="sum", per_sample_weights=there)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("align", ["", "compact"])
def test_what_was_sent_has_gradients(topology: str, align: str) -> None:
    """Answers of two fields to queries that go to two places; -1 is none."""
    text = QUERIES.replace("ALIGN", align)
    shuffle = LockstepShuffle(artifact(text), topology=Topology.parse(topology))
    reply = shuffle.spec.reply
    assert reply is not None
    assert reply.shares_plan, "there is an answer for every query"
    random = torch.Generator().manual_seed(1)
    sizes = [3, 0, 2, 4]
    parts = [torch.randint(-1, 8, (size, 2), generator=random) for size in sizes]
    queries = [torch.randn(size, 3, generator=random) for size in sizes]
    ours = [each.clone().requires_grad_() for each in queries]
    done = shuffle.dispatch([[each] for each in ours], [{"parts": each} for each in parts])
    answers = []
    for each in done:
        rows, index = each.rows["x"], each.handle.row_index
        held = rows if index is None else rows[index.clamp(min=0)]
        answers.append(answer(held))
    sums = shuffle.combine(answers, [each.handle for each in done], [{}] * RANKS)
    weigh(sums).backward()

    plain = [each.requires_grad_() for each in queries]
    expected = []
    for query, part in zip(plain, parts, strict=True):
        count = (part >= 0).sum(1, keepdim=True)
        expected.append({name: each * count for name, each in answer(query).items()})
    weigh(expected).backward()
    for got, want in zip(sums, expected, strict=True):
        torch.testing.assert_close(got, want)
    for got_x, want_x in zip(ours, plain, strict=True):
        torch.testing.assert_close(got_x.grad, want_x.grad)


def answer(rows: Tensor) -> dict[str, Tensor]:
    return {"y": (rows * rows)[:, :2], "n": rows.double().sum(1, keepdim=True)}


def weigh(results: list[dict[str, Tensor]]) -> Tensor:
    """A number that every element of every result counts in differently."""
    flat = torch.cat([each.double().flatten() for result in results for each in result.values()])
    return (flat * torch.arange(1.0, 1 + len(flat))).sum()


def test_the_same_routing_answers_again() -> None:
    """Handles answer for later dispatches of the same ids, with weights that combine is given."""
    shuffle = embedding("2x2")
    ids = [torch.tensor([[1, 23, -1], [7, 7, 0]])] * RANKS
    table = torch.randn(ROWS, WIDTH)
    given = [{"indices": each} for each in ids]
    handles = [each.handle for each in shuffle.dispatch([[each] for each in ids], given)]
    for seed in range(2):
        weights = torch.rand(2, BAG, generator=torch.Generator().manual_seed(seed))
        again = shuffle.dispatch([[each] for each in ids], given)
        answers = [table[each.rows["row"]] for each in again]
        sums = shuffle.combine(answers, handles, [{"per_sample_weights": weights}] * RANKS)
        for each in sums:
            torch.testing.assert_close(each["x"], bag(table, ids[0], weights))


def looked_up_again(group: Any, artifact: str) -> None:
    """A dispatch, and then one with its handle and other weights, on one of two ranks."""
    shuffle = Shuffle(artifact, group=group, timeout=60.0)
    random = torch.Generator().manual_seed(5)
    table = torch.randn(ROWS, WIDTH, generator=random)
    ids = torch.randint(-1, ROWS, (2, 4, BAG), generator=random)[shuffle.rank]
    first, second = torch.rand(2, 4, BAG, generator=random)
    rows, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=first)
    torch.testing.assert_close(shuffle.combine(table[rows], handle), bag(table, ids, first))
    rows, again = shuffle.dispatch(ids, handle=handle, per_sample_weights=second)
    torch.testing.assert_close(shuffle.combine(table[rows], again), bag(table, ids, second))
    shuffle.close()


def test_a_handle_dispatches_again() -> None:
    """Along its routing, with weights of its own."""
    pool = Pool(2)
    try:
        pool.run(looked_up_again, 2, str(specs.artifact("embedding.fsc", **SIZES).path))
    finally:
        pool.close()


def test_rows_that_a_later_dispatch_has_replaced_are_refused() -> None:
    """A reply may bring back what arrived, as long as that is still there."""
    text = QUERIES.replace("y : f32[2], n : f64[1]", "x : f32[3]").replace("ALIGN", "")
    shuffle = LockstepShuffle(artifact(text), topology=Topology.parse("1x1"))
    x, parts = torch.randn(2, 3), torch.tensor([[0, 1], [2, -1]])
    [first] = shuffle.dispatch([[x]], [{"parts": parts}])
    [result] = shuffle.combine([first.rows], [first.handle], [{}])
    torch.testing.assert_close(result["x"], x * torch.tensor([[2.0], [1.0]]))
    shuffle.dispatch([[x]], [{"parts": parts}])
    with pytest.raises(InputError, match="is what dispatch 1 returned"):
        shuffle.combine([first.rows], [first.handle], [{}])


def test_the_decorated_function_answers() -> None:
    """One rank, by `fused_shuffle`: gradients and `torch.compile` included."""
    table = torch.randn(ROWS, WIDTH, requires_grad=True)

    @fuscoc.fused_shuffle(EXAMPLES / "embedding.fsc", constants=SIZES)
    def look_up(rows: Tensor) -> Tensor:
        return table[rows]

    ids = torch.tensor([[1, 23, -1], [7, 7, 0]])
    weights = torch.rand(2, BAG)
    for call in (look_up, torch.compile(look_up, fullgraph=True, backend="aot_eager")):
        table.grad = None
        held = weights.clone().requires_grad_()
        sums = call(ids, indices=ids, per_sample_weights=held)
        (sums * sums).sum().backward()
        got, table.grad = table.grad, None
        plain = weights.clone().requires_grad_()
        want = bag(table, ids, plain)
        (want * want).sum().backward()
        torch.testing.assert_close(sums, want)
        torch.testing.assert_close(got, table.grad)
        torch.testing.assert_close(held.grad, plain.grad)
