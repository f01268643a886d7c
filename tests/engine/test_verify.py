"""The checks of a verified run see what they are for, and made-up data is what it says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import MismatchError, check_result, check_rows, expect, tolerance
from fuscoc_runtime.reference import RankResult, route
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import dispatch, lockstep


def test_one_wrong_bit_is_seen() -> None:
    shuffle = lockstep(specs.routed("bf16"), "1x1")
    ranks = generate(shuffle.spec, shuffle.topology, 4, 0)
    wanted = expect(shuffle.spec, ranks).rows[0]
    [found] = dispatch(shuffle, ranks)
    check_rows(wanted, found.rows, found.handle)
    slot = int(torch.nonzero(wanted.written)[1])
    found.rows["x"].view(torch.int16)[slot, 5] ^= 1
    with pytest.raises(MismatchError, match="rows of `x` differ from the reference's, first at 1"):
        check_rows(wanted, found.rows, found.handle)


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        (torch.float32, 9e-7, 1.1e-6),
        (torch.bfloat16, 2 * 2**-7, 3 * 2**-7),
        (torch.float16, 2 * 2**-10, 3 * 2**-10),
    ],
)
def test_rounding_is_allowed_and_no_more(dtype: torch.dtype, near: float, far: float) -> None:
    wanted = torch.ones(3, dtype=torch.float64)
    expected = RankResult({"x": wanted}, {"x": wanted})
    check_result(expected, {"x": (wanted + near).to(dtype)})
    for bad in ((wanted + far).to(dtype), torch.full((3,), torch.nan, dtype=dtype)):
        with pytest.raises(MismatchError, match=r"result `x` is .* at \[0\]"):
            check_result(expected, {"x": bad})


@given(st.floats(1e-6, 1e4), st.sampled_from([torch.float16, torch.bfloat16]))
def test_tolerance_is_two_units_in_the_last_place(magnitude: float, dtype: torch.dtype) -> None:
    rounded = torch.tensor(magnitude).to(dtype)
    # Towards 0, so that both neighbours lie in the same binade.
    if float(rounded) > magnitude:
        rounded = torch.nextafter(rounded, torch.zeros((), dtype=dtype))
    ulp = float(torch.nextafter(rounded, torch.tensor(torch.inf, dtype=dtype)).double() - rounded)
    found = float(tolerance(dtype, torch.tensor([magnitude], dtype=torch.float64)))
    assert found == pytest.approx(2 * ulp, rel=1e-6)


def test_awkward_cases_are_made_up() -> None:
    spec = lockstep(specs.routed(), "2x2").spec
    ranks = generate(spec, Topology(2, 2), 40, 0)
    keys = torch.cat([data.inputs["idx"].flatten() for data in ranks])
    assert [data.extents["tokens"] for data in ranks] == [40, 40, 40, 0]
    assert set(keys.tolist()) == set(range(-1, 12)) - {6}
    assert torch.equal(generate(spec, Topology(2, 2), 40, 0)[1].source["x"], ranks[1].source["x"])
    assert not torch.equal(ranks[0].source["x"], ranks[1].source["x"])


@pytest.mark.parametrize(("text", "name"), [(specs.routed(), "idx"), (specs.MOVED, "table")])
def test_whole_tokens_are_dropped(text: str, name: str) -> None:
    """About one in eight, beside single points of others."""
    spec = lockstep(text, "2x2").spec
    inputs = [data.inputs[name] for data in generate(spec, Topology(2, 2), 200, 0)]
    assert len(inputs[-1]) == 0
    routes = torch.cat(inputs)
    dropped = (routes if name == "idx" else routes[:, :1]) < 0
    assert len(routes) / 16 < int(dropped.all(1).sum()) < len(routes) / 3


@pytest.mark.parametrize("text", [specs.routed("f32"), specs.patches(), specs.GRID])
def test_one_ranks_share_of_the_reference(text: str) -> None:
    spec = lockstep(text, "2x2").spec
    ranks = generate(spec, Topology(2, 2), 6, 0)
    everything = expect(spec, ranks)
    assert everything.results is not None
    for rank in range(4):
        mine = expect(spec, ranks, rank)
        assert mine.results is not None
        assert torch.equal(mine.rows[rank].written, everything.rows[rank].written)
        for name, rows in everything.rows[rank].fields.items():
            assert torch.equal(mine.rows[rank].fields[name], rows)
        for name, result in everything.results[rank].fields.items():
            assert torch.equal(mine.results[rank].fields[name], result)


LOOKED_UP = """
shuffle looked_up {
  index t : tokens   index g : 5   index e : 8
  segment row { x : f32 }
  layout mine[t] of row
  layout by_key[e, s] of row packed(s)
  place e on rank by block
  route group(t) -> number = input groups : int64
  route of(g) -> e = input keys : int64
  dispatch mine[t] -> by_key[of(group(t) / 3), *]
}"""


def test_computed_places() -> None:
    """What is computed of an input is looked up where something is."""
    shuffle = specs.artifact(LOOKED_UP).shuffle()
    deliveries, _ = route(shuffle, generate(shuffle, Topology(1, 2), 12, 0))
    assert len(deliveries) > 6
