"""Patches of pictures, normalised as they are sent, into the first layer of a vision transformer.

    python examples/vit_embed.py --ranks 4
    torchrun --nproc-per-node 4 examples/vit_embed.py --device cuda

Every rank has decoded pictures of its own as torchvision does, u8 channel by channel. They are
packed into sequences as in ``vit_patches.py``. ``vit_patches_normalised.fsc`` cuts the patches out,
pixel by pixel, normalises them and sends them: rows arrive as the bf16 that the embedding takes,
and no tensor of pixels is written before or after. Each rank compares what it got with torch's own
arithmetic on all pictures, which it can draw.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from vit_patches import P, Packing, decode, gathered, launch, pack

MEAN, STD = (torch.tensor(each) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
"""Of ImageNet, as in ``vit_patches_normalised.fsc``."""


def dispatch(
    shuffle: Any, pictures: Sequence[Tensor], packing: Packing, rank: int, device: torch.device
) -> Tensor:
    """This rank's sequence, bf16 [length, p, p, 3]. ``pictures`` are those that it has decoded, u8
    [3, height, width] each; ``dispatch`` takes all their elements, one picture after the other."""
    mine = [i for i, source in enumerate(packing.sources) if source == rank]
    inputs = {
        "height": [each.shape[1] for each in pictures],
        "width": [each.shape[2] for each in pictures],
        "packing": [(packing.targets[i], packing.offsets[i]) for i in mine],
    }
    rows, _ = shuffle.dispatch(
        torch.cat([each.flatten() for each in pictures]).to(device),
        **{name: torch.tensor(each, device=device) for name, each in inputs.items()},
        images=len(pictures),
        length=packing.loads(packing.targets, dist.get_world_size())[rank],
    )
    return rows


def by_torch(picture: Tensor) -> Tensor:
    """The same patches of one picture, f32 [rows * columns, p, p, 3]."""
    patches = picture.unfold(1, P, P).unfold(2, P, P).permute(1, 2, 3, 4, 0)
    return ((patches / 255 - MEAN) / STD).reshape(-1, P, P, 3)


def drawn(rank: int, options: argparse.Namespace) -> list[Tensor]:
    """The pictures that a rank has decoded."""
    pictures = decode(rank, options.pictures, options.seed)
    return [torch.from_numpy(each).permute(2, 0, 1).contiguous() for each in pictures]


def run(options: argparse.Namespace) -> None:
    """This rank's part of the job that torchrun's variables describe."""
    import fuscoc

    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    pictures = drawn(rank, options)
    packing = pack(gathered([(each.shape[1] // P, each.shape[2] // P) for each in pictures]))
    artifact = options.artifact or Path("build/examples/vit_patches_normalised")
    if options.artifact is None and rank == 0:
        fuscoc.compile(Path(__file__).with_name("vit_patches_normalised.fsc"), artifact)
    dist.barrier()
    torch.manual_seed(0)  # the same layer on all ranks
    embed = nn.Linear(P * P * 3, options.width, device=device, dtype=torch.bfloat16)
    with fuscoc.load(artifact) as shuffle:
        rows = dispatch(shuffle, pictures, packing, rank, device).clone()
    tokens = embed(rows.flatten(1))
    print(f"rank {rank}: {len(rows)} patches, tokens {list(tokens.shape)}", flush=True)
    verify(rows.cpu(), packing, rank, [drawn(each, options) for each in range(num_ranks)])
    dist.barrier()
    if rank == 0:
        print("verified: all patches are normalised as torch does it")
    dist.destroy_process_group()


def verify(rows: Tensor, packing: Packing, rank: int, decoded: Sequence[list[Tensor]]) -> None:
    """Within half a unit in the last place of bf16, and what is left of the mean in f32."""
    pictures = [picture for mine in decoded for picture in mine]
    for i, (picture, target) in enumerate(zip(pictures, packing.targets, strict=True)):
        if target == rank:
            wanted = by_torch(picture)
            found = rows[packing.offsets[i] :][: len(wanted)]
            torch.testing.assert_close(found.float(), wanted, rtol=1.01 * 2.0**-8, atol=1e-6)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=2, help="processes to start; not with torchrun"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pictures", type=int, default=3, help="of a rank, about")
    parser.add_argument("--seed", type=int, default=4, help="of the pictures")
    parser.add_argument("--width", type=int, default=128, help="of a token")
    parser.add_argument("--artifact", type=Path, help="already compiled")
    return parser.parse_args()


if __name__ == "__main__":
    launch(run, arguments())
