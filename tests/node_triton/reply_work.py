"""What the tests of replies let processes do; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import embedding_bag

from fuscoc_runtime.engine.node import exact as exact_node
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.errors import PreparationError
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_exact.rank_work import open_shuffle as open_exact
from tests.node_triton.rank_work import open_shuffle, said_by

ROWS, WIDTH, BAG, PARTS = 24, 4, 4, 8
SIZES = {"rows": ROWS, "width": WIDTH, "bag": BAG, "parts": PARTS}


def bag(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """What a rank looks up, by torch alone."""
    there = torch.where(ids >= 0, weights, 0.0)
    return embedding_bag(ids.clamp(min=0), table, mode="sum", per_sample_weights=there)


def draw(number: int, rank: int, bags: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of a batch, some of them none, weights, and gradients of the sums."""
    random = torch.Generator().manual_seed(100 * number + rank)
    ids = torch.randint(-1, ROWS, (bags, BAG), generator=random)
    weights = torch.rand(bags, BAG, generator=random)
    return ids, weights, torch.randn(bags, WIDTH, generator=random)


def look_up(
    shuffle: Shuffle, table: Tensor, ids: Tensor, weights: Tensor, handle: Any = None
) -> tuple[Tensor, Any]:
    """Sums by the shuffle, and its handle; what lies in unused slots is any number."""
    given = {} if handle is not None else {"indices": ids}
    asked, handle = shuffle.dispatch(ids, handle=handle, **given, per_sample_weights=weights)
    return shuffle.combine(table[asked.clamp(0, ROWS - 1)], handle), handle


def batches(group: Any, shuffle: Shuffle, sizes: Sequence[Sequence[int]]) -> None:
    """Sums, and gradients of the table and of the weights, are those of ``embedding_bag``."""
    torch.manual_seed(5)
    table = torch.randn(ROWS, WIDTH)
    for number, bags in enumerate(sizes):
        ids, weights, upstream = draw(number, shuffle.rank, bags[shuffle.rank])
        ours, weighed = table.clone().requires_grad_(), weights.clone().requires_grad_()
        sums, handle = look_up(shuffle, ours, ids, weighed)
        sums.backward(upstream)
        if not isinstance(shuffle.engine, NodeEngine):  # which takes weights at dispatch alone
            rows, late = _rows(shuffle, table, ids, handle), 1 - weights
            found = shuffle.combine(rows.requires_grad_(), handle, per_sample_weights=late)
            torch.testing.assert_close(found, bag(table, ids, late))
        wanted, plain = table.clone().requires_grad_(), weights.clone().requires_grad_()
        want = bag(wanted, ids, plain)
        want.backward(upstream)
        torch.testing.assert_close(sums, want)
        torch.testing.assert_close(weighed.grad, plain.grad)
        # The owner's share of the gradient, of all ranks.
        assert wanted.grad is not None
        dist.all_reduce(wanted.grad, group=group)
        got = torch.zeros_like(table) if ours.grad is None else ours.grad
        dist.all_reduce(got, group=group)
        torch.testing.assert_close(got, wanted.grad)
        # Once more along the routing, with other weights and without a graph.
        again, handle = look_up(shuffle, table, ids, 1 - weights, handle)
        torch.testing.assert_close(again, bag(table, ids, 1 - weights))
        assert torch.equal(shuffle.combine(_rows(shuffle, table, ids, handle), handle), again)
    shuffle.check()


def _rows(shuffle: Shuffle, table: Tensor, ids: Tensor, handle: Any) -> Tensor:
    asked, _ = shuffle.dispatch(ids, handle=handle)
    return table[asked.clamp(0, ROWS - 1)]


def fixed(
    group: Any, artifact: str, sizes: Sequence[Sequence[int]], most: int, **options: Any
) -> None:
    with open_shuffle(group, artifact, max_sources=most, **options) as shuffle:
        batches(group, shuffle, sizes)


def exact(group: Any, artifact: str, sizes: Sequence[Sequence[int]]) -> None:
    with open_exact(group, artifact) as shuffle:
        batches(group, shuffle, sizes)


def left_out(group: Any, artifact: str) -> None:
    """Calls that kernels do not count are the general engine's, and so are their ways back."""
    with open_exact(group, artifact) as shuffle, mock.patch.object(exact_node, "MAX_POINTS", 0):
        batches(group, shuffle, [(2, 1), (0, 3)])
        assert shuffle.memory().window_bytes > 0


def questions(group: Any, artifact: str, is_fixed: bool, **options: Any) -> None:
    """Answers of two fields to queries that go to two places: gradients of what was sent, as of the
    same in one process, where every place answers alike."""
    open_it = partial(open_shuffle, max_sources=5, **options) if is_fixed else open_exact
    opened = open_it(group, artifact)
    with opened as shuffle:
        for number, size in enumerate((3, 0, 4) if shuffle.rank % 2 else (2, 5, 1)):
            random = torch.Generator().manual_seed(10 * number + shuffle.rank)
            parts = torch.randint(-1, 8, (size, 2), generator=random).to(shuffle.device)
            ours = torch.randn(size, 3, generator=random).to(shuffle.device).requires_grad_()
            rows, handle = shuffle.dispatch(ours, parts=parts)
            assert isinstance(handle.reply, NodeHandle if is_fixed else ExactHandle)
            index = handle.row_index
            held = rows if index is None else rows[index.clamp(min=0)]
            sums = shuffle.combine(_answer(held), handle)
            plain = ours.detach().clone().requires_grad_()
            count = (parts >= 0).sum(1, keepdim=True)
            expected = {name: each * count for name, each in _answer(plain).items()}
            for result in (sums, expected):
                weighed = [
                    each.double() * torch.arange(1.0, 1 + each.shape[1], device=each.device)
                    for each in result.values()
                ]
                sum(each.square().sum() for each in weighed).backward()
            for name, want in expected.items():
                torch.testing.assert_close(sums[name], want)
            torch.testing.assert_close(ours.grad, plain.grad)
        shuffle.check()


