"""What a rank does that is killed, or one of whose peers is; every function runs on one rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.engine.node.flow_rails import FlowRails
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import HopTimeoutError
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_exact import rank_work as exact
from tests.node_triton import rank_work as fixed
from tests.node_triton.given_work import combined, dispatched
from tests.node_triton.rank_work import said_by

MOST = 18
"""Segments of a rank in a call."""


def general(group: Any, artifact: str, **options: Any) -> Shuffle:
    shuffle = Shuffle(artifact, group=group, **options)
    assert isinstance(shuffle.engine, ProcessEngine)
    return shuffle


def of_fixed_capacity(group: Any, artifact: str, **options: Any) -> Shuffle:
    shuffle = fixed.open_shuffle(group, artifact, max_sources=MOST, **options)
    assert isinstance(shuffle.engine.node, RailNode)
    return shuffle


def of_exact_sizes(group: Any, artifact: str, **options: Any) -> Shuffle:
    shuffle = exact.open_shuffle(group, artifact, **options)
    assert isinstance(shuffle.engine.node, FlowRails)
    return shuffle


OPENS: dict[str, Callable[..., Shuffle]] = {
    "general": general,
    "fixed": of_fixed_capacity,
    "exact": of_exact_sizes,
}


def shuffle_for_ever(
    group: Any, artifact: str, engine: str, topology: str, timeout: float, calls: int | None = None
) -> None:
    """Dispatch and combine batches of changing sizes until something goes wrong, which the next
    call says, too; or so many ``calls``. What no error is told of is right."""
    shuffle = OPENS[engine](group, artifact, topology=topology, timeout=timeout)
    try:
        for number in itertools.count() if calls is None else range(calls):
            call(shuffle, number)
    except HopTimeoutError as error:
        if not (later := said_by(lambda: call(shuffle, 0))).endswith(str(error)):
            raise AssertionError(f"the next call says: {later}") from error
        raise


def call(shuffle: Shuffle, number: int) -> None:
    """A dispatch and a combine, compared with the reference once neither has said anything: rows of
    a fixed capacity are there when ``check`` has raised nothing."""
    ranks = generate(shuffle.spec, shuffle.topology, 2 + 7 * number % 17, number)
    data, expected = ranks[shuffle.rank], expect(shuffle.spec, ranks, shuffle.rank)
    handle, wrong = dispatched(shuffle, data, expected, {**data.inputs, **data.extents})
    if number % 2:
        shuffle.check()
        assert not wrong, wrong
    wrong += combined(shuffle, expected, handle)
    shuffle.check()
    assert not wrong, wrong
