"""A mixture-of-experts layer on fuscoc, trained next to the same layer in plain torch.

    python examples/moe_layer.py --ranks 4 --plot moe_layer.png
    torchrun --nproc-per-node 4 examples/moe_layer.py

Every rank holds its share of the experts, a copy of everything else, and its own tokens. All layers
start from the same parameters and see the same batches. Two things must be the same with fuscoc as
in plain torch, in every step: the loss, each layer having trained by itself; and the gradients from
equal parameters. Rounding makes them differ, and training amplifies it, in bf16 until it shows. By
how much is measured: with a third layer, in plain torch that rounds its sums elsewhere.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# torch.optim imports it later, and its default arguments then keep the job's group alive, whose
# threads may abort a process that ends.
import torch.distributed.nn
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import start_processes

SPECS = {"f32": "moe_f32.fsc", "bf16": "moe.fsc"}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-5
"""Of a loss of about 2, and of a gradient's norm."""
AS_ROUNDING = 3
"""Differences may also be so many times what rounding alone makes of them. Between pairs of layers
that only round elsewhere, the largest over 300 steps varies by less than 2."""
FUSCOC, PLAIN, ROUNDED = "fuscoc", "plain torch", "plain torch, rounding elsewhere"
BALANCE_WEIGHT = 0.01


@dataclass(frozen=True)
class Sizes:
    """``width``: hidden units of an expert, and of the shared expert."""

    hidden: int
    experts: int
    topk: int
    width: int


