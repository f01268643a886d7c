"""The cast of ``examples/moe_fp8.fsc`` on real GPUs; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N -m tests.casts.gpu_run ARTIFACT`` exits
non-zero, after naming every mismatch, when something is wrong.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.moe_cases import Model, check_rows, expected_rows, gather_ragged, owners, routing
from fuscoc_runtime import Shuffle
from fuscoc_runtime.kernels import cuda
from fuscoc_runtime.reference import cast_fields
from tests.gpu_ranks import join

MODEL = Model()
DIVISION = """#include "cast.cuh"
using namespace fuscoc;
struct Wrong { u32* count; };
__device__ bool differs(float b) {
  return divide(448.f, b) != __fdiv_rn(448.f, b) || divide(57344.f, b) != __fdiv_rn(57344.f, b);
}
extern "C" __global__ void check(Wrong wrong) {
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (u32 mantissa = thread; mantissa < 1u << 23; mantissa += gridDim.x * blockDim.x)
    for (u32 exponent = 27; exponent < 255; ++exponent)
      if (differs(__uint_as_float(exponent << 23 | mantissa))) atomicAdd(wrong.count, 1u);
}
"""


class Wrong(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint64)]


def wrong_divisions() -> int:
    """How often the header's division is not the correctly rounded one, of all it may meet."""
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    code = cuda.cubin(DIVISION, f"sm_{capability}")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel = cuda.load_kernels(code, {"check": (256, 0)})["check"]
    kernel.launch(1024, Wrong(count.data_ptr()), torch.cuda.current_stream().cuda_stream)
    return int(count)


def batches(most: int, random: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """Rows of very different sizes, and once those that are special."""
    for number in range(40):
        tokens = most - number * 7 % most
        x = torch.randn(tokens, MODEL.hidden, device=random.device, generator=random)
        shape = (tokens, 1)
        exponents = torch.randint(-120, 100, shape, device=random.device, generator=random)
        x *= torch.exp2(exponents.float())
        if number == 0:
            x[0], x[1, ::2], x[2, 5] = 0, math.inf, math.nan
            x[3], x[4, :128], x[5, 7] = 1e-40, -3.3e38, -math.inf
            x[6, 128:256], x[7], x[8, 3] = 0, math.nan, -0.0
        yield "skewed" if number % 2 else "uniform", x.bfloat16()


def problems(shuffle: Shuffle, most: int) -> list[str]:
    """What is wrong with the rows of many batches, back to back with ranks out of step."""
    rank, num_ranks, device = shuffle.rank, dist.get_world_size(), shuffle.device
    random = torch.Generator(device).manual_seed(7 + rank)
    owner = owners(MODEL, num_ranks, device)
    wrong = []
    for number, (kind, x) in enumerate(batches(most, random)):
        idx = routing(kind, len(x), MODEL, num_ranks, random)
        weights = torch.ones(len(x), MODEL.topk, device=device)
        made = cast_fields(shuffle.spec.declared.casts, {"x": x}, shuffle.spec.declared.fields)
        source = [each.view(len(x), -1) for each in made.values()]
        if number % 3 == 0:
            torch.cuda._sleep(1_000_000 * (rank + number % 2))
        rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        expected = expected_rows(gather_ragged(idx, None), owner, MODEL.align, rank)
        target = [rows[name] for name in made]
        found = check_rows(handle, target, source, expected, None)
        wrong += [f"{most} tokens, batch {number}: {problem}" for problem in found]
    shuffle.check()
    return wrong


def main() -> None:
    join()
    wrong = [f"{count} divisions"] if (count := wrong_divisions()) else []
    for most in (100, 2048):  # the fewer are staged
        wrong += problems(Shuffle(sys.argv[1], max_sources=most), most)
    print("\n".join(wrong) or f"rank {dist.get_rank()}: the casts hold")
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
