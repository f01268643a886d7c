"""Pictures of mixed sizes, packed into sequences of nearly equal length, and brought back.

    python examples/vit_patches.py --ranks 4 --plot vit_patches.png
    torchrun --nproc-per-node 4 examples/vit_patches.py --device cuda

Every rank has decoded pictures of its own, of any size, some ranks many and some few. As NaViT does
("Patch n' Pack", arXiv 2307.06304), whole pictures are packed into sequences, here one for each
rank: all ranks gather the sizes and find the same packing, and ``vit_patches.fsc`` cuts the patches
out and moves them. A masked autoencoder is trained on the sequences. Then the patches go back to
where the pictures are: as they had arrived, which must give the same pictures, and as predicted.

Pixels are bytes, which have no gradient and need none: all that is trained comes after dispatch.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# torch.optim imports it later, and its default arguments then keep the job's group alive, whose
# threads may abort a process that ends.
import torch.distributed.nn
from torch import Tensor, nn
from torch.multiprocessing import start_processes

P = 14
"""Pixels along a side of a patch, as in ``vit_patches.fsc``."""
SIDES = range(3, 11)
"""Patches along a side of a picture."""
HIDDEN = 0.25
"""Share of the patches that the model does not see."""

Size = tuple[int, int]
"""Of a picture: rows and columns of patches."""


@dataclass(frozen=True)
class Packing:
    """Of the pictures of all ranks, in the order of the ranks: their sizes, the ranks that have
    decoded them, the ranks whose sequences they go to, and the slots there of their first patches.
    """

    sizes: Sequence[Size]
    sources: Sequence[int]
    targets: Sequence[int]
    offsets: Sequence[int]

    def loads(self, ranks: Sequence[int], num_ranks: int) -> list[int]:
        """Patches of each rank, if its pictures are those for which ``ranks`` names it."""
        patches = [0] * num_ranks
        for rank, (rows, columns) in zip(ranks, self.sizes, strict=True):
            patches[rank] += rows * columns
        return patches

    def places(self, rank: int) -> Tensor:
        """For every slot of a rank's sequence the picture, and the row and column of the patch in
        it, int64 [length, 3]. Nobody has to send them: all ranks know all sizes."""
        mine = [i for i, target in enumerate(self.targets) if target == rank]
        return torch.cat(
            [
                torch.cartesian_prod(torch.tensor([i]), *map(torch.arange, self.sizes[i]))
                for i in sorted(mine, key=lambda i: self.offsets[i])
            ]
        )


def pack(decoded: Sequence[Sequence[Size]]) -> Packing:
    """The pictures of each rank, the largest of all first, each to the rank that has the fewest
    patches by then."""
    sizes = [size for each in decoded for size in each]
    sources = [rank for rank, each in enumerate(decoded) for _ in each]
    targets, offsets, used = [0] * len(sizes), [0] * len(sizes), [0] * len(decoded)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i][0] * sizes[i][1]):
        targets[i] = used.index(min(used))
        offsets[i] = used[targets[i]]
        used[targets[i]] += sizes[i][0] * sizes[i][1]
    return Packing(sizes, sources, targets, offsets)


class Autoencoder(nn.Module):
    """Guesses patches, also those that it does not see, from the others of the same picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(P * P * 3, width)
        self.unseen = nn.Parameter(torch.zeros(width))
        # One for rows and one for columns, so that they serve pictures of every shape.
        self.row, self.column = (nn.Embedding(SIDES.stop, width) for _ in range(2))
        self.block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0, activation="gelu", norm_first=True
        )
        self.predict = nn.Linear(width, P * P * 3)

    def forward(self, patches: Tensor, places: Tensor, hidden: Tensor) -> Tensor:
        """Patches f32 [length, p, p, 3], from 0 to 1, to what they are taken for. ``places`` is
        what ``Packing.places`` returns; ``hidden``, bool [length], says which are not seen."""
        picture, row, column = places.unbind(1)
        x = torch.where(hidden[:, None], self.unseen, self.embed(patches.flatten(1)))
        x = x + self.row(row) + self.column(column)
        # Patches attend to those of their own picture: squares along the diagonal.
        x = self.block(x, src_mask=picture[:, None] != picture)
        return self.predict(x).view_as(patches)


def gradients(
    model: Autoencoder, patches: Tensor, places: Tensor, hidden: Tensor, total: int
) -> Tensor:
    """Those of the mean squared error over the ``total`` patches of all ranks, which is returned.
    A patch counts the same wherever it is."""
    model.zero_grad()
    errors = (model(patches, places, hidden) - patches).square().mean((1, 2, 3))
    loss = errors.sum() / total
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    mean = loss.detach()
    dist.all_reduce(mean)
    return mean


def train(options: argparse.Namespace, rows: Tensor, places: Tensor, total: int) -> Tensor:
    """What a model, trained on the sequences of all ranks, takes this one for, u8 like ``rows``."""
    torch.manual_seed(0)  # the same model on all ranks
    model = Autoencoder(options.width).to(rows.device)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    generator = torch.Generator().manual_seed(dist.get_rank())
    patches = rows / 255

    def hide() -> Tensor:
        return (torch.rand(len(rows), generator=generator) < HIDDEN).to(rows.device)

    for step in range(options.steps):
        loss = gradients(model, patches, places, hide(), total)
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step:4} loss {loss:.4f}", flush=True)
    with torch.no_grad():
        predicted = model(patches, places, hide())
    return (predicted.clamp(0, 1) * 255).round().to(torch.uint8)


