"""Fields are known by name, in whatever order they are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuscoc_runtime import Shuffle
from tests.engine import specs

TWO = """
    shuffle two {
      index t : tokens   index k : 2   index e : 12
      segment item { a : f32[4], b : f32[4] }
      layout source[t] of item
      layout target[e, s] of item packed(s)
      place e on rank by block
      route r(t, k) -> e = input idx : int64
      dispatch source[t] -> target[r(t, k), *]
      combine reverse reduce sum
    }"""


@pytest.mark.parametrize("options", [{}, {"max_sources": 8}], ids=["exact", "fixed"])
def test_rows_of_a_combine(options: dict[str, Any]) -> None:
    shuffle = Shuffle(specs.artifact(TWO).path, device=torch.device("cpu"), **options)
    a, b, idx = torch.rand(3, 4), torch.rand(3, 4), torch.arange(6).view(3, 2)
    rows, handle = shuffle.dispatch(b=b, idx=idx, a=a)
    result = shuffle.combine({"b": rows["b"], "a": rows["a"]}, handle)
    torch.testing.assert_close(result["a"], 2 * a)
    torch.testing.assert_close(result["b"], 2 * b)
    shuffle.close()
