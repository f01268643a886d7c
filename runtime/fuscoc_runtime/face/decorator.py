"""``fused_shuffle``: a shuffle around a function that works on its rows."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.face.traced import weight_name
from fuscoc_runtime.manifest.artifact import Artifact

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def fused_shuffle(
    artifact: Artifact | str | Path, name: str | None = None, **options: Any
) -> Decorator:
    """Dispatch, call the function on the rows that arrive, and combine what it returns.

    ::

        @fused_shuffle("build/moe", group=ep_group)
        def experts(x, num_tokens_per_expert):
            return grouped_mlp(x, num_tokens_per_expert)

        y = experts(hidden_states, topk_idx=topk_idx, topk_weights=topk_weights)

    The decorated function takes what ``Shuffle.dispatch`` and ``Shuffle.combine`` take: source
    fields by position or name, everything else by name. The function below it is given

    - the rows: a tensor [num_slots, *field shape], or a dict of them by field; where the spec says
      ``into``, the memory that they went into,
    - ``key_counts``, int64 [num_local_keys], if it has a second positional parameter,
    - the handle as ``handle``, if it has a parameter of that name,
    - what the caller names like one of its keyword-only parameters,
    - in a class, ``self``.

    Rows of the i-th local key begin at ``handle.key_offsets[i]``, a multiple of the spec's
    ``align``. While autograd records, rows are kept for the backward pass and padding rows are 0;
    otherwise they are only valid until the shuffle's next dispatch, and padding rows hold anything.
    Without a ``combine`` in the spec, the function's own result is returned.

    ``experts.shuffle()`` returns the shuffle. It is opened by that or by the first call, which is
    then collective. ``options`` are those of ``Shuffle``.

    Raises, when it is opened:
        ArtifactError: not an artifact.
        Whatever ``Shuffle`` raises.
    """
    if isinstance(artifact, str) and ("{" in artifact or artifact.endswith(".fsc")):
        raise ArtifactError(
            artifact if "\n" not in artifact else "the text given",
            "is a spec, not an artifact: compile it with `fuscoc compile`, or use "
            "`fuscoc.fused_shuffle` where the compiler is installed",
        )
    return around(lambda: Shuffle(artifact, name, **options))


def around(open_shuffle: Callable[[], Shuffle]) -> Decorator:
    """The decorator for a shuffle that ``open_shuffle`` opens, once, when it is first needed."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        takes = _Parameters.of(function)
        lock = threading.Lock()
        held: list[Shuffle] = []

        def shuffle() -> Shuffle:
            with lock:
                if not held:
                    held.append(open_shuffle())
            return held[0]

        # Opening talks to other ranks: a compiled function does it while it is traced.
        as_constant: Any = torch.compiler.assume_constant_result
        opened = as_constant(lambda: bool(shuffle()))

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            opened()
            return _call(held[0], function, takes, arguments, named)

        call.shuffle = shuffle  # type: ignore[attr-defined]
        return call

    return decorate


@dataclass(frozen=True)
class _Parameters:
    """What a function wants to be given."""

    self: bool
    counts: bool
    handle: bool
    extras: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Parameters:
        parameters = inspect.signature(function).parameters.values()
        by_position = [
            each.name
            for each in parameters
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        is_method = by_position[:1] == ["self"]
        rows_and_counts = [name for name in by_position[is_method:] if name != "handle"]
        if len(rows_and_counts) not in (1, 2):
            raise TypeError(
                f"{function.__qualname__} takes {len(rows_and_counts)} positional parameters; a "
                "shuffled function takes the rows and, if it likes, the counts of every key"
            )
        named = [each.name for each in parameters if each.kind == each.KEYWORD_ONLY]
        extras = tuple(name for name in named if name != "handle")
        has_handle = "handle" in (*by_position, *named)
        return cls(is_method, len(rows_and_counts) == 2, has_handle, extras)


def _call(
    shuffle: Shuffle,
    function: Callable[..., Any],
    takes: _Parameters,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    bound, fields = (arguments[:1], arguments[1:]) if takes.self else ((), arguments)
    extras = {name: named[name] for name in takes.extras if name in named}
    inputs = {name: value for name, value in named.items() if name not in extras}
    weight = weight_name(shuffle.spec)
    if weight is not None and weight not in inputs:
        inputs[weight] = None  # an error before the rows move, not after the function's work
    if torch.is_grad_enabled():
        rows, handle = shuffle.dispatch_fresh(*fields, **inputs)
    else:
        rows, handle = shuffle.dispatch(*fields, **inputs)
    positional = [*bound, rows]
    if takes.counts:
        positional.append(handle.key_counts)
    if takes.handle:
        extras["handle"] = handle
    result = function(*positional, **extras)
    return result if shuffle.spec.back.declared.combine is None else shuffle.combine(result, handle)
