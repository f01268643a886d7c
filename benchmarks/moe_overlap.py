"""How much of a shuffle GEMMs hide, for several sizes; see ``examples/overlap.py``.

    python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.moe_overlap [ARTIFACT]

Prints tables: a dispatch and a combine beside one GEMM, and two micro-batches through a stack of
layers. Every size is printed, whatever it shows.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist

from examples.overlap import GEMM, GPU, Times, beside_a_gemm, compiled, micro_batches
from fuscoc_runtime.comm.group import join

COLUMNS = (
    "shuffle", "GEMMs, all SMs", "GEMMs, SMs left", "together", "hidden", "by SMs left", "in turn",
)  # fmt: skip
GEMMS = (
    replace(GEMM, rows=16_384, num_sms=12),
    GEMM,
    replace(GEMM, num_sms=6),
    replace(GEMM, tokens=8192, num_sms=12),
    replace(GEMM, tokens=8192, rows=65_536, num_sms=6),
)
STACKS = (replace(GPU, layers=2), GPU, replace(GPU, num_sms=8), replace(GPU, scale=0.0))


def row(name: str, times: Times) -> str:
    """Medians of the rounds; in brackets the least and the most of what is hidden."""
    one, gemms, left, both, turn = (statistics.median(each) for each in vars(times).values())
    hidden = times.hidden(times.gemms)
    cells = [f"{each:.2f}" for each in (one, gemms, left, both)]
    cells.append(f"{statistics.median(hidden):.0%} ({min(hidden):.0%} to {max(hidden):.0%})")
    cells.append(f"{statistics.median(times.hidden(times.gemms_beside)):.0%}")
    return f"| {name} | {' | '.join(cells)} | {turn:.2f} |"


def head(*names: str) -> str:
    titles = [*names, *COLUMNS]
    return f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"


def lines(artifact: object) -> Iterator[str]:
    yield head("tokens", "rows of the GEMM", "SMs")
    for size in GEMMS:
        times = beside_a_gemm(artifact, size)
        yield row(f"{size.tokens} | {size.rows} | {size.num_sms}", times)
    yield head("layers", "tokens", "weights", "SMs")
    for size in STACKS:
        stack = micro_batches(artifact, size)
        assert stack is not None
        weights = "random" if size.scale else "0"
        name = f"{size.layers} | 2 × {size.tokens} | {weights} | {size.num_sms}"
        yield row(name, stack)


@torch.no_grad()
def main() -> None:
    join(60)
    for line in lines(sys.argv[1] if len(sys.argv) > 1 else compiled(GPU)):
        if dist.get_rank() == 0:
            print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
