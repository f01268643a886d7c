"""Forms of arguments: what is like what was accepted, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuscoc_runtime.engine.arguments import lacks_memory
from fuscoc_runtime.engine.node import forms
from fuscoc_runtime.engine.node.forms import Form, Known, addresses, are_plain


def made() -> list[Tensor]:
    """Rows, places and weights, as a user gives them."""
    return [torch.zeros(4, 8), torch.zeros(4, 2, dtype=torch.int64), torch.ones(4, 2)]


class Sub(Tensor):
    """A tensor with operators of its own, as far as anybody knows."""


def leaf(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_()


def inferred(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda _: None,
    "a number": lambda _: 7,
    "a list": lambda x: x.tolist(),
    "dtype": lambda x: x.to(torch.float64) if x.is_floating_point() else x.to(torch.int32),
    "shorter": lambda x: x[:3],
    "longer": lambda x: torch.cat([x, x]),
    "shape": lambda x: x.view(2, -1),
    "strides": lambda x: x.t().contiguous().t(),
    "every other": lambda x: torch.stack([x, x], 2)[..., 0],
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "subclass": lambda x: x.clone().as_subclass(Sub),
    "inference": inferred,
    "negated": lambda x: torch._neg_view(x.clone()),
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("kind", OTHERS)
def test_what_differs_has_another_form(kind: str, place: int) -> None:
    form, given = Form((), made()), made()
    assert form.fits(*given)
    other: list[Any] = [*given]
    other[place] = OTHERS[kind](given[place])
    assert not form.fits(*other)
    assert form.fits(*given)


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("wants", [True, False])
def test_gradients(is_enabled: bool, place: int, wants: bool) -> None:
    """No call is known where autograd has to see it, whatever calls were made when it was not
    enabled, or of tensors that want none."""
    known, given = Known[Any](), made()
    remembered = made()
    if wants:
        remembered[place] = leaf(remembered[place])
    with torch.set_grad_enabled(is_enabled):
        known.remember(SimpleNamespace(form=Form((), remembered)))
    assert (known.find((), given) is None) == wants
    given[place] = leaf(given[place])
    assert known.find((), given) is None
    given[place].requires_grad_(False)
    assert (known.find((), given) is None) == wants


def test_transforms() -> None:
    """A wrapper of `torch.func` has no memory of its own, whatever it looks like."""
    form, seen = Form((), made()), list[bool]()
    x, *others = made()

    def call(wrapped: Tensor) -> Tensor:
        seen.extend([form.fits(wrapped, *others), are_plain([wrapped])])
        return wrapped.sum()

    torch.func.grad(call)(x)
    assert seen == [False, False]


def test_one_tensor_given_twice() -> None:
    x = torch.zeros(4, 2, dtype=torch.int64)
    twice, once = Form((), [x, x]), Form((), [x, x.clone()])
    assert twice.fits(x, x)
    assert not twice.fits(x, x.clone())
    assert not twice.fits(x.int(), x)
    assert once.fits(x, x.clone())
    wrong = x.int()
    assert not twice.fits(wrong, wrong)


def test_addresses() -> None:
    """Of what lies as kernels read it, outside of rows that are lent."""
    whole = torch.zeros(64)
    at = whole.data_ptr()
    assert addresses([whole, whole[16:]], range(0)) == (at, at + 64)
    assert addresses([whole[1:]], range(0)) is None
    assert addresses([whole], range(at, at + 1)) is None
    assert addresses([whole[16:]], range(at, at + 64)) == (at + 64,)
    whole.untyped_storage().resize_(0)
    assert addresses([whole], range(0)) is None


@pytest.mark.parametrize("offset", [0, 16, 4 << 30, 6 << 30])
def test_what_was_freed_has_no_address(offset: int) -> None:
    """Wherever in its storage it began, of which nobody touches the rest."""
    there, freed = torch.zeros(16), torch.empty(offset + 64, dtype=torch.uint8)[offset:]
    assert addresses([there, freed], range(0)) is not None
    assert not lacks_memory(freed)
    freed.untyped_storage().resize_(0)
    assert addresses([there, freed], range(0)) is None
    assert lacks_memory(freed)


def test_what_kernels_read() -> None:
    x, idx, weights = made()
    assert are_plain([x, idx, weights])
    for other in (x[:0], x.t(), x.to("meta"), x.to_sparse(), leaf(x), x.as_subclass(Sub), 3, None):
        assert not are_plain([idx, other])
    assert not are_plain([idx, torch._neg_view(x)])
    assert are_plain([x, wanted := leaf(weights)], may_require_grad=wanted)


def test_the_latest_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By key and form, in any order; what has not been found for longest is forgotten."""
    monkeypatch.setattr(forms, "MAX_FORMS", 3)
    known = Known[Any]()
    assert known.find((1,), made()) is None
    each: list[Any] = []
    for length in range(1, 4):
        tensors = [torch.zeros(length, 2)]
        each.append(SimpleNamespace(form=Form((1,), tensors), tensors=tensors))
        known.remember(each[-1])
    for one in (*each, *reversed(each)):
        assert known.find((1,), one.tensors) is one
        assert known.find((2,), one.tensors) is None
    other = SimpleNamespace(form=Form((2,), each[0].tensors))
    known.remember(other)  # in the place of the last one, which was found before the others
    assert known.find((1,), each[2].tensors) is None
    assert known.find((2,), each[0].tensors) is other
    assert known.find((1,), each[0].tensors) is each[0]