class MoeLayer(nn.Module):
    """``x`` plus what a softmax top-k router, grouped SwiGLU experts and one shared expert make of
    its norm.

    Args:
        shuffle: what ``fuscoc.load`` returns, or anything with its ``dispatch`` and ``combine``.
        num_local_experts: experts of this rank; the router knows ``sizes.experts``.
    """

    def __init__(self, sizes: Sizes, num_local_experts: int, shuffle: Any) -> None:
        super().__init__()
        self.sizes, self.shuffle = sizes, shuffle
        hidden, width = sizes.hidden, sizes.width
        self.norm = nn.RMSNorm(hidden)
        self.router = nn.Linear(hidden, sizes.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(num_local_experts, hidden, 2 * width))
        self.down = nn.Parameter(torch.empty(num_local_experts, width, hidden))
        self.shared_gate_up = nn.Linear(hidden, 2 * width, bias=False)
        self.shared_down = nn.Linear(width, hidden, bias=False)
        for weights in (self.gate_up, self.down):
            nn.init.normal_(weights, std=weights.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [num_tokens, hidden] to tokens, and the load-balancing loss."""
        normed = self.norm(x)
        probabilities = self.router(normed).float().softmax(-1)
        weights, topk_idx = probabilities.topk(self.sizes.topk, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        rows, handle = self.shuffle.dispatch(normed, topk_idx=topk_idx, topk_weights=weights)
        rows = self.experts(rows, handle.key_offsets)
        y = self.shuffle.combine(rows, handle)
        shared = self.shared_down(swiglu(self.shared_gate_up(normed)))
        return x + y + shared, balance_loss(probabilities, topk_idx)

    def experts(self, rows: Tensor, key_offsets: Tensor) -> Tensor:
        """Each expert on its rows [num_slots, hidden]: those from ``key_offsets[e]`` on."""
        ends = key_offsets[1:].to(torch.int32)
        hidden = swiglu(F.grouped_mm(rows, self.gate_up, offs=ends))
        return F.grouped_mm(hidden, self.down, offs=ends)


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def balance_loss(probabilities: Tensor, topk_idx: Tensor) -> Tensor:
    """Switch Transformer's (arXiv 2101.03961, section 2.2): share of tokens times mean probability
    of every expert; 1 where they are spread evenly."""
    experts = probabilities.shape[-1]
    load = F.one_hot(topk_idx, experts).sum(1).float().mean(0) / topk_idx.shape[1]
    return experts * (load * probabilities.mean(0)).sum()


class Teacher:
    """What is learned: a different linear map in each of some regions of space."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        self.regions = torch.randn(hidden, 8, generator=generator).to(device)
        self.maps = (torch.randn(8, hidden, hidden, generator=generator) / hidden**0.5).to(device)

    def batches(self, num_tokens: int, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless ``(x, y)`` [num_tokens, hidden] of this rank."""
        generator = torch.Generator().manual_seed(100 + rank)
        while True:
            x = torch.randn(num_tokens, self.maps.shape[1], generator=generator)
            x = x.to(self.maps.device)
            region = (x @ self.regions).argmax(1)
            yield x, torch.einsum("th,thi->ti", x, self.maps[region])


class Trainer:
    """One layer and its optimiser; ``step`` and ``gradients`` are collective."""

    def __init__(self, layer: MoeLayer, learning_rate: float) -> None:
        self.layer = layer
        self.optimizer = torch.optim.SGD(layer.parameters(), learning_rate, momentum=0.9)

    def step(self, x: Tensor, target: Tensor) -> float:
        """One step on the mean loss over all ranks' tokens, which is returned."""
        loss = self.gradients(x, target)
        self.optimizer.step()
        return loss.item()

    def gradients(self, x: Tensor, target: Tensor) -> Tensor:
        """Those of the mean loss over all ranks' tokens, which is returned."""
        num_ranks = dist.get_world_size()
        self.optimizer.zero_grad()
        y, balance = self.layer(x.to(self.layer.gate_up.dtype))
        loss = F.mse_loss(y.float(), target) + BALANCE_WEIGHT * balance
        (loss / num_ranks).backward()
        for name, parameter in self.layer.named_parameters():
            if name not in ("gate_up", "down"):  # an expert's tokens are all on its own rank
                dist.all_reduce(parameter.grad)
        mean = loss.detach() / num_ranks
        dist.all_reduce(mean)
        return mean


def apart(found: MoeLayer, wanted: MoeLayer) -> Tensor:
    """Norm of the difference of two layers' gradients, over the norm of the second one's; of every
    parameter [num_parameters], over all ranks."""
    pairs = [
        (one.grad.float(), other.grad.float())
        for one, other in zip(found.parameters(), wanted.parameters(), strict=True)
        if one.grad is not None and other.grad is not None
    ]
    squares = [
        torch.stack([(one - other).square().sum(), other.square().sum()]) for one, other in pairs
    ]
    total = torch.stack(squares)
    dist.all_reduce(total)
    return (total[:, 0] / total[:, 1]).sqrt()


def build(sizes: Sizes, shuffle: Any, dtype: torch.dtype, device: torch.device) -> MoeLayer:
    """The layer from a fixed seed: the same experts, whatever the number of ranks."""
    torch.manual_seed(0)
    layer = MoeLayer(sizes, sizes.experts, shuffle)
    local = sizes.experts // dist.get_world_size()
    mine = slice(dist.get_rank() * local, (dist.get_rank() + 1) * local)
    layer.gate_up = nn.Parameter(layer.gate_up.detach()[mine].clone())
    layer.down = nn.Parameter(layer.down.detach()[mine].clone())
    return layer.to(device, dtype)


def load_shuffle(options: argparse.Namespace, sizes: Sizes) -> Any:
    """The compiled shuffle; rank 0 compiles it unless it is given."""
    import fuscoc

    artifact = options.artifact or Path("build/examples") / f"moe_layer_{options.dtype}"
    if options.artifact is None:
        if dist.get_rank() == 0:
            constants = {"hidden": sizes.hidden, "experts": sizes.experts, "topk": sizes.topk}
            fuscoc.compile(Path(__file__).with_name(SPECS[options.dtype]), artifact, **constants)
        dist.barrier()
    on_gpu = options.device == "cuda"
    return fuscoc.load(artifact, max_sources=options.tokens if on_gpu else None)


def train(options: argparse.Namespace) -> None:
    """This rank's part of the job that torchrun's variables describe."""
    from moe_plain import PlainShuffle

    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    if options.experts % num_ranks:
        raise SystemExit(f"{options.experts} experts cannot be split evenly over {num_ranks} ranks")
    sizes = Sizes(options.hidden, options.experts, options.topk, 2 * options.hidden)
    shuffles = {
        FUSCOC: load_shuffle(options, sizes),
        PLAIN: PlainShuffle(sizes.experts),
        ROUNDED: PlainShuffle(sizes.experts, rounded=True),
    }

    def trainer(name: str) -> Trainer:
        layer = build(sizes, shuffles[name], DTYPES[options.dtype], device)
        return Trainer(layer, options.learning_rate)

    trainers = {name: trainer(name) for name in shuffles}
    compared = {name: trainer(name) for name in (FUSCOC, ROUNDED)}
    plain = trainers[PLAIN].layer
    losses: dict[str, list[float]] = {name: [] for name in trainers}
    gradients: dict[str, list[Tensor]] = {name: [] for name in compared}
    batches = Teacher(sizes.hidden, device).batches(options.tokens, rank)
    for step, (x, target) in zip(range(options.steps), batches, strict=False):
        for each in compared.values():
            each.layer.load_state_dict(plain.state_dict())
            each.gradients(x, target)
        for name, each in trainers.items():
            losses[name].append(each.step(x, target))
        for name, each in compared.items():
            gradients[name].append(apart(each.layer, plain))
        if rank == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(
                f"step {step:4}", *(f"{n} {seen[-1]:.6f}" for n, seen in losses.items()), flush=True
            )
    if rank == 0:
        if options.plot:
            plot(losses, options.plot)
        report(differences(losses, gradients, [name for name, _ in plain.named_parameters()]))
    dist.destroy_process_group()


def differences(
    losses: dict[str, list[float]], gradients: dict[str, list[Tensor]], parameters: list[str]
) -> dict[str, tuple[float, float]]:
    """The largest from plain torch over all steps, of the loss and each gradient: of fuscoc, and of
    plain torch that rounds elsewhere."""
    found = []
    for name in (FUSCOC, ROUNDED):
        loss = (torch.tensor(losses[name]) - torch.tensor(losses[PLAIN])).abs().max()
        found.append([loss.item(), *torch.stack(gradients[name]).amax(0).tolist()])
    names = ["the loss", *(f"the gradient of {name}" for name in parameters)]
    return dict(zip(names, zip(*found, strict=True), strict=True))


def report(found: dict[str, tuple[float, float]]) -> None:
    """Prints the differences; exits with an error if fuscoc's are too large."""
    print(f"largest differences from {PLAIN}, of {FUSCOC} and of {ROUNDED}:")
    wrong = []
    for name, (ours, rounding) in found.items():
        tolerance = LOSS_TOLERANCE if name == "the loss" else GRADIENT_TOLERANCE
        tolerance = max(tolerance, AS_ROUNDING * rounding)
        print(f"{name}: {ours:.1e}, {rounding:.1e}", flush=True)
        if not ours <= tolerance:
            wrong.append(f"{name} differs by {ours:.1e}, more than {tolerance:.1e}")
    if wrong:
        raise SystemExit("\n".join(wrong))


def plot(losses: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for (name, seen), style in zip(losses.items(), ("-", "--", ":"), strict=True):
        axes.plot(seen, style, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def spawned(rank: int, options: argparse.Namespace, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    train(options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=2, help="processes to start; not with torchrun"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=SPECS, default="f32")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=16, help="of each rank, in each step")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--experts", type=int, default=12)
    parser.add_argument("--topk", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--artifact", type=Path, help="already compiled, for these sizes")
    parser.add_argument("--plot", type=Path, help="write the loss curves to this .png")
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
