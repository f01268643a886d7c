"""A Hugging Face mixture of experts on several ranks: trained, asked for tokens, and saved whole.

    python examples/transformers_moe.py --ranks 4
    torchrun --nproc-per-node 4 examples/transformers_moe.py --device cuda

The model is a small Qwen3-MoE with random weights; nothing is downloaded. Every rank trains on
sequences of its own, of its own length: arithmetic progressions. In the end the saved checkpoint
is opened as an ordinary model in one process, which has to say the same as all ranks do.
"""

from __future__ import annotations

import argparse
import os
import socket
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import fuscoc.torch

VOCABULARY = 32
TOLERANCE = 1e-4
"""Of logits of about 10, in f32."""


def small_model() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            moe_intermediate_size=48,
            num_experts=8,
            num_experts_per_tok=2,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def progressions(num_sequences: int, length: int, seed: int) -> Tensor:
    """Token ids [num_sequences, length]; each token is so much more than the one before."""
    generator = torch.Generator().manual_seed(seed)
    starts, steps = torch.randint(1, 4, (2, num_sequences, 1), generator=generator)
    return (starts + steps * torch.arange(length)) % VOCABULARY


def train(options: argparse.Namespace) -> None:
    """This rank's part of the job that torchrun's variables describe."""
    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank = dist.get_rank()

    model = fuscoc.torch.expert_parallel(small_model()).to(device)
    parallel = DistributedDataParallel(model)  # leaves the experts alone
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(options.steps):
        tokens = progressions(2 + rank, 6 + rank, seed=100 * step + rank).to(device)
        loss = parallel(input_ids=tokens, labels=tokens).loss
        loss.backward()
        fuscoc.torch.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step:3} loss {loss.item():.4f}", flush=True)

    model.eval()
    prompt = progressions(1, 4, seed=rank).to(device)
    generated = model.generate(prompt, max_new_tokens=4 + rank, do_sample=False)
    for turn in range(dist.get_world_size()):
        if turn == rank:
            print(f"rank {rank}: {prompt[0].tolist()} goes on as {generated[0, 4:].tolist()}")
        dist.barrier()
    compare(model, device)
    dist.destroy_process_group()


@torch.no_grad()
def compare(model: Qwen3MoeForCausalLM, device: torch.device) -> None:
    """Save the model whole, open it as an ordinary one, and compare what both say."""
    tokens = progressions(4, 12, seed=7).to(device)
    logits = model(input_ids=tokens).logits
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # rank 0 writes
        if dist.get_rank() == 0:
            whole = AutoModelForCausalLM.from_pretrained(folder).to(device)
            error = (whole(input_ids=tokens).logits - logits).abs().max().item()
            print(f"the saved model differs by {error:.1e}")
            if not error <= TOLERANCE:
                raise SystemExit(f"logits differ by more than {TOLERANCE}")


def spawned(rank: int, options: argparse.Namespace, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    train(options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=4, help="processes to start; not with torchrun"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if "RANK" in os.environ:
        train(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(spawned, (options, port), options.ranks, start_method="fork")


if __name__ == "__main__":
    main()
