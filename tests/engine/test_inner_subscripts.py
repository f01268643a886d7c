"""Targets of several dimensions whose inner subscripts inputs give, against numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.reference import route
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, EXPERTS, CAPACITY, TOPK, LINES, LENGTH = 4, 8, 3, 2, 2, 6
GRIDS = ("1x4", "2x2")
FEW = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))

# Experts with a buffer of so many tokens each, as GShard has them.
BUFFERS = f"""
shuffle buffers {{
  const experts = {EXPERTS}, capacity = {CAPACITY}, part = experts / ranks
  index t : tokens   index k : {TOPK}
  segment token {{ x : f32[2] }}
  layout mine[t] of token
  layout buffer[e, c] of token dense(part, capacity)
  route to(t, k) -> (expert, position) = input to : int64[2]
  weight w(t, k) : f32 = input gates
  dispatch mine[t] -> buffer[to(t, k).expert % part, to(t, k).position] on to(t, k).expert / part
  combine reverse reduce sum(w)
}}"""
# Texts one behind the other in lines of one length.
PACKING = f"""
shuffle pack {{
  const lines = {LINES}, length = {LENGTH}
  index d : texts   index i : words(d)
  segment token {{ id : i64 }}
  layout tokens[d, i] of token
  layout line[l, c] of token dense(lines, length)
  route to(d) -> (rank, line, first) = input to : int64[3]
  dispatch tokens[d, i] -> line[to(d).line, to(d).first + i] on to(d).rank
  combine reverse
}}"""


def opened(text: str, topology: str) -> LockstepShuffle:
    return LockstepShuffle(specs.artifact(text), topology=Topology.parse(topology))


@given(
    st.sampled_from(GRIDS),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 4), min_size=RANKS, max_size=RANKS),
)
@FEW
def test_buffers(topology: str, seed: int, sizes: list[int]) -> None:
    """Each of some places has one token; weighed sums come back."""
    random = np.random.default_rng(seed)
    points = sum(sizes) * TOPK
    places = random.permutation(max(EXPERTS * CAPACITY, points))[:points]
    to = np.stack([places // CAPACITY, places % CAPACITY], -1)
    to[places >= EXPERTS * CAPACITY] = -1
    to = to.reshape(-1, TOPK, 2)
    x = random.integers(-9, 9, (len(to), 2)).astype(np.float32)
    gates = random.integers(1, 5, (len(to), TOPK)).astype(np.float32)
    ends = np.cumsum(sizes)[:-1]
    shuffle = opened(BUFFERS, topology)
    done = shuffle.dispatch(
        [[torch.from_numpy(each)] for each in np.split(x, ends)],
        [{"to": torch.from_numpy(each)} for each in np.split(to, ends)],
    )
    wanted = np.full((EXPERTS, CAPACITY, 2), np.nan, np.float32)
    for token, choices in zip(x, to, strict=True):
        for expert, position in choices:
            if expert >= 0:
                wanted[expert, position] = token
    found = np.concatenate([each.rows["x"].reshape(-1, CAPACITY, 2) for each in done])
    written = ~np.isnan(wanted)
    assert np.array_equal(found[written], wanted[written])
    back = shuffle.combine(
        [2 * each.rows["x"] for each in done],
        [each.handle for each in done],
        [{"gates": torch.from_numpy(each)} for each in np.split(gates, ends)],
    )
    factors = (2 * gates * (to[..., 0] >= 0)).sum(1, keepdims=True)
    assert np.array_equal(np.concatenate([each["x"] for each in back]), x * factors)


@given(st.sampled_from(GRIDS), st.integers(0, 2**32))
@FEW
def test_packing(topology: str, seed: int) -> None:
    """Lines are cut into texts, some of which a rank has and some are not sent."""
    random = np.random.default_rng(seed)
    wanted = random.integers(1, 99, (RANKS, LINES, LENGTH))
    texts: list[list[tuple[tuple[int, int, int], int]]] = [[] for _ in range(RANKS)]
    for rank, line in np.ndindex(RANKS, LINES):
        cuts = [0, *sorted(random.choice(np.arange(1, LENGTH), 2, replace=False)), LENGTH]
        for first, end in pairwise(cuts):
            texts[random.integers(RANKS)].append(((rank, line, first), end - first))
    tokens = [
        np.concatenate(
            [wanted[r, line, f : f + n] for (r, line, f), n in each] or [np.zeros(0, np.int64)]
        )
        for each in texts
    ]
    named = [
        {
            "words": torch.tensor([size for _, size in each], dtype=torch.int64),
            "to": torch.tensor([place for place, _ in each], dtype=torch.int64).view(-1, 3),
        }
        for each in texts
    ]
    shuffle = opened(PACKING, topology)
    done = shuffle.dispatch([[torch.from_numpy(each)] for each in tokens], named)
    for each, lines in zip(done, wanted, strict=True):
        assert np.array_equal(each.rows["id"].view(LINES, LENGTH), lines)
    rows, handles = [each.rows["id"] for each in done], [each.handle for each in done]
    for back, sent in zip(shuffle.combine(rows, handles, [{}] * RANKS), tokens, strict=True):
        assert np.array_equal(back["id"], sent)


@pytest.mark.parametrize("position", [CAPACITY, -2])
def test_the_next_line_is_not_reached(position: int) -> None:
    """Of the slot alone nobody would see that a position is of another expert."""
    to = torch.full((RANKS, 1, TOPK, 2), -1)
    to[2, 0, 0] = torch.tensor([0, position])
    with pytest.raises(IndexOutOfRangeError, match=r"`to\[0, 0, 1\]` on rank 2"):
        opened(BUFFERS, "1x4").dispatch([[torch.zeros(1, 2)]] * RANKS, [{"to": e} for e in to])


@pytest.mark.parametrize("text", [BUFFERS, PACKING])
def test_data_is_made_up(text: str) -> None:
    """Every slot is used at most once, and many are."""
    shuffle = specs.artifact(text).shuffle()
    deliveries, _ = route(shuffle, generate(shuffle, Topology(2, 2), 5, 0))
    slots = [(each.rank, each.slot) for each in deliveries]
    assert len(set(slots)) == len(slots) >= 8
