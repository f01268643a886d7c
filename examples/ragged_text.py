"""Texts of any length, whole, to the ranks that work on texts of about that length; a vector for
each comes back.

    python examples/ragged_text.py --ranks 4
    torchrun --nproc-per-node 4 examples/ragged_text.py --device cuda

Every rank has texts of its own, from none to many tokens. Worked on together, they would be padded
to the longest, so each goes to the bucket of its length, and those of a bucket are padded to the
longest among them. ``ragged_text.fsc`` has two shuffles: one moves the tokens, which lie text by
text in their bucket, and the other one their numbers, in the same order, and brings back a vector
for every text. Here that is what one layer of attention makes of it, padding left out.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import start_processes
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

WIDTH, BUCKETS = 32, 8
LONGEST = 64
"""Tokens of the longest text; a bucket has every eighth part of that."""


def bucket_of(lengths: Tensor) -> Tensor:
    """int64 [texts]; -1, which is none, for a text without tokens."""
    return (lengths - 1).div(LONGEST // BUCKETS, rounding_mode="floor")


def pooled(texts: Sequence[Tensor]) -> Tensor:
    """A vector for each text [tokens, width]: the mean of what attention makes of its tokens, f32
    [texts, width]. All are padded to the longest."""
    lengths = torch.tensor([len(each) for each in texts], device=texts[0].device)
    padded = pad_sequence(list(texts), batch_first=True).float()
    there = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
    seen = scaled_dot_product_attention(padded, padded, padded, attn_mask=there[:, None, :])
    return (seen * there[..., None]).sum(1) / lengths[:, None]


def by_bucket(rows: Tensor, handle: Any) -> list[Tensor]:
    """The rows of each bucket of this rank."""
    offsets = handle.key_offsets.tolist()
    return [rows[a : a + n] for a, n in zip(offsets, handle.key_counts.tolist(), strict=False)]


def embed(tokens_to: Any, lengths_to: Any, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
    """A vector for every text of this rank, f32 [texts, width], and how many tokens this rank has
    worked on, padding included.

    Args:
        tokens_to, lengths_to: The shuffles ``ragged_text`` and ``text_lengths``.
        tokens: bf16 [tokens, width], one text behind the other.
        lengths: int64 [texts].
    """
    bucket = bucket_of(lengths)
    rows, held = tokens_to.dispatch(tokens, length=lengths, bucket=bucket)
    numbers, asked = lengths_to.dispatch(lengths, bucket=bucket)
    vectors, worked = numbers.new_zeros(len(numbers), WIDTH, dtype=torch.float32), 0
    begin = 0
    for some, of_texts in zip(by_bucket(rows, held), by_bucket(numbers, asked), strict=True):
        if len(of_texts):
            vectors[begin : begin + len(of_texts)] = pooled(some.split(of_texts.tolist()))
            worked += len(of_texts) * int(of_texts.max())
        begin += len(of_texts)
    return lengths_to.combine(vectors, asked), worked


def run(options: argparse.Namespace) -> None:
    """This rank's part of the job that torchrun's variables describe."""
    import fuscoc

    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank, artifact = dist.get_rank(), options.artifact or Path("build/examples/ragged_text")
    if options.artifact is None:
        if rank == 0:
            spec = Path(__file__).with_suffix(".fsc")
            fuscoc.compile(spec, artifact, width=WIDTH, buckets=BUCKETS)
        dist.barrier()
    random = torch.Generator().manual_seed(options.seed + rank)
    lengths = torch.randint(LONGEST + 1, (options.texts,), generator=random)
    tokens = torch.randn(int(lengths.sum()), WIDTH, generator=random).bfloat16()
    names = ("ragged_text", "text_lengths")
    with fuscoc.load(artifact, names[0]) as first, fuscoc.load(artifact, names[1]) as second:
        vectors, worked = embed(first, second, tokens.to(device), lengths.to(device))
    texts = tokens.split(lengths.tolist())
    alone = [pooled([each])[0] if len(each) else torch.zeros(WIDTH) for each in texts]
    torch.testing.assert_close(vectors.cpu(), torch.stack(alone), rtol=1e-4, atol=1e-5)
    counts = torch.tensor([lengths.sum(), worked, options.texts * lengths.max()], device=device)
    dist.all_reduce(counts)
    if rank == 0:
        used, padded, without = counts.tolist()
        print(f"{used} tokens; worked on, with padding: {padded} by buckets, {without} without")
        print("verified: every text has the vector that it has by itself")
    dist.destroy_process_group()


def spawned(rank: int, options: argparse.Namespace, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    run(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--ranks", type=int, default=4, help="processes to start; not with torchrun"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--texts", type=int, default=24, help="of a rank")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--artifact", type=Path, help="already compiled")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(spawned, (options, port), options.ranks, start_method="fork")


if __name__ == "__main__":
    main()
