"""Complex numbers there and back, against the same in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.engine import specs

SUMMED = specs.routed("c128", hidden=2, keys=4, topk=2).replace("w(t, k) : f32", "w(t, k) : f64")
IDX = torch.tensor([[0, 3], [-1, 2], [1, 1]])


@pytest.fixture(scope="module")
def shuffle() -> LockstepShuffle:
    return LockstepShuffle(specs.artifact(SUMMED), topology=Topology.parse("1x2"))


def layer(shuffle: LockstepShuffle, x: Tensor, weights: Tensor) -> Tensor:
    """What rank 0 gets back of squares; rank 1 sends nothing."""
    nothing = x.new_empty(0, 2), IDX.new_empty(0, 2), weights.new_empty(0, 2)
    done = shuffle.dispatch([[x], [nothing[0]]], [{"idx": IDX}, {"idx": nothing[1]}])
    rows = [each.rows["x"] for each in done]
    assert all(each.dtype == torch.complex128 for each in rows)
    named = [{"weights": weights}, {"weights": nothing[2]}]
    back = shuffle.combine([each.square() for each in rows], [each.handle for each in done], named)
    return back[0]["x"]


def test_sums_and_their_gradients(shuffle: LockstepShuffle) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, dtype=torch.complex128, requires_grad=True)
    weights = torch.rand(3, 2, dtype=torch.float64)
    live = torch.where(IDX >= 0, weights, 0).sum(1, keepdim=True)
    torch.testing.assert_close(layer(shuffle, x, weights), x.square() * live)
    torch.testing.assert_close(layer(shuffle, x.conj(), weights), x.conj().square() * live)
    assert gradcheck(lambda x: layer(shuffle, x, weights), x, fast_mode=True)


def test_other_types_are_refused(shuffle: LockstepShuffle) -> None:
    weights = torch.rand(3, 2, dtype=torch.float64)
    for x in (torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.complex64)):
        with pytest.raises(InputError, match="`x`"):
            layer(shuffle, x, weights)
