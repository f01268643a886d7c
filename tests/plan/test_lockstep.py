"""The collectives of the lockstep driver, and what it does when ranks are out of step."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.comm.requests import AllGather, AllToAll, AllToAlls, Phase, Request, Windows
from fuscoc_runtime.errors import ProtocolError

Work = Generator[Request, Any, Any]


def test_all_gather_stacks_by_rank() -> None:
    def work(rank: int) -> Work:
        gathered = yield AllGather(torch.tensor([rank, rank * 10]))
        return gathered.tolist()

    assert run_lockstep([work(rank) for rank in range(3)]) == [[[0, 0], [1, 10], [2, 20]]] * 3


def test_all_to_all_orders_by_source() -> None:
    """Rank s sends s + 1 rows [s, r] to every rank r."""

    def work(rank: int) -> Work:
        rows = torch.tensor([[rank, to] for to in range(3) for _ in range(rank + 1)])
        received: Tensor = yield AllToAll(rows, (rank + 1,) * 3, (1, 2, 3))
        return received.tolist()

    assert run_lockstep([work(rank) for rank in range(3)]) == [
        [[0, to], [1, to], [1, to], [2, to], [2, to], [2, to]] for to in range(3)
    ]


def test_several_at_once_are_those_one_by_one() -> None:
    def asked(rank: int) -> tuple[AllToAll, AllToAll]:
        rows = torch.arange(6).view(3, 2) + 10 * rank
        return AllToAll(rows, (1, 2), (1, 1) if rank == 0 else (2, 2)), AllToAll(
            rows[:, 0], (3, 0), (3, 3) if rank == 0 else (0, 0)
        )

    def one_by_one(rank: int) -> Work:
        first, second = asked(rank)
        return [(yield first), (yield second)]

    def at_once(rank: int) -> Work:
        return (yield AllToAlls(asked(rank)))

    wanted, found = (
        run_lockstep([work(rank) for rank in (0, 1)]) for work in (one_by_one, at_once)
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_requests_alternate_and_phases_return_nothing() -> None:
    order = []

    def work(rank: int) -> Work:
        order.append(("begin", rank))
        assert (yield Phase("middle")) is None
        order.append(("end", rank))
        return rank

    assert run_lockstep([work(0), work(1)]) == [0, 1]
    assert order == [("begin", 0), ("begin", 1), ("end", 0), ("end", 1)]


def test_handlers_are_added() -> None:
    def work(rank: int) -> Work:
        return (yield Windows({"target": rank}))

    double = {Windows: lambda requests: [2 * each.nbytes["target"] for each in requests]}
    assert run_lockstep([work(rank) for rank in range(3)], double) == [0, 2, 4]


def test_counts_that_do_not_match() -> None:
    def work(rank: int) -> Work:
        yield AllToAll(torch.zeros(2, 1), (1, 1), (1, 1 + rank))

    with pytest.raises(ProtocolError, match="rank 1 expects"):
        run_lockstep([work(0), work(1)])


def gather() -> Work:
    yield AllGather(torch.zeros(1))


def phase(name: str) -> Work:
    yield Phase(name)


def nothing() -> Work:
    yield from ()


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([gather(), phase("a")], "AllGather and Phase"),
        ([gather(), nothing()], "1 of 2 ranks yielded AllGather"),
        ([phase("a"), phase("b")], "phases"),
    ],
)
def test_ranks_out_of_step(ranks: list[Work], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        run_lockstep(ranks)


def test_an_error_ends_every_rank() -> None:
    closed = []

    def fails() -> Work:
        yield Phase("a")
        raise ValueError("mine")

    def waits() -> Work:
        try:
            yield Phase("a")
            yield Phase("b")
        finally:
            closed.append(True)

    with pytest.raises(ValueError, match="mine"):
        run_lockstep([waits(), fails()])
    assert closed == [True]
