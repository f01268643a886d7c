"""How many slots a key of a packed target takes: the rules that the word behind ``align`` names.

A key takes whole blocks of ``align`` slots, so the first slot of every key is a multiple of
``align``. A rule says how many blocks for so many points. It is written once: the planner asks it
with arrays of the host, engines with tensors, the reference with an integer, and the Triton kernels
are compiled from the same source (``kernels/device/padding.py``). So it has arithmetic and
comparisons, no branch, and no annotations, which Triton would take for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


def fewest(points, align):  # type: ignore[no-untyped-def]
    """As few blocks as hold the points. No sum in it may wrap, whatever ``align`` is."""
    return points // align + (points % align > 0)


PADDINGS: dict[str, Callable[[Any, Any], Any]] = {"fewest": fewest}
"""Words -> (points of a key, slots of a block) -> blocks. One that takes fewer than the points fill
would give slots twice; none takes fewer for more points."""


class Padded(Protocol):
    """A packed target: ``most_padding`` is the most slots that its rule gives a key beyond those of
    its points."""

    @property
    def align(self) -> int: ...
    @property
    def padding(self) -> str: ...
    @property
    def most_padding(self) -> int: ...


def check_padding(target: Padded) -> None:
    """Raises:
    ValueError: the target names no rule of this runtime.
    """
    if target.padding not in PADDINGS:
        raise ValueError(f"{target.padding!r} is none of {', '.join(map(repr, PADDINGS))}")


def blocks(target: Padded, points: Any) -> Any:
    """The blocks that keys take for so many points each; arrays, tensors or an integer."""
    return PADDINGS[target.padding](points, target.align)


def pads_empty(target: Padded) -> bool:
    """Whether a key without points takes slots, too."""
    return bool(blocks(target, 0) > 0)


def most_slots(target: Padded, points: int, keys: int, of_key: int | None = None) -> int:
    """The slots that so many points of so many keys take at most, ``of_key`` of them of one."""
    padded = keys if pads_empty(target) else min(keys, points)
    most = points + padded * target.most_padding
    if of_key is None:
        return most
    return min(most, keys * int(blocks(target, of_key)) * target.align)
