"""What the tests of exact sizes let processes do; every function runs on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuscoc_runtime.demo.rank import run_rank
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.node import exact, exact_rails
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.state import MEETINGS, PLAN_EPOCH
from fuscoc_runtime.engine.node.static_engine import StaticEngine
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face import open as opening
from fuscoc_runtime.face.choice import exact_kernels, static_sources
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.artifact import load_artifact
from tests.node_triton.rank_work import batch, run, said_by
from tests.torch import rank_work as torch_work

TIMEOUT = 60.0
KEYS, TOPK, HIDDEN = 12, 3, 24


@contextmanager
def on_the_device() -> Iterator[None]:
    """What is opened meanwhile plans in kernels, as on GPUs."""
    with mock.patch.multiple(
        opening,
        choose_exact=lambda shuffle, topology, *_: exact_kernels(shuffle, topology),
        choose_static=lambda shuffle, topology, *_: static_sources(shuffle, topology),
    ):
        yield


def open_shuffle(group: Any, artifact: Any, **options: Any) -> Shuffle:
    with on_the_device():
        shuffle = Shuffle(artifact, group=group, **{"timeout": TIMEOUT, **options})
    assert isinstance(shuffle.engine, ExactEngine | StaticEngine)
    return shuffle


def _general(group: Any, artifact: Any, **options: Any) -> Shuffle:
    return Shuffle(artifact, group=group, **options)


def batches(
    group: Any,
    artifact: str,
    sizes: Sequence[Sequence[int]],
    seed: int,
    first: int = 0,
    **options: Any,
) -> None:
    """Dispatches and combines in a row, whose outermost extent is ``sizes[i][rank]``, some ranks
    late; as if there had been ``first`` dispatches before."""
    shuffle = open_shuffle(group, artifact, **options)
    if first:
        pretend(shuffle, first)
    for number, each in enumerate(sizes):
        time.sleep(0.02 * ((number + shuffle.rank) % 3))
        run(shuffle, batch(shuffle.spec, each, seed + number), combines=1 + number % 2)
        stats = shuffle.stats()
        assert stats is not None
        assert stats.num_slots == shuffle._executor.observer.tally.handle.num_slots
    shuffle.check()


def pretend(shuffle: Shuffle, epoch: int) -> None:
    """Let the latest dispatch, meeting and combine have been of that number."""
    node = shuffle.engine.node
    node.state[[PLAN_EPOCH, MEETINGS]] = epoch
    node._routing[11] = epoch
    node._epoch = epoch
    node._memory.pretend(epoch, epoch)
    shuffle.engine.members.meet("test")


def data_of(rank: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed * 31 + rank)
    return {
        "x": torch.rand(tokens, HIDDEN, generator=random),
        "idx": torch.randint(-1, KEYS, (tokens, TOPK), generator=random),
        "weights": torch.rand(tokens, TOPK, generator=random),
    }


def summed(given: Mapping[str, Tensor]) -> Tensor:
    """What comes back of rows that nobody has changed."""
    return given["x"] * (given["weights"] * (given["idx"] >= 0)).sum(1, keepdim=True)


def handles_last(group: Any, artifact: str, **options: Any) -> None:
    """Combines, with weights of dispatch or of their own, and dispatches along routings of
    different sizes, in any order; meanwhile windows grow, and what calls were given is changed."""
    shuffle = open_shuffle(group, artifact, **options)
    held: list[tuple[dict[str, Tensor], Tensor, Any]] = []
    for number, tokens in enumerate([2, 5, 1, 12]):
        given = data_of(shuffle.rank, tokens + shuffle.rank, number)
        routing = given["idx"].clone()
        weights = {"weights": given["weights"]} if number % 2 else {}
        rows, handle = shuffle.dispatch(given["x"], idx=routing, **weights)
        routing.fill_(-1)
        held.append((given, by_slot(rows, handle), handle))
    for number in (0, 3, 1, 2, 0):
        given, rows, handle = held[number]
        late = {} if number % 2 else {"weights": given["weights"]}
        close(shuffle.combine(rows, handle, **late), summed(given))
    for number in (3, 0, 2, 1):
        given, _, handle = held[number]
        again = dict(given, x=given["x"] + 1, weights=given["weights"] * 2)
        rows, new = shuffle.dispatch(again["x"], handle=handle)
        late = {"weights": again["weights"]}
        close(shuffle.combine(by_slot(rows, new), new, **late), summed(again))
        close(shuffle.combine(held[number][1], handle, weights=given["weights"]), summed(given))
    assert said_by(lambda: shuffle.dispatch(rows[:1], handle=new)).startswith("InputError")
    shuffle.close()


def lent_rows(group: Any, artifact: str) -> list[str]:
    """What is said of rows of the window that are dispatched, before it has grown and after. Where
    they lie is looked up when it grows: not in calls of one size."""
    shuffle, said = open_shuffle(group, artifact), []
    for tokens in (3, 30):
        given = data_of(shuffle.rank, tokens)
        shuffle.dispatch(**given)
        with mock.patch.object(Tensor, "untyped_storage", side_effect=AssertionError):
            rows, handle = shuffle.dispatch(**given)
            close(shuffle.combine(by_slot(rows, handle), handle), summed(given))
            again = {**given, "x": rows[:tokens]}
            said.append(said_by(partial(shuffle.dispatch, **again)))
    shuffle.close()
    return said


def short_rows_again(group: Any, artifact: str) -> None:
    """Rows of four elements to one key each: along routings of different sizes, and back."""
    shuffle = open_shuffle(group, artifact)
    held: list[tuple[Tensor, Tensor, Tensor, Any]] = []
    for number, rows in enumerate((300, 5)):
        random = torch.Generator().manual_seed(number * 31 + shuffle.rank)
        x = torch.rand(rows + shuffle.rank, 4, generator=random)
        idx = torch.randint(-1, KEYS, (len(x),), generator=random)
        there, handle = shuffle.dispatch(x, idx=idx)
        held.append((x, idx, there.clone(), handle))
    for number in (0, 1, 0):
        x, idx, there, handle = held[number]
        again, new = shuffle.dispatch(x + 1, handle=handle)
        assert torch.equal(again, there + 1)
        assert torch.equal(shuffle.combine(again.clone(), new), (x + 1) * (idx >= 0)[:, None])
        assert torch.equal(shuffle.combine(there, handle), x * (idx >= 0)[:, None])
    shuffle.check()


def by_slot(rows: Tensor, handle: Any) -> Tensor:
    """Copies of rows, one for every slot; those of padding count for nothing."""
    index = handle.row_index
    return rows.clone() if index is None else rows[index.clamp(min=0)]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def mistakes(
    group: Any, artifact: str, num_mistakes: int, forced: bool, **options: Any
) -> list[str]:
    """Rank 1 makes so many mistakes, one after the other, in calls that plan; what is said, and
    whether calls in between are whole, and rows of one before are still there."""
    opened = open_shuffle if forced else _general
    shuffle = opened(group, artifact, **options)
    said = []

    def key(value: int) -> Callable[[dict[str, Any]], None]:
        def make(given: dict[str, Any]) -> None:
            given["idx"][1, 2] = value

        return make

    changes: Sequence[Callable[[dict[str, Any]], None]] = (
        key(KEYS),
        lambda given: given.update(x=given["x"].double()),
        lambda given: given.pop("idx"),
        lambda given: given.update(weights=given["weights"][:, :1]),
        lambda given: given.update(x=rows[:4] if len(rows) >= 4 else rows),
    )
    for number, change in enumerate(changes[:num_mistakes]):
        good = data_of(shuffle.rank, 6 + number, number)
        rows, handle = shuffle.dispatch(**good)
        bad: dict[str, Any] = data_of(shuffle.rank, 4)
        if shuffle.rank == 1:
            change(bad)
        said.append(said_by(lambda bad=bad: shuffle.dispatch(**bad)))
        index = handle.row_index
        back = rows if index is None else rows[index.clamp(min=0)]
        close(shuffle.combine(back, handle), summed(good))
    shuffle.check()
    shuffle.close()
    return said


def refusals(group: Any, artifact: str) -> list[str]:
    """Calls along known routings that rank 1 refuses, or of which it means another dispatch; calls
    in between are whole."""
    shuffle = open_shuffle(group, artifact)
    rank, said = shuffle.rank, []
    given = data_of(rank, 5)
    own = given["idx"] // (KEYS // shuffle.topology.num_ranks)
    needs = (own == 1).any(1) if rank != 1 else ((own >= 0) & (own != 1)).any(1)

    def whole() -> None:
        run(shuffle, batch(shuffle.spec, [1] * shuffle.topology.num_ranks, len(said)), combines=1)

    _, first = shuffle.dispatch(**given)
    _, second = shuffle.dispatch(**given)
    full = torch.rand(first.num_slots, HIDDEN)
    wrong = full[:, 1:] if rank == 1 else full
    for handle, rows in ((first, wrong), (second if rank == 1 else first, full)):
        if rank == 1 and rows is wrong:
            said.append(said_by(lambda rows=rows, handle=handle: shuffle.combine(rows, handle)))
        else:
            lost = shuffle.combine(rows, handle).isnan()
            assert torch.equal(lost.any(1), needs)
            assert torch.equal(lost.all(1), needs)
            said.append("joined")
        whole()
        said.append(told(shuffle))
    wrong_x = given["x"].double() if rank == 1 else given["x"]
    for handle, x in ((first, wrong_x), (second if rank == 1 else first, given["x"])):
        new = None
        try:
            _, new = shuffle.dispatch(x, handle=handle)
            said.append("joined")
        except FuscoRuntimeError as error:
            said.append(str(error))
        if new is not None:  # nothing has been moved, on any rank
            result = shuffle.combine(torch.rand(new.num_slots, HIDDEN), new)
            assert bool(result.isnan().all())
        whole()
        said.append(told(shuffle))
    shuffle.close()
    return said


def told(shuffle: Shuffle) -> str:
    """What ``check`` raises, until it raises nothing."""
    found = []
    while (message := said_by(shuffle.check)) != "no error":
        found.append(message)
    return "; ".join(found) or "no error"


@contextmanager
def most_points(most: int) -> Iterator[None]:
    """Kernels count so many."""
    with (
        mock.patch.object(exact, "MAX_POINTS", most),
        mock.patch.object(exact_rails, "MAX_POINTS", most),
    ):
        yield


def left_out(group: Any, artifact: str, **options: Any) -> None:
    """A call that kernels cannot count is carried out by the general engine, gradients too; the
    next one is not."""
    shuffle = open_shuffle(group, artifact, **options)
    kinds = []
    for most in (3 * TOPK, exact.MAX_POINTS):
        with most_points(most):
            given = data_of(shuffle.rank, 5)
            given["x"].requires_grad_()
            given["weights"].requires_grad_()
            rows, handle = shuffle.dispatch(given["x"], idx=given["idx"])
            result = shuffle.combine(by_slot(rows, handle), handle, weights=given["weights"])
        leaves = [given["x"], given["weights"]]
        close(result, summed(given))
        wanted = torch.autograd.grad(summed(given).square().sum(), leaves)
        found = torch.autograd.grad(result.square().sum(), leaves)
        for one, other in zip(found, wanted, strict=True):
            close(one, other)
        with torch.no_grad():
            _, plain = shuffle.dispatch(given["x"], handle=handle)
        kinds.append(type(plain))
    assert kinds == [Handle, ExactHandle]
    assert shuffle.memory().window_bytes > 0
    shuffle.close()


def captured(group: Any, artifact: str, **options: Any) -> list[str]:
    """What is said of calls while a CUDA graph is being captured, as far as torch says; others are
    whole."""
    shuffle = open_shuffle(group, artifact, **options)
    given = data_of(shuffle.rank, 4)
    rows, handle = shuffle.dispatch(**given)
    held = by_slot(rows, handle)
    calls = (
        lambda: shuffle.dispatch(**given),
        lambda: shuffle.dispatch(given["x"], handle=handle),
        lambda: shuffle.combine(held, handle),
    )
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True),
    ):
        said = [said_by(call) for call in calls]
    close(shuffle.combine(held, handle), summed(given))
    _, again = shuffle.dispatch(given["x"], handle=handle)
    close(shuffle.combine(held, again), summed(given))
    shuffle.check()
    shuffle.close()
    return said


def elsewhere_by_default(group: Any, artifact: str, **options: Any) -> None:
    """Calls of a program whose default device is another, one that kernels leave out among them:
    there nothing could be computed."""
    shuffle, given = open_shuffle(group, artifact, **options), data_of(group.rank(), 4)
    for most in (exact.MAX_POINTS, 3 * TOPK):
        torch.set_default_device("meta")
        try:
            with most_points(most), torch.inference_mode(most < exact.MAX_POINTS):
                rows, handle = shuffle.dispatch(**given)
                first = shuffle.combine(rows, handle)
                rows, again = shuffle.dispatch(given["x"], handle=handle)
                second = shuffle.combine(rows, again)
            shuffle.check()
        finally:
            torch.set_default_device(None)
        close(first, summed(given))
        close(second, summed(given))
    with torch.device("meta"):
        shuffle.close()


def absent(group: Any, artifact: str) -> str:
    """Rank 1 is alive but does not come."""
    shuffle = open_shuffle(group, artifact, timeout=3.0)
    if shuffle.rank == 1:
        return ""
    first, second = (
        said_by(lambda: shuffle.dispatch(**data_of(shuffle.rank, 2))) for _ in range(2)
    )
    assert first == second
    return first


def demo(group: Any, artifact: str, topology: str | None = None) -> tuple[str | None, int]:
    """What ``fuscoc run`` does on a rank: what is wrong, and rows for other ranks."""
    with on_the_device():
        report = run_rank(
            load_artifact(artifact), None, 5, 1, group=group, timeout=TIMEOUT, topology=topology
        )
    assert report.planning_ms == 0
    return report.problem, report.nvlink.rows + report.network.rows


def by_torch(group: Any, name: str, *arguments: Any) -> Any:
    """A function of the tests of the interface to PyTorch, by these kernels."""
    with on_the_device():
        return getattr(torch_work, name)(group, *arguments)
