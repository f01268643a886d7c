"""Forms of arguments: what calls have in common that differ in data alone.

torch compares types, dtypes, shapes, strides, devices, modes and whether gradients are wanted of
all tensors in one call, as its compiler does before it runs compiled code. That takes a fraction of
what it takes to ask for each of these, above all with cold caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad

from fuscoc_runtime.engine.arguments import ALIGNMENT, LOW_ADDRESS, lacks_memory

MAX_FORMS = 64
"""Calls of so many different forms are remembered."""

_data_ptr = Tensor.data_ptr


class Form:
    """The form of tensors, and what else calls of it have alike, as a ``key``.

    Attributes:
        fits: whether others have that form, given one by one, as many as these. Where some of these
            are one tensor, those are one, too.
        requires_grad: whether some of them do, so that autograd has to see a call of the form where
            it is enabled.
    """

    __slots__ = "_check", "_distinct", "_places", "fits", "key", "requires_grad"

    def __init__(self, key: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
        self.key, self.requires_grad = key, any(each.requires_grad for each in tensors)
        places = {id(each): place for place, each in enumerate(tensors)}
        self._places = [places[id(each)] for each in tensors]
        self._distinct = sorted(places.values())
        distinct = [tensors[place] for place in self._distinct]
        guards = TensorGuards(*distinct, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._check = guards.check
        # It takes no tensor twice.
        self.fits = self._check if len(distinct) == len(tensors) else self._fits

    def _fits(self, *tensors: Any) -> bool:
        if any(
            each is not tensors[place] for each, place in zip(tensors, self._places, strict=True)
        ):
            return False
        return bool(self._check(*(tensors[place] for place in self._distinct)))


class Formed(Protocol):
    """What is known of calls of one form."""

    @property
    def form(self) -> Form: ...


T = TypeVar("T", bound=Formed)


class Known(Generic[T]):
    """What is known of calls of several forms."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: tuple[T, ...] = ()  # is replaced at once: threads may ask at any time

    def find(self, key: tuple[Any, ...], tensors: Sequence[Any]) -> T | None:
        """Of arguments like these; None if autograd has to see them, or may, as tangents of them
        are no part of a form."""
        latest = self._latest
        if not latest or forward_ad._current_level >= 0:
            return None
        found = latest[0]
        form = found.form
        if form.key != key or not form.fits(*tensors):
            return self._find_other(latest, key, tensors)
        return None if form.requires_grad and torch.is_grad_enabled() else found

    def _find_other(
        self, latest: tuple[T, ...], key: tuple[Any, ...], tensors: Sequence[Any]
    ) -> T | None:
        """Among those that have not been found latest."""
        for place, each in enumerate(latest[1:], start=1):
            form = each.form
            if form.key == key and form.fits(*tensors):
                if form.requires_grad and torch.is_grad_enabled():
                    return None
                self._latest = (each, *latest[:place], *latest[place + 1 :])
                return each
        return None

    def remember(self, what: T) -> None:
        """Find it from now on, in the place of what has not been found for longest."""
        self._latest = (what, *self._latest[: MAX_FORMS - 1])


def are_plain(tensors: Sequence[Any], may_require_grad: Any = None) -> bool:
    """Whether kernels can read all of these as they are, one of which ``may_require_grad``; what a
    form does not tell is asked of every call: see `addresses`."""
    return all(
        type(each) is Tensor
        and each.layout == torch.strided
        and each.is_contiguous()
        and not each.is_neg()  # lazily, as memory does not tell
        and (each is may_require_grad or not each.requires_grad)
        and _has_memory(each)
        for each in tensors
    )


def addresses(tensors: Sequence[Tensor], beyond: range) -> tuple[int, ...] | None:
    """Of tensors of a known form; None if one does not lie as kernels read it, or not ``beyond``
    these addresses."""
    found, begin, end = tuple(map(_data_ptr, tensors)), beyond.start, beyond.stop
    for place, each in enumerate(found):
        if each < LOW_ADDRESS and (not each or lacks_memory(tensors[place])):
            return None
        if each % ALIGNMENT or begin <= each < end:  # a range looks at more numbers
            return None
    return found


def _has_memory(tensor: Tensor) -> bool:
    """Some have none of their own, as inside torch.func, or are empty."""
    try:
        return tensor.data_ptr() != 0 and tensor.numel() > 0
    except RuntimeError:
        return False
