"""When one rank fails, all ranks raise its error instead of waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np

from fuscoc_runtime.comm.requests import PART, AllGather, Request, StartGather
from fuscoc_runtime.errors import FuscoRuntimeError, PreparationError, from_json, to_json

T = TypeVar("T")


def attempt(rank: int, work: Callable[[], T]) -> T | FuscoRuntimeError:
    """The result of what ``rank`` does alone, or its error, for all ranks to agree on.

    Errors without a code are a ``PreparationError``, with the original as the cause: raised here,
    they would leave the other ranks waiting.
    """
    try:
        return work()
    except FuscoRuntimeError as error:
        return error
    except Exception as error:
        return _caused(PreparationError.of(rank, error), error)


def error_size(error: FuscoRuntimeError | None) -> int:
    """Bytes of the error on the wire; 0 means that all is well."""
    return len(_encode(error)) if error is not None else 0


def agree(
    error: FuscoRuntimeError | None,
    word: int = 0,
    meanwhile: Callable[[], None] | None = None,
    call: str = PART,
) -> Generator[Request, Any, list[int]]:
    """Collective: if no rank has an error, every rank's ``word``, an int64; else all raise the
    error of the lowest rank that has one.

    ``meanwhile``: called while the words travel. ``call``: what ranks begin by this, if they do.
    """
    gathered = yield StartGather(np.array([error_size(error), word], np.int64), call)
    if meanwhile is not None:
        meanwhile()
    sizes, words = gathered().T.tolist()
    yield from raise_together(error, sizes)
    told: list[int] = words
    return told


def raise_together(
    error: FuscoRuntimeError | None, sizes: list[int]
) -> Generator[Request, Any, None]:
    """Raise the error of the lowest failing rank, given every rank's ``error_size``."""
    if not any(sizes):
        return
    text = np.zeros(max(sizes), np.uint8)
    if error is not None:
        text[: error_size(error)] = np.frombuffer(_encode(error), np.uint8)
    texts = yield AllGather(text)
    rank, size = next((rank, size) for rank, size in enumerate(sizes) if size)
    cause = error.__cause__ if error is not None else None
    raise _caused(from_json(texts[rank, :size].tobytes().decode()), cause)


def _caused(error: FuscoRuntimeError, cause: BaseException | None) -> FuscoRuntimeError:
    error.__cause__ = cause
    return error


def _encode(error: FuscoRuntimeError) -> bytes:
    return to_json(error).encode()
