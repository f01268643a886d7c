"""Packed targets with several keys, against rows sorted in Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.errors import IndexOutOfRangeError, TopologyError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, EXPERTS, TOPK, CLASSES = 4, 8, 2, 3
SIZES = {"hidden": 4, "experts": EXPERTS, "topk": TOPK}
ROUTED = """
shuffle routed {{
  index t : tokens   index k : 2   index e : {experts}   index c : 3   index h : 2
  segment token {{ x : f32[2] }}
  layout by_token[t] of token
  layout by_class[e, c, h, s] of token packed(s) align {align}
  place e on rank by {placement}
  route r(t, k) -> e = input topk_idx : int64
  route of(t) -> c = input classes : int64
  dispatch by_token[t] -> by_class[{expert}, of(t), k % 2, *]
  combine reverse reduce sum
}}"""

Row = tuple[int, int, int]


@st.composite
def routings(draw: st.DrawFn, least: int) -> list[tuple[list[list[int]], list[int]]]:
    """The experts and the class of the tokens of every rank; ``least`` and -1 lead nowhere."""
    experts = st.lists(st.integers(least, EXPERTS - 1), min_size=TOPK, max_size=TOPK)
    some = [draw(st.lists(experts, max_size=4)) for _ in range(RANKS)]
    return [(each, [draw(st.integers(-1, CLASSES - 1)) for _ in each]) for each in some]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["1x4", "2x2"]),
    st.sampled_from(["block", "cyclic"]),
    st.sampled_from([1, 4]),
    st.booleans(),
    routings(-1),
)
def test_classes_of_experts(
    topology: str,
    placement: str,
    align: int,
    computed: bool,
    ranks: list[tuple[list[list[int]], list[int]]],
) -> None:
    """Slots are by (expert, class, h, source); what has no expert, computed or not, or no class is
    dropped, whatever else it has."""
    expert = "r(t, k) * 2 - 1 - r(t, k)" if computed else "r(t, k)"
    text = ROUTED.format(experts=EXPERTS, align=align, placement=placement, expert=expert)
    shuffle = LockstepShuffle(specs.artifact(text), topology=Topology.parse(topology))
    wanted: list[dict[tuple[int, int, int], list[Row]]] = [{} for _ in range(RANKS)]
    for rank, (experts, classes) in enumerate(ranks):
        for t, row in enumerate(experts):
            for k, given_expert in enumerate(row):
                e = given_expert - 1 if computed else given_expert
                if given_expert < 0 or e < 0 or classes[t] < 0:
                    continue
                owner = e // (EXPERTS // RANKS) if placement == "block" else e % RANKS
                wanted[owner].setdefault((e, classes[t], k), []).append((rank, t, k))
    x = [_tokens(rank, len(experts)) for rank, (experts, _) in enumerate(ranks)]
    inputs = [
        {
            "topk_idx": torch.tensor(experts, dtype=torch.int64).view(-1, TOPK),
            "classes": torch.tensor(classes, dtype=torch.int64),
        }
        for experts, classes in ranks
    ]
    done = shuffle.dispatch([[each] for each in x], inputs)
    for rank, each in enumerate(done):
        handle, rows = each.handle, each.rows["x"]
        keys = [key // 6 for key in handle.keys.tolist()]
        own = [e for e in range(EXPERTS) if (e % RANKS, e // 2)[placement == "block"] == rank]
        assert keys == [e for e in own for _ in range(6)]
        begin = 0
        counts, offsets = handle.key_counts.tolist(), handle.key_offsets.tolist()
        for key, count, offset in zip(handle.keys.tolist(), counts, offsets, strict=False):
            sent = wanted[rank].get((key // 6, key // 2 % 3, key % 2), [])
            assert (count, offset) == (len(sent), begin)
            expected = [x[source][t].tolist() for source, t, _ in sent]
            assert rows[begin : begin + count].tolist() == expected
            begin += -(-count // align) * align
        assert begin == handle.num_slots == offsets[-1]
    back = shuffle.combine(
        [each.rows["x"] for each in done], [each.handle for each in done], [{}] * RANKS
    )
    arrived = [row for each in wanted for rows in each.values() for row in rows]
    for rank, result in enumerate(back):
        times = [sum((rank, t, k) in arrived for k in range(TOPK)) for t in range(len(x[rank]))]
        assert torch.equal(result["x"], x[rank] * torch.tensor(times, dtype=x[rank].dtype)[:, None])


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
def test_experts_by_source(topology: str) -> None:
    """Blocks of (expert, source rank), as Megatron and DeepEP count them."""
    shuffle = LockstepShuffle(
        specs.artifact("moe_by_source.fsc", **SIZES, peers=RANKS),
        topology=Topology.parse(topology),
    )
    random = torch.Generator().manual_seed(1)
    sizes = [5, 0, 3, 9]
    idx = [torch.randint(-1, EXPERTS, (size, TOPK), generator=random) for size in sizes]
    x = [torch.randn(size, 4, generator=random).bfloat16() for size in sizes]
    done = shuffle.dispatch([[each] for each in x], [{"topk_idx": each} for each in idx])
    for rank, each in enumerate(done):
        counts = each.handle.key_counts.view(-1, RANKS)
        starts = each.handle.key_offsets[:-1].view(-1, RANKS)
        for number in range(EXPERTS // RANKS):
            expert = rank * (EXPERTS // RANKS) + number
            assert counts[number].tolist() == [int((some == expert).sum()) for some in idx]
            for source in range(RANKS):
                taken = (idx[source] == expert).nonzero()[:, 0]
                begin = int(starts[number, source])
                assert begin % 16 == 0
                assert torch.equal(each.rows["x"][begin : begin + len(taken)], x[source][taken])


def test_more_ranks_than_the_second_key_has() -> None:
    shuffle = LockstepShuffle(
        specs.artifact("moe_by_source.fsc", **SIZES, peers=2), topology=Topology.parse("1x4")
    )
    inputs = {"topk_idx": torch.zeros(1, TOPK).long()}
    with pytest.raises(IndexOutOfRangeError, match="`rank` on rank 2 is 2; it must be between 0"):
        shuffle.dispatch([[torch.zeros(1, 4).bfloat16()]] * RANKS, [inputs] * RANKS)


def test_a_class_that_does_not_exist() -> None:
    text = ROUTED.format(experts=EXPERTS, align=1, placement="block", expert="r(t, k)")
    shuffle = LockstepShuffle(specs.artifact(text), topology=Topology.parse("1x4"))
    inputs = {"topk_idx": torch.zeros(1, 2).long(), "classes": torch.tensor([CLASSES])}
    with pytest.raises(IndexOutOfRangeError, match="classes"):
        shuffle.dispatch([[_tokens(0, 1)]] * RANKS, [inputs] * RANKS)


def test_ranks_divide_what_is_placed() -> None:
    """6 experts of 6 keys: 4 ranks divide the keys, and not the experts."""
    text = ROUTED.format(experts=6, align=1, placement="block", expert="r(t, k)")
    with pytest.raises(TopologyError, match="there are 6 keys, which 4 ranks"):
        LockstepShuffle(specs.artifact(text), topology=Topology.parse("1x4")).dispatch(
            [[_tokens(0, 0)]] * RANKS,
            [{"topk_idx": torch.zeros(0, 2).long(), "classes": torch.zeros(0).long()}] * RANKS,
        )


def _tokens(rank: int, count: int) -> Tensor:
    return torch.arange(2.0 * count).view(count, 2) + 100 * rank
