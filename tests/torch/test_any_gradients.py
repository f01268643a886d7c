"""Gradients of any spec, on all ranks at once.

Dispatch, with its casts and `into`, and combine, by its rows and by its weights, are linear but for
what they make of zeros. So the product of a gradient with any numbers is that of the gradient of
what comes of these numbers, and other tests compare what comes of numbers with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fuscoc
from fuscoc.testing import Routing, Spec, cases, specs
from fuscoc.testing.routing import with_sources
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.face.ops import DIFFERENTIABLE
from tests.engine.lockstep import dispatch, inputs_of

NARROW = ("f8e4m3", "f8e5m2", "f16")
"""Where what a cast computes may be too large."""

Work = Callable[[Sequence[Tensor]], list[Tensor]]


def has_gradients(spec: Spec) -> bool:
    """Whether what is sent has some, as all numbers that come of it are finite."""
    declared = spec.shuffle.declared
    computed = {each.field for each in declared.casts if each.normalise is not None}
    return (
        spec.shuffle.sends_differentiably
        and any(TORCH_DTYPES[each.dtype] in DIFFERENTIABLE for each in declared.source.fields)
        and not any(each.name in computed and each.dtype in NARROW for each in declared.fields)
    )


def check_transpose(work: Work, like: Sequence[Tensor], is_exact: bool) -> None:
    """Of ``work`` with tensors like these, of whose numbers, -1, 0 and 1, all sums are exact."""
    if not like:  # a reply may be integers
        return
    found = _Products(work, like)
    if is_exact:
        assert found.of_gradients.sum() == found.of_results.sum()
    else:
        eps = max(torch.finfo(each.dtype).eps for each in (*like, *found.results))
        atol = 4 * eps * float(found.of_results.abs().sum())
        torch.testing.assert_close(
            found.of_gradients.sum(), found.of_results.sum(), rtol=0, atol=atol
        )


class _Products:
    """Of gradients with numbers, and of the gradients of results with what comes of these."""

    def __init__(self, work: Work, like: Sequence[Tensor]) -> None:
        self._work = work
        leaves, numbers = ([_numbers(each).requires_grad_() for each in like] for _ in range(2))
        self.results = self._made(leaves)
        back = [_numbers(each) for each in self.results]
        gradients = torch.autograd.grad(self.results, leaves, back, materialize_grads=True)
        self.of_gradients = _product(numbers, gradients)
        zeros = [torch.zeros_like(each).requires_grad_() for each in like]
        self.of_results = torch.cat(
            [_product(self._made(numbers), back), -_product(self._made(zeros), back)]
        )

    def _made(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        reals = (torch.view_as_real(x) if x.is_complex() else x for x in self._work(leaves))
        made = [each for each in reals if each.dtype in DIFFERENTIABLE]
        assert all(each.requires_grad for each in made), "a result has lost its gradients"
        return made


def _numbers(like: Tensor) -> Tensor:
    return torch.randint(-1, 2, like.shape).to(like.dtype)


def _product(some: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """The products of all elements, in f64."""
    pairs = zip(some, others, strict=True)
    return torch.cat([(one.detach().double() * other.double()).flatten() for one, other in pairs])


def _with(leaves: Iterator[Tensor], fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What has gradients, and zeros: the bits of memory may be NaN."""
    return {
        name: next(leaves) if each.dtype in DIFFERENTIABLE else torch.zeros_like(each)
        for name, each in fields.items()
    }


def _floats(fields: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    return [x for each in fields for x in each.values() if x.dtype in DIFFERENTIABLE]


def check_gradients(folder: Path, spec: Spec, routing: Routing) -> None:
    artifact = fuscoc.compile(spec.text, folder / "generated")
    shuffle = LockstepShuffle(artifact, topology=routing.topology)
    ranks, handles = with_sources(shuffle.spec, routing), list[Handle]()

    def sent(leaves: Sequence[Tensor]) -> list[Tensor]:
        taken = iter(leaves)
        done = dispatch(
            shuffle,
            [
                replace(each, source=_with(taken, each.source), memory=_with(taken, each.memory))
                for each in ranks
            ],
        )
        handles[:] = [each.handle for each in done]
        return [rows for each in done for rows in each.rows.values()]

    given = _floats([part for each in ranks for part in (each.source, each.memory)])
    check_transpose(sent, given, is_exact=not shuffle.spec.declared.casts)
    if not shuffle.spec.back.is_differentiable:
        return
    rows = [
        {
            each.name: torch.ones(handle.num_slots, *each.shape, dtype=TORCH_DTYPES[each.dtype])
            for each in shuffle.spec.back.declared.source_fields
        }
        for handle in handles
    ]
    weights = [inputs_of(shuffle.spec, each, weights=True) for each in ranks]

    def brought(leaves: Sequence[Tensor]) -> list[Tensor]:
        taken = iter(leaves)
        results = shuffle.combine(
            [_with(taken, each) for each in rows], handles, [_with(taken, each) for each in weights]
        )
        return [each for result in results for each in result.values()]

    of_rows, of_weights = ([_numbers(each) for each in _floats(some)] for some in (rows, weights))
    check_transpose(lambda leaves: brought([*leaves, *of_weights]), of_rows, is_exact=True)
    if of_weights:
        check_transpose(lambda leaves: brought([*of_rows, *leaves]), of_weights, is_exact=True)


def check_any_spec(folder: Path, data: st.DataObject) -> None:
    spec = data.draw(st.booleans().flatmap(lambda into: specs(into=into)).filter(has_gradients))
    routing = data.draw(cases(spec, max_nodes=2, max_ranks_per_node=2))
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    check_gradients(folder, spec, routing)


@settings(max_examples=10)
@given(st.data())
def test_any_spec(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_any_spec(tmp_path_factory.mktemp("gradients"), data)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(st.data())
def test_any_spec_at_night(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_any_spec(tmp_path_factory.mktemp("gradients"), data)