def dispatch(
    shuffle: Any, pictures: Sequence[Any], packing: Packing, rank: int, device: torch.device
) -> tuple[Tensor, Any]:
    """This rank's sequence u8 [length, p, p, 3], and the handle. ``pictures`` are those that it has
    decoded, u8 [height, width, 3] each; ``dispatch`` takes all their pixels as [num_pixels, 3]."""
    pixels = np.concatenate([each.reshape(-1, 3) for each in pictures])
    mine = [i for i, source in enumerate(packing.sources) if source == rank]
    inputs = {
        "height": [each.shape[0] for each in pictures],
        "width": [each.shape[1] for each in pictures],
        "packing": [(packing.targets[i], packing.offsets[i]) for i in mine],
    }
    return shuffle.dispatch(
        torch.from_numpy(pixels).to(device),
        **{name: torch.tensor(each, device=device) for name, each in inputs.items()},
        images=len(pictures),
        length=packing.loads(packing.targets, dist.get_world_size())[rank],
    )


def cut(pixels: Tensor, pictures: Sequence[Any]) -> list[Any]:
    """What ``combine`` returns, u8 [num_pixels, 3], as pictures of the sizes of these."""
    parts = pixels.cpu().split([each.shape[0] * each.shape[1] for each in pictures])
    return [part.numpy().reshape(each.shape) for part, each in zip(parts, pictures, strict=True)]


def decode(rank: int, mean: int, seed: int) -> list[Any]:
    """Pictures of this rank, u8 [height, width, 3]; from 1 to ``2 * mean - 1`` of them."""
    from vit_pictures import draw

    random = np.random.default_rng([seed, rank])
    sizes = P * random.integers(SIDES.start, SIDES.stop, (random.integers(1, 2 * mean), 2))
    return [draw(rank, i, height, width, random) for i, (height, width) in enumerate(sizes)]


def load_shuffle(options: argparse.Namespace, max_sources: int, capacity: int) -> Any:
    """The compiled shuffle, on GPUs in memory of a fixed size: for ``max_sources`` patches that a
    rank has decoded and ``capacity`` that it is sent. Rank 0 compiles it unless it is given."""
    import fuscoc

    artifact = options.artifact or Path("build/examples/vit_patches")
    if options.artifact is None:
        if dist.get_rank() == 0:
            fuscoc.compile(Path(__file__).with_name("vit_patches.fsc"), artifact)
        dist.barrier()
    if options.device == "cpu":
        return fuscoc.load(artifact)
    return fuscoc.load(artifact, max_sources=max_sources, capacity=capacity)


def run(options: argparse.Namespace) -> None:
    """This rank's part of the job that torchrun's variables describe."""
    from vit_pictures import Shown, plot

    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank = dist.get_rank()
    pictures = decode(rank, options.pictures, options.seed)
    packing = pack(gathered([(len(each) // P, each.shape[1] // P) for each in pictures]))
    decoded, packed = (
        packing.loads(ranks, dist.get_world_size()) for ranks in (packing.sources, packing.targets)
    )
    if rank == 0:
        describe(packing, decoded, packed)
    with load_shuffle(options, max(decoded), max(packed)) as shuffle:
        rows, handle = dispatch(shuffle, pictures, packing, rank, device)
        predicted = train(options, rows, packing.places(rank).to(device), sum(packed))
        unchanged, guessed = (
            cut(shuffle.combine(each, handle), pictures) for each in (rows, predicted)
        )
        ranks = gathered(Shown(pictures, rows.cpu().numpy(), unchanged, guessed))
    dist.destroy_process_group()
    if rank == 0:
        if options.plot:
            plot(ranks, options.plot)
        verify(ranks)


def gathered(mine: Any) -> list[Any]:
    """An object of each rank; they are small."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def describe(packing: Packing, decoded: Sequence[int], packed: Sequence[int]) -> None:
    shown = ", ".join(f"{P * rows}x{P * columns}" for rows, columns in packing.sizes)
    print(f"{len(packing.sizes)} pictures on {len(packed)} ranks, in pixels: {shown}")
    for what, patches in (("decoded", decoded), ("packed", packed)):
        over = max(patches) * len(patches) / sum(patches)
        print(f"patches of each rank, {what}: {patches}; the most are {over:.2f} times the mean")


def verify(ranks: Sequence[Any]) -> None:
    for rank, shown in enumerate(ranks):
        for i, pair in enumerate(zip(shown.pictures, shown.unchanged, strict=True)):
            if not np.array_equal(*pair):
                raise SystemExit(f"picture {i} of rank {rank} came back changed")
    print("verified: all pictures came back bit for bit")


Run = Callable[[argparse.Namespace], None]


def launch(run: Run, options: argparse.Namespace) -> None:
    """One rank of torchrun's, or all of them."""
    if "RANK" in os.environ:
        run(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(spawned, (run, options, port), options.ranks, start_method="fork")


def spawned(rank: int, run: Run, options: argparse.Namespace, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    run(options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=2, help="processes to start; not with torchrun"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pictures", type=int, default=3, help="of a rank, about")
    parser.add_argument("--seed", type=int, default=4, help="of the pictures")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--steps", type=int, default=100, help="of training")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--artifact", type=Path, help="already compiled")
    parser.add_argument("--plot", type=Path, help="write pictures and sequences to this .png")
    return parser.parse_args()


if __name__ == "__main__":
    launch(run, arguments())
