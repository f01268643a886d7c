"""All ranks in one process, advanced request by request."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fuscoc_runtime.arrays import Array, namespace, on_host, split
from fuscoc_runtime.comm.requests import (
    AllGather,
    AllToAll,
    AllToAlls,
    Phase,
    Request,
    StartGather,
)
from fuscoc_runtime.errors import ProtocolError

T = TypeVar("T")
Handler = Callable[[Sequence[Any]], Sequence[Any]]
"""Answers one request kind: requests of all ranks, in rank order -> results of all ranks."""


def run_lockstep(
    generators: Sequence[Generator[Request, Any, T]],
    handlers: Mapping[type, Handler] | None = None,
) -> list[T]:
    """Run the generators of ranks 0, 1, ... to their end and return their results.

    ``handlers`` adds to, or replaces, the answers for ``COLLECTIVES``.
    An error of any rank ends all of them. Ranks that yield different request kinds, or of which
    only some end, are a ``ProtocolError``.
    """
    answers: dict[type, Handler] = {**COLLECTIVES, **(handlers or {})}
    inbox: Sequence[Any] = [None] * len(generators)
    try:
        while True:
            requests, results = _advance(generators, inbox)
            if not requests:
                return results
            inbox = answers[_common_kind(requests, len(generators))](requests)
    finally:
        for generator in generators:
            generator.close()


def _advance(
    generators: Sequence[Generator[Request, Any, T]], inbox: Sequence[Any]
) -> tuple[list[Request], list[T]]:
    requests: list[Request] = []
    results: list[T] = []
    for generator, value in zip(generators, inbox, strict=True):
        try:
            requests.append(generator.send(value))
        except StopIteration as stop:
            results.append(stop.value)
    return requests, results


def _common_kind(requests: Sequence[Request], num_ranks: int) -> type:
    kinds = list(dict.fromkeys(type(request) for request in requests))
    if len(kinds) > 1 or len(requests) < num_ranks:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise ProtocolError(
            f"ranks are out of step: {len(requests)} of {num_ranks} ranks yielded {names}"
        )
    return kinds[0]


def _all_gather(requests: Sequence[AllGather]) -> list[NDArray[Any]]:
    return [gathered() for gathered in _start_gather(requests)]


def _start_gather(requests: Sequence[AllGather | StartGather]) -> list[Callable[[], NDArray[Any]]]:
    stacked = np.stack([on_host(request.tensor) for request in requests])
    return [lambda: stacked] * len(requests)


def _all_to_all(requests: Sequence[AllToAll]) -> list[Array]:
    blocks = [split(request.tensor, request.send_counts) for request in requests]
    for destination, request in enumerate(requests):
        sent = tuple(len(block[destination]) for block in blocks)
        if sent != request.recv_counts:
            raise ProtocolError(
                f"rank {destination} expects {request.recv_counts} rows and is sent {sent}"
            )
    join = namespace(requests[0].tensor).concatenate
    return [join([block[destination] for block in blocks]) for destination in range(len(requests))]


def _all_to_alls(requests: Sequence[AllToAlls]) -> list[list[Array]]:
    parts = zip(*(request.parts for request in requests), strict=True)
    return list(map(list, zip(*map(_all_to_all, parts), strict=True)))


def _phase(requests: Sequence[Phase]) -> list[None]:
    names = {request.name for request in requests}
    if len(names) > 1:
        raise ProtocolError(f"ranks are out of step: in phases {sorted(names)}")
    return [None] * len(requests)


COLLECTIVES: dict[type, Handler] = {
    AllGather: _all_gather,
    StartGather: _start_gather,
    AllToAll: _all_to_all,
    AllToAlls: _all_to_alls,
    Phase: _phase,
}