def weighed_questions(group: Any, artifact: str) -> None:
    """Gradients of what was sent, of weights that came with it and have changed since."""
    with open_exact(group, artifact) as shuffle:
        random = torch.Generator().manual_seed(shuffle.rank)
        parts = torch.randint(8, (4, 2), generator=random)
        x = torch.randn(4, 3, generator=random, requires_grad=True)
        weights = torch.rand(4, 2, generator=random, requires_grad=True)
        rows, handle = shuffle.dispatch(x, parts=parts, ws=weights)
        with torch.no_grad():
            weights.neg_()
        sums = shuffle.combine(rows[:, :2], handle)
        total = weights.detach().sum(1, keepdim=True)
        torch.testing.assert_close(sums, x[:, :2] * total)
        sums.sum().backward()
        wanted = torch.cat([total.expand(-1, 2), torch.zeros(4, 1)], dim=1)
        torch.testing.assert_close(x.grad, wanted)
        each = x.detach()[:, :2].sum(1, keepdim=True)
        torch.testing.assert_close(weights.grad, each.expand(-1, 2))
        shuffle.check()


def changed_weights(group: Any, artifact: str) -> list[str]:
    """Weights with gradients change behind a dispatch: sums are by what they are then, without a
    graph; what is said where they have travelled."""
    said = []
    for open_it in (open_exact, partial(open_shuffle, max_sources=2 * BAG)):
        with open_it(group, artifact) as shuffle:
            ids, weights, _ = draw(4, shuffle.rank, 2)
            table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
            weights.requires_grad_()
            asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
            rows = table[asked.clamp(0, ROWS - 1)]
            with torch.no_grad():
                weights.neg_()
                if isinstance(shuffle.engine, NodeEngine):
                    said.append(said_by(partial(shuffle.combine, rows, handle)))
                else:
                    found = shuffle.combine(rows, handle)
                    torch.testing.assert_close(found, bag(table, ids, weights.detach()))
    return said


def no_answers(group: Any, artifact: str) -> list[str]:
    """There is no memory for the answers to a dispatch, whose queries have come: what is said of
    it, and of those of the dispatch before, which lay there, as answers; copies of them are."""
    with open_exact(group, artifact) as shuffle:
        parts = torch.arange(6).view(3, 2)
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(shuffle.rank))
        rows, handle = shuffle.dispatch(x, parts=parts)
        held, error = rows.clone(), PreparationError(1, "no memory")
        with mock.patch.object(shuffle.engine.reply.node, "follow", return_value=error):
            said = [said_by(lambda: shuffle.dispatch(-x, parts=parts))]
        said.append(said_by(lambda: shuffle.combine(rows, handle)))
        shuffle.engine.members.meet("test")
        torch.testing.assert_close(shuffle.combine(held, handle), 2 * x)
    return said


def _answer(rows: Tensor) -> dict[str, Tensor]:
    return {"y": (rows * rows)[:, :2], "n": rows.double().sum(1, keepdim=True)}


def mistakes(group: Any, artifact: str) -> list[str]:
    """An id that is no row's, refused calls, and a good call behind each."""
    shuffle = open_shuffle(group, artifact, max_sources=4 * BAG)
    table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    rank, said = shuffle.rank, []
    ids, weights, _ = draw(1, rank, 3)
    ids[0] = torch.tensor([1, -1, 7, -1])
    elsewhere = (ids < ROWS // 2).all(1)
    assert elsewhere.tolist() != [True] * 3

    def expect_without_rank_1(result: Tensor) -> None:
        """What needs rank 1 is NaN."""
        assert torch.equal(result.isnan().any(1), ~elsewhere)
        torch.testing.assert_close(result[elsewhere], bag(table, ids, weights)[elsewhere])

    def call(ids: Tensor, weights: Tensor) -> None:
        result, _ = look_up(shuffle, table, ids, weights)
        torch.testing.assert_close(result, bag(table, ids, weights))

    call(ids, weights)
    wrong = ids.clone()
    wrong[0, 0] = ROWS if rank == 1 else 3
    asked, handle = shuffle.dispatch(wrong, indices=wrong, per_sample_weights=weights)
    result = shuffle.combine(table[asked.clamp(0, ROWS - 1)], handle)
    there = torch.where(wrong == ROWS, -1, wrong)
    torch.testing.assert_close(result, bag(table, there, weights))
    said += [said_by(shuffle.check), str(int(handle.dropped))]
    call(ids, weights)
    # Rank 1 refuses a dispatch, and then a combine.
    if rank == 1:
        said.append(said_by(lambda: shuffle.dispatch(ids.int(), indices=ids)))
    else:
        asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
        result = shuffle.combine(table[asked.clamp(0, ROWS - 1)], handle)
        expect_without_rank_1(result)
    said.append(said_by(shuffle.check))
    asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
    rows = table[asked.clamp(0, ROWS - 1)]
    if rank == 1:
        said.append(said_by(lambda: shuffle.combine(rows[:, 1:], handle)))
    else:
        result = shuffle.combine(rows, handle)
        expect_without_rank_1(result)
    said.append(said_by(shuffle.check))
    asked, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
    if rank == 1:  # without a handle the peers find out at the next dispatch
        said.append(said_by(lambda: shuffle.combine(rows, None)))
    else:
        shuffle.combine(rows, handle)
    call(ids, weights)
    said.append(said_by(shuffle.check))
    call(ids, weights)
    said.append(said_by(shuffle.check))
    shuffle.close()
    return said
