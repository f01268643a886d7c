"""The examples against plain torch: no reference implementation, no planner, no schema."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import fold, unfold

import fuscoc
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology

EXAMPLES = Path(__file__).parents[2] / "examples"


def opened(example: str, topology: str, **defines: int) -> LockstepShuffle:
    directory = tempfile.mkdtemp(prefix="fuscoc-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = fuscoc.compile(EXAMPLES / example, Path(directory) / "artifact", **defines)
    return LockstepShuffle(load_artifact(path), topology=Topology.parse(topology), num_programs=2)


def test_patches_are_those_of_unfold_and_fold_back() -> None:
    p, num_ranks, length = 14, 4, 24
    shuffle = opened("vit_patches.fsc", "2x2")
    random = torch.Generator().manual_seed(0)
    sizes = [[(2, 3), (1, 4)], [(3, 1)], [], [(2, 2), (1, 1), (4, 2)]]  # in patches, by rank
    pictures = [
        [
            torch.randint(256, (i * p, j * p, 3), generator=random, dtype=torch.uint8)
            for i, j in each
        ]
        for each in sizes
    ]
    # Pictures go round robin, each behind the one before it in its sequence.
    expected = [torch.zeros(length, p, p, 3, dtype=torch.uint8) for _ in range(num_ranks)]
    written = [torch.zeros(length, dtype=torch.bool) for _ in range(num_ranks)]
    used, count = [0] * num_ranks, 0
    named, positional = [], []
    for mine in pictures:
        packing = []
        for picture in mine:
            rank, count = count % num_ranks, count + 1
            columns = unfold(picture.permute(2, 0, 1)[None].float(), p, stride=p)[0]
            patches = columns.T.reshape(-1, 3, p, p).permute(0, 2, 3, 1).to(torch.uint8)
            begin, used[rank] = used[rank], used[rank] + len(patches)
            expected[rank][begin : used[rank]] = patches
            written[rank][begin : used[rank]] = True
            packing.append([rank, begin])
        named.append(
            {
                "height": torch.tensor([len(each) for each in mine], dtype=torch.int64),
                "width": torch.tensor([each.shape[1] for each in mine], dtype=torch.int64),
                "packing": torch.tensor(packing, dtype=torch.int64).reshape(-1, 2),
                "images": len(mine),
                "length": length,
            }
        )
        cells = [each.reshape(-1, 3) for each in mine]
        positional.append([torch.cat(cells) if cells else torch.zeros(0, 3, dtype=torch.uint8)])
    dispatched = shuffle.dispatch(positional, named)
    for rank, each in enumerate(dispatched):
        assert torch.equal(each.rows["pixels"][written[rank]], expected[rank][written[rank]])

    inverted = [{"pixels": 255 - each.rows["pixels"]} for each in dispatched]
    results = shuffle.combine(inverted, [each.handle for each in dispatched], [{}] * num_ranks)
    for mine, each in zip(pictures, results, strict=True):
        back = next(iter(each.values())).reshape(-1, 3)
        for picture in mine:
            height, width, _ = picture.shape
            patches = unfold(255.0 - picture.permute(2, 0, 1)[None].float(), p, stride=p)
            whole = fold(patches, (height, width), p, stride=p)[0].permute(1, 2, 0)
            here, back = back[: height * width], back[height * width :]
            assert torch.equal(here.reshape(picture.shape), whole.to(torch.uint8))
        assert len(back) == 0


def test_experts_get_sorted_tokens_and_give_back_weighted_sums() -> None:
    hidden, experts, topk, num_ranks, align = 32, 12, 3, 4, 128
    shuffle = opened("moe.fsc", "2x2", hidden=hidden, experts=experts, topk=topk)
    random = torch.Generator().manual_seed(0)
    tokens = [5, 0, 7, 3]
    # Small integers and halves: every sum is exact in bf16.
    x = [torch.randint(-4, 5, (n, hidden), generator=random).bfloat16() for n in tokens]
    idx = [torch.randint(-1, experts, (n, topk), generator=random) for n in tokens]
    weights = [torch.randint(1, 3, (n, topk), generator=random) / 2 for n in tokens]
    dispatched = shuffle.dispatch(
        [[each] for each in x],
        [{"topk_idx": each, "tokens": n} for each, n in zip(idx, tokens, strict=True)],
    )

    points, sent = torch.cat(idx).flatten(), torch.cat(x).repeat_interleave(topk, dim=0)
    order = torch.argsort(points, stable=True)
    for rank, each in enumerate(dispatched):
        begin = 0
        for expert in range(rank * experts // num_ranks, (rank + 1) * experts // num_ranks):
            wanted = sent[order[points[order] == expert]]
            assert torch.equal(each.rows["x"][begin : begin + len(wanted)], wanted)
            begin += -(-len(wanted) // align) * align
        assert each.handle.num_slots == begin

    doubled = [{"x": 2 * each.rows["x"]} for each in dispatched]
    results = shuffle.combine(
        doubled,
        [each.handle for each in dispatched],
        [{"topk_weights": each} for each in weights],
    )
    for mine, keys, factors, result in zip(x, idx, weights, results, strict=True):
        kept = (factors * (keys >= 0)).sum(dim=1, keepdim=True)
        assert torch.equal(result["x"], (2 * kept * mine.float()).bfloat16())


def test_hashed_ids_meet_with_their_bucket_and_return() -> None:
    """A key that is computed; an id of -1 has none, and nothing comes back for it."""
    shuffle = opened("hash_buckets.fsc", "2x2", width=4)
    random = torch.Generator().manual_seed(0)
    ids = [torch.randint(-2, 1000, (size,), generator=random) for size in (9, 0, 5, 17)]
    ids[0][:4] = torch.tensor([-1, 0, -1 << 62, (1 << 62) - 1])
    rows = [mine.float()[:, None] * torch.ones(4) for mine in ids]
    dispatched = shuffle.dispatch([[each] for each in rows], [{"ids": mine} for mine in ids])
    for rank, each in enumerate(dispatched):
        for slot, key in enumerate(each.handle.keys.tolist()):
            begin, end = each.handle.key_offsets[slot : slot + 2].tolist()
            wanted = [mine[(mine != -1) & ((mine * 31 + 7).remainder(64) == key)] for mine in ids]
            assert torch.equal(each.rows["x"][begin:end, 0], torch.cat(wanted).float())
            assert key % 4 == rank
    handles = [each.handle for each in dispatched]
    doubled = [{"x": 2 * each.rows["x"]} for each in dispatched]
    results = shuffle.combine(doubled, handles, [{}] * 4)
    for mine, row, result in zip(ids, rows, results, strict=True):
        assert torch.equal(result["x"], torch.where(mine[:, None] != -1, 2 * row, 0))
