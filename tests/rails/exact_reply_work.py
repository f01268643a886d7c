"""What the tests of exact sizes let ranks of several nodes do with replies; every function runs on
one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuscoc_runtime.engine.node import exact_rails, places
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.rail_calls import RailCalls
from fuscoc_runtime.engine.node.report import Report
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_triton import reply_work
from tests.node_triton.rank_work import said_by
from tests.node_triton.reply_work import BAG, ROWS, WIDTH, bag, draw
from tests.rails.exact_work import counts, open_shuffle
from tests.rails.rail_work import several_hosts, under_way
from tests.rails.reply_mistakes import bring_back


def bags(group: Any, artifact: str, sizes: Sequence[Sequence[int]], topology: str) -> None:
    with open_shuffle(group, artifact, topology) as shuffle:
        reply_work.batches(group, shuffle, sizes)
        assert isinstance(shuffle.engine.reply.node, ExactRails)
        nodes = shuffle.engine.node, shuffle.engine.reply.node
        assert all(under_way(each.rails) == 0 for each in nodes)


def questions(group: Any, artifact: str, topology: str, **options: Any) -> None:
    opened = partial(open_shuffle, topology=topology, **options)
    with mock.patch.object(reply_work, "open_exact", opened):
        reply_work.questions(group, artifact, is_fixed=False)


def in_rounds(group: Any, artifact: str, topology: str) -> tuple[int, int]:
    """Calls of ranks that say they are of several hosts; in how many rounds rows go there and
    back, at the most."""
    with (
        several_hosts(),
        counts(RailCalls, "dispatch") as there,
        counts(RailCalls, "combine") as back,
    ):
        questions(group, artifact, topology)
    most = [max(len(calls.slabs.rounds) for calls, *_ in each) for each in (there, back)]
    return most[0], most[1]


def asked(
    shuffle: Shuffle, number: int, count: int, wants_grad: bool = False
) -> tuple[Tensor, Tensor, Tensor, Any, Tensor]:
    """Ids of so many bags, weights, which may want a gradient, the ids that have come here, their
    handle, and a table."""
    table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    ids, weights, _ = draw(number, shuffle.rank, count)
    weights.requires_grad_(wants_grad)
    come, handle = shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)
    return ids, weights, table[come.clamp(0, ROWS - 1)], handle, table


def waits(group: Any, artifact: str, topology: str) -> list[int]:
    """How often the host waits for counts: in a dispatch whose size is known, combines with weights
    of dispatch and with others, and a dispatch along a known routing."""
    shuffle = open_shuffle(group, artifact, topology)
    asked(shuffle, 2, 5)
    found = []

    def call(make: Callable[[], Any]) -> Any:
        with counts(Report, "wait") as waited, counts(ExactRails, "_meet") as met:
            made = make()
        found.append(len(waited) if not met else -1)
        return made

    ids, weights, rows, handle, table = call(lambda: asked(shuffle, 2, 5))
    torch.testing.assert_close(
        call(lambda: shuffle.combine(rows, handle)), bag(table, ids, weights)
    )
    _, again = call(lambda: shuffle.dispatch(ids, handle=handle))
    late = {"per_sample_weights": 1 - weights}
    torch.testing.assert_close(
        call(lambda: shuffle.combine(rows, again, **late)), bag(table, ids, 1 - weights)
    )
    return found


def handles_last(group: Any, artifact: str, topology: str) -> None:
    """Ways back in any order, while slabs and windows of both ways grow."""
    with open_shuffle(group, artifact, topology) as shuffle:
        held = [asked(shuffle, number, count) for number, count in enumerate([2, 18, 0, 5])]
        for number in (1, 0, 3, 2, 0):
            ids, weights, rows, handle, table = held[number]
            torch.testing.assert_close(shuffle.combine(rows, handle), bag(table, ids, weights))
            late = {"per_sample_weights": 1 - weights}
            torch.testing.assert_close(
                shuffle.combine(rows, handle, **late), bag(table, ids, 1 - weights)
            )
        shuffle.check()


def changed_weights(group: Any, artifact: str, topology: str) -> list[str]:
    """Weights of rank 1 change behind the dispatch that has sent them, and have gradients or not:
    what is said of combine. Others are whole, of both ways."""
    shuffle, said = open_shuffle(group, artifact, topology), []
    for wants_grad in (False, True):
        ids, weights, rows, handle, table = asked(shuffle, 4, 3, wants_grad)
        late = weights.detach().clone()
        if shuffle.rank == 1:
            weights.detach().neg_()
            said.append(said_by(partial(shuffle.combine, rows, handle)))
        else:
            shuffle.combine(rows, handle)
        said.append(said_by(shuffle.check))
        found = shuffle.combine(rows, handle, per_sample_weights=late)
        torch.testing.assert_close(found, bag(table, ids, late))
    shuffle.close()
    return said


def too_large(group: Any, artifact: str, topology: str) -> list[tuple[str, str]]:
    """Queries of 12 bytes of which slabs carry many, and of their answers of 16 not as many; what
    handles know of both. At the end all are answered once more."""
    shuffle, kinds, held = open_shuffle(group, artifact, topology), [], []
    sizes = shuffle.engine.node._sizes
    most = sizes._sent(sizes.size_of(200)) + 8
    assert sizes._reply._sent(sizes.size_of(200)) > most
    with mock.patch.object(places, "MOST_SENT", most):
        for number in (3, 200, 4, 4, 4):  # places abate
            random = torch.Generator().manual_seed(number + shuffle.rank)
            x = torch.randn(number, 3, generator=random)
            parts = torch.randint(-1, 8, (number, 2), generator=random)
            rows, handle = shuffle.dispatch(x, parts=parts)
            held.append((x, parts, rows.clone(), handle))
            answered(shuffle, *held[-1])
            kinds.append((type(handle.known).__name__, type(handle.reply.known).__name__))
        for each in held[::-1]:
            answered(shuffle, *each)
    shuffle.check()
    shuffle.close()
    return kinds


def answered(shuffle: Shuffle, x: Tensor, parts: Tensor, rows: Tensor, handle: Any) -> None:
    """Sums of what rows are answered with, one for each part that there is."""
    sums = shuffle.combine(reply_work._answer(rows), handle)
    count = (parts >= 0).sum(1, keepdim=True)
    for name, each in reply_work._answer(x).items():
        torch.testing.assert_close(sums[name], each * count)


def mistakes(group: Any, artifact: str, topology: str, forced: bool) -> list[str]:
    """The last rank looks up what is no row, gives ids of another type, or weights of another
    shape; what is said."""
    options = {"group": group, "topology": topology, "timeout": 60.0}
    shuffle = open_shuffle(group, artifact, topology) if forced else Shuffle(artifact, **options)
    said, is_last = [], shuffle.rank == shuffle.topology.num_ranks - 1
    for number in range(3):
        ids, weights, rows, handle, table = asked(shuffle, number, 2 + shuffle.rank)
        wrong = ids.clone()
        given = {"ids": ids, "indices": ids, "per_sample_weights": weights}
        if is_last:
            wrong[0, 0] = ROWS
            given |= [
                {"ids": wrong, "indices": wrong},
                {"ids": ids.int()},
                {"per_sample_weights": weights[:, 1:]},
            ][number]
        asks = given.pop("ids")
        said.append(said_by(lambda asks=asks, given=given: shuffle.dispatch(asks, **given)))
        torch.testing.assert_close(shuffle.combine(rows, handle), bag(table, ids, weights))
    shuffle.check()
    shuffle.close()
    return said


def refused_reply(group: Any, artifact: str, topology: str) -> list[str]:
    """Rank 1 brings back rows of a wrong shape; what is said, and of a call behind it."""
    shuffle = open_shuffle(group, artifact, topology)
    ids, weights, rows, handle, table = asked(shuffle, 1, 3)
    return bring_back(shuffle, table, ids, weights, rows, handle)


def refused_dispatch(group: Any, artifact: str, topology: str) -> list[str]:
    """Rank 1 asks once more with ids of a wrong type, and would go on both ways."""
    shuffle = open_shuffle(group, artifact, topology)
    ids, weights, rows, handle, _ = asked(shuffle, 1, 3)
    if shuffle.rank == 1:
        wrong = ids.int()
        return [
            said_by(lambda: shuffle.dispatch(wrong, handle=handle)),
            said_by(lambda: shuffle.dispatch(ids, indices=ids, per_sample_weights=weights)),
            said_by(lambda: shuffle.combine(rows, handle)),
        ]
    shuffle.dispatch(ids, handle=handle)
    return [said_by(shuffle.check)]


def no_memory(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank has no memory for larger slabs of answers; what is said of two calls."""
    shuffle = open_shuffle(group, artifact, topology)
    none, new = torch.OutOfMemoryError("no memory"), exact_rails.new_slab_memory

    def scarce(spec: Any, *rest: Any) -> Any:
        if spec is shuffle.spec.reply:
            raise none
        return new(spec, *rest)

    if shuffle.rank == shuffle.topology.num_ranks - 1:
        mock.patch.object(exact_rails, "new_slab_memory", scarce).start()
    try:
        return [said_by(lambda: asked(shuffle, 1, 4 * BAG)) for _ in range(2)]
    finally:
        mock.patch.stopall()
