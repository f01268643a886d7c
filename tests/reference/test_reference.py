"""The reference against formulas that have nothing in common with it, for each kind of shuffle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime import reference
from fuscoc_runtime.reference import RankData
from tests.plan.specs import patches, routed, routed_data, tiles

NUM_KEYS = 8


@st.composite
def routings(draw: st.DrawFn) -> list[torch.Tensor]:
    """One [tokens, topk] table of keys or -1 for every rank."""
    topk = draw(st.integers(1, 3))
    keys = st.lists(st.integers(-1, NUM_KEYS - 1), min_size=topk, max_size=topk)
    tables = draw(
        st.sampled_from([1, 2, 4]).flatmap(
            lambda ranks: st.lists(st.lists(keys, max_size=5), min_size=ranks, max_size=ranks)
        )
    )
    return [torch.tensor(rows, dtype=torch.int64).view(len(rows), topk) for rows in tables]


@given(routings(), st.sampled_from([1, 3, 4]))
def test_packed_is_a_stable_sort_by_key(tables: list[torch.Tensor], align: int) -> None:
    """All ranks' points, sorted by key, then cut at the owners: padding aside, that is all."""
    spec = routed(topk=tables[0].shape[1], num_keys=NUM_KEYS, align=align)
    ranks = [routed_data(idx, rank) for rank, idx in enumerate(tables)]
    key = torch.cat([idx.flatten() for idx in tables])
    x = torch.cat([r.source["x"].repeat_interleave(tables[0].shape[1], dim=0) for r in ranks])
    order = torch.sort(key, stable=True).indices
    order = order[key[order] >= 0]
    rows = reference.dispatch(spec, ranks)
    assert torch.equal(torch.cat([each.fields["x"][each.written] for each in rows]), x[order])
    for rank, each in enumerate(rows):
        keys_per_rank = NUM_KEYS // len(ranks)
        assert each.keys == tuple(range(rank * keys_per_rank, (rank + 1) * keys_per_rank))
        assert each.key_counts == tuple(int((key == k).sum()) for k in each.keys)
        assert all(offset % align == 0 for offset in each.key_offsets)
        assert each.key_offsets[-1] == len(each.written)
        filled = torch.zeros(len(each.written), dtype=torch.bool)
        for offset, count in zip(each.key_offsets, each.key_counts, strict=False):
            filled[offset : offset + count] = True
        assert torch.equal(filled, each.written)


@given(routings())
def test_weighted_sum_of_scaled_rows(tables: list[torch.Tensor]) -> None:
    """Rows multiplied by their key + 1 come back as x times the sum of weights times (key + 1)."""
    spec = routed(topk=tables[0].shape[1], num_keys=NUM_KEYS)
    ranks = [routed_data(idx, rank) for rank, idx in enumerate(tables)]
    outputs = []
    for each in reference.dispatch(spec, ranks):
        factor = [
            key + 1
            for key, count in zip(each.keys, each.key_counts, strict=True)
            for _ in range(count)
        ]
        outputs.append({"x": each.fields["x"] * torch.tensor(factor).view(-1, 1)})
    results = reference.combine(spec, ranks, outputs)
    for data, result in zip(ranks, results, strict=True):
        idx, weights = data.inputs["idx"], data.inputs["weights"].double()
        factor = (weights * (idx + 1) * (idx >= 0)).sum(1, keepdim=True)
        want = data.source["x"].double() * factor
        torch.testing.assert_close(result.fields["x"], want, rtol=1e-12, atol=0)
        torch.testing.assert_close(result.magnitude["x"], want.abs(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["cyclic", "table"])
def test_placements(kind: str) -> None:
    more = {"owner": torch.tensor([1, 1, 0, 1])}
    spec = routed(num_keys=4, placement=kind)
    ranks = [routed_data(torch.tensor([[0, 1], [2, 3]]), rank, more=more) for rank in range(2)]
    keys = [each.keys for each in reference.dispatch(spec, ranks)]
    assert keys == {"cyclic": [(0, 2), (1, 3)], "table": [(2,), (0, 1, 3)]}[kind]


def test_patches_are_unfolded_pictures() -> None:
    """Two pictures of different sizes; torch's unfold cuts the same patches."""
    p, sizes = 2, [(4, 6), (2, 8)]
    pictures = [
        torch.randint(0, 256, (h, w, 3), dtype=torch.uint8, generator=torch.manual_seed(h))
        for h, w in sizes
    ]
    inputs = {
        "height": torch.tensor([h for h, _ in sizes]),
        "width": torch.tensor([w for _, w in sizes]),
        "packing": torch.tensor([[1, 1], [0, 0]]),
    }
    pixels = torch.cat([picture.reshape(-1, 3) for picture in pictures])
    empty = {"height": inputs["height"][:0], "width": inputs["width"][:0]}
    ranks = [
        RankData({"pixels": pixels}, inputs, {"images": 2, "length": 4}),
        RankData(
            {"pixels": pixels[:0]},
            {**empty, "packing": inputs["packing"][:0]},
            {"images": 0, "length": 8},
        ),
    ]
    spec = patches(p=p)
    rows = reference.dispatch(spec, ranks)
    want = [picture.unfold(0, p, p).unfold(1, p, p) for picture in pictures]
    cut = [each.permute(0, 1, 3, 4, 2).reshape(-1, p, p, 3) for each in want]
    assert torch.equal(rows[1].fields["pixels"][1:7], cut[0])
    assert torch.equal(rows[0].fields["pixels"], cut[1])
    assert rows[1].written.tolist() == [False] + [True] * 6 + [False]
    assert rows[1].keys == ()
    back = reference.combine(spec, ranks, [each.fields for each in rows])
    assert torch.equal(back[0].fields["pixels"], pixels)
    assert back[0].fields["pixels"].dtype == torch.uint8
    assert back[0].magnitude == {}


def test_tiles_keep_their_fields_and_sum_their_copies() -> None:
    """Two tiles, the first sent twice, the second once."""
    where = torch.tensor([[[[0, 2], [0, 0]], [[-1, 0], [0, 1]]]])
    a = torch.arange(24, dtype=torch.float32).view(2, 4, 3)
    b = torch.arange(8, dtype=torch.float16).view(2, 4)
    data = RankData({"a": a, "b": b}, {"where": where}, {"tile_rows": 1, "length": 3})
    (rows,) = reference.dispatch(tiles(), [data])
    assert torch.equal(rows.fields["a"][0], a[:, :2])
    assert torch.equal(rows.fields["b"], torch.stack([b[:, :2], b[:, 2:], b[:, :2]]))
    (result,) = reference.combine(tiles(), [data], [rows.fields])
    assert torch.equal(result.fields["b"], b.double() * torch.tensor([2, 2, 1, 1]))
    assert result.fields["a"].shape == a.shape


def test_magnitude_does_not_cancel() -> None:
    data = routed_data(torch.tensor([[0, 1]]), 0, hidden=1)
    data.inputs["weights"][:] = torch.tensor([[1.0, -1.0]])
    rows = {"x": torch.tensor([[5.0], [5.0]])}
    (result,) = reference.combine(routed(topk=2, num_keys=2, hidden=1), [data], [rows])
    assert result.fields["x"].item() == 0
    assert result.magnitude["x"].item() == 10
