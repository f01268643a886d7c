"""The examples against plain torch: no reference implementation, no planner, no schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import fold, unfold

from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, P = 4, 2
HIDDEN, EXPERTS, TOPK = 16, 12, 2
FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))

grids = st.sampled_from(("1x4", "2x2"))
seeds = st.integers(0, 2**32)


def opened(example: str, topology: str, **defines: int) -> LockstepShuffle:
    artifact = specs.artifact(f"{example}.fsc", **defines)
    return LockstepShuffle(artifact, topology=Topology.parse(topology), num_programs=2)


pictures_of = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=2)  # in patches


@given(grids, st.lists(pictures_of, min_size=RANKS, max_size=RANKS), seeds)
@FEW
def test_patches_are_those_of_unfold_and_fold_back(
    topology: str, sizes: list[list[tuple[int, int]]], seed: int
) -> None:
    """Pictures go to any ranks, each behind the one before it there; some go nowhere."""
    random = torch.Generator().manual_seed(seed)
    pictures = [
        [_pixels(random, i * P, j * P, 3) for i, j in each]
        for each in sizes
    ]  # fmt: skip
    expected: list[list[Tensor]] = [[] for _ in range(RANKS)]
    homes, named, positional = [], list[dict[str, Any]](), []
    for mine in pictures:
        homes.append(torch.randint(-1, RANKS, (len(mine),), generator=random).tolist())
        packing = []
        for picture, home in zip(mine, homes[-1], strict=True):
            packing.append([home, sum(map(len, expected[home])) if home >= 0 else 0])
            if home >= 0:
                columns = unfold(picture.permute(2, 0, 1)[None].float(), P, stride=P)[0]
                patches = columns.T.reshape(-1, 3, P, P).permute(0, 2, 3, 1).to(torch.uint8)
                expected[home].append(patches)
        named.append(
            {
                "height": torch.tensor([len(each) for each in mine], dtype=torch.int64),
                "width": torch.tensor([each.shape[1] for each in mine], dtype=torch.int64),
                "packing": torch.tensor(packing, dtype=torch.int64).reshape(-1, 2),
                "images": len(mine),
            }
        )
        positional.append([torch.cat([torch.zeros(0, 3).byte(), *(p.flatten(0, 1) for p in mine)])])
    wanted = [torch.cat([torch.zeros(0, P, P, 3).byte(), *each]) for each in expected]
    for inputs, patches in zip(named, wanted, strict=True):
        inputs["length"] = len(patches)
    shuffle = opened("vit_patches", topology, p=P)
    dispatched = shuffle.dispatch(positional, named)
    for patches, each in zip(wanted, dispatched, strict=True):
        assert torch.equal(each.rows["pixels"], patches)

    inverted = [{"pixels": 255 - patches} for patches in wanted]
    results = shuffle.combine(inverted, [each.handle for each in dispatched], [{}] * RANKS)
    for mine, ranks, result in zip(pictures, homes, results, strict=True):
        back = next(iter(result.values())).reshape(-1, 3)
        for picture, home in zip(mine, ranks, strict=True):
            height, width, _ = picture.shape
            cut = unfold(255.0 - picture.permute(2, 0, 1)[None].float(), P, stride=P)
            whole = fold(cut, (height, width), P, stride=P)[0].permute(1, 2, 0)
            here, back = back[: height * width], back[height * width :]
            assert torch.equal(here.reshape(picture.shape), (whole * (home >= 0)).byte())
        assert len(back) == 0


def _pixels(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(256, shape, generator=random, dtype=torch.uint8)


@dataclass(frozen=True)
class Experts:
    """An example of experts: the multiple that slots of a key begin at, and what differs."""

    align: int = 1
    dtype: torch.dtype = torch.bfloat16
    by_source: bool = False
    block: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        more = {"peers": RANKS} if self.by_source else {"block": self.block} if self.block else {}
        return {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK} | more


EXAMPLES = {
    "moe": Experts(128),
    "moe_compact": Experts(128),
    "moe_f32": Experts(dtype=torch.float32),
    "moe_fp8": Experts(128, block=8),
    "moe_by_source": Experts(16, by_source=True),
}


@pytest.mark.parametrize("name", EXAMPLES)
@given(grids, st.lists(st.integers(0, 7), min_size=RANKS, max_size=RANKS), seeds)
@FEW
def test_experts_get_sorted_tokens_and_give_back_weighted_sums(
    name: str, topology: str, tokens: list[int], seed: int
) -> None:
    case, random = EXAMPLES[name], torch.Generator().manual_seed(seed)
    shuffle = opened(name, topology, **case.sizes)
    # Small integers and halves: every sum is exact in bf16.
    x = [torch.randint(-4, 5, (n, HIDDEN), generator=random).to(case.dtype) for n in tokens]
    choose = _any if case.by_source else _distinct
    idx = [choose(n, random) for n in tokens]
    weights = [torch.randint(1, 3, (n, TOPK), generator=random) / 2 for n in tokens]
    dispatched = shuffle.dispatch(
        [[each] for each in x],
        [{"topk_idx": each, "tokens": n} for each, n in zip(idx, tokens, strict=True)],
    )

    points, sent = torch.cat(idx).flatten(), torch.cat(x).repeat_interleave(TOPK, dim=0)
    source = torch.arange(RANKS).repeat_interleave(torch.tensor(tokens) * TOPK)
    keys = points * RANKS + source if case.by_source else points
    answers = []
    for rank, each in enumerate(dispatched):
        found, begin = _as_wide(each.rows, case.block), 0
        if each.handle.row_index is not None:
            found = found[each.handle.row_index.clamp(min=0)]
        answers.append(torch.zeros(len(found), HIDDEN, dtype=case.dtype))
        own = EXPERTS // RANKS * (RANKS if case.by_source else 1)
        for key in range(rank * own, (rank + 1) * own):
            wanted = sent[keys == key]
            rows = found[begin : begin + len(wanted)].float()
            coarse = (
                {"rtol": 1 / 16, "atol": 4 / 448 / 512} if case.block else {"rtol": 0, "atol": 0}
            )
            torch.testing.assert_close(rows, wanted.float(), **coarse)
            answers[-1][begin : begin + len(wanted)] = 2 * wanted
            begin += -(-len(wanted) // case.align) * case.align
        assert each.handle.num_slots == begin

    results = shuffle.combine(
        [{"x": each} for each in answers],
        [each.handle for each in dispatched],
        [{"topk_weights": each} for each in weights],
    )
    for mine, chosen, factors, result in zip(x, idx, weights, results, strict=True):
        kept = (factors * (chosen >= 0)).sum(dim=1, keepdim=True)
        assert torch.equal(result["x"], (2 * kept * mine.float()).to(case.dtype))


def _any(tokens: int, random: torch.Generator) -> Tensor:
    return torch.randint(-1, EXPERTS, (tokens, TOPK), generator=random)


def _distinct(tokens: int, random: torch.Generator) -> Tensor:
    """As a router chooses: no expert of a token twice, but for -1."""
    chosen = torch.rand(tokens, EXPERTS, generator=random).topk(TOPK).indices
    return chosen.where(torch.rand(chosen.shape, generator=random) > 1 / EXPERTS, -1)


def _as_wide(rows: dict[str, Tensor], block: int) -> Tensor:
    """Rows as they left, but for what 8 bits have lost of them."""
    if not block:
        return rows["x"]
    return rows["x"].float() * rows["scales"].repeat_interleave(block, dim=1)


ids_of = st.lists(st.integers(-(2**50), 2**50) | st.sampled_from([-1, 0, 2**58]), max_size=9)


@given(grids, st.lists(ids_of, min_size=RANKS, max_size=RANKS))
@FEW
def test_hashed_ids_meet_with_their_bucket_and_return(
    topology: str, drawn: list[list[int]]
) -> None:
    """A key that is computed; an id of -1 has none, and nothing comes back for it."""
    shuffle = opened("hash_buckets", topology, width=4)
    ids = [torch.tensor(each, dtype=torch.int64) for each in drawn]
    rows = [mine.float()[:, None] * torch.ones(4) for mine in ids]
    dispatched = shuffle.dispatch([[each] for each in rows], [{"ids": mine} for mine in ids])
    for rank, each in enumerate(dispatched):
        for slot, key in enumerate(each.handle.keys.tolist()):
            begin, end = each.handle.key_offsets[slot : slot + 2].tolist()
            wanted = [mine[(mine != -1) & ((mine * 31 + 7).remainder(64) == key)] for mine in ids]
            assert torch.equal(each.rows["x"][begin:end, 0], torch.cat(wanted).float())
            assert key % RANKS == rank
    handles = [each.handle for each in dispatched]
    doubled = [{"x": 2 * each.rows["x"]} for each in dispatched]
    results = shuffle.combine(doubled, handles, [{}] * RANKS)
    for mine, row, result in zip(ids, rows, results, strict=True):
        assert torch.equal(result["x"], torch.where(mine[:, None] != -1, 2 * row, 0))
