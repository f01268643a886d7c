"""Every CUDA kernel on few rows, for compute-sanitizer; run by torchrun, one process a GPU.

``python -m torch.distributed.run --nproc-per-node N --no-python compute-sanitizer --tool racecheck
--kernel-name kns=moe_ python tests/cuda/sanitizer_run.py`` exits non-zero when results are wrong;
what else memcheck needs is in test_sanitizer.py.
``--plant NAME`` puts a fault into a copy of the headers, which the tool must find: that no hazard
is reported means something only where a hazard would be. Results are not looked at then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.moe_cases import Model, program
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.program import MAX_STAGED_PLANS, PLAN_POINTS
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.kernels import cuda
from tests.cuda.checks import run_case, settle
from tests.cuda.edges import casts, copies, maxima

TOKENS = 40
MODELS = (
    Model(hidden=512, experts=8, topk=2),
    Model(hidden=512, experts=8, topk=3, compact=True),
    Model(hidden=1001, experts=13, topk=3, align=1),
    Model(hidden=384, experts=8, topk=2, dtype="f8e4m3", extra=(("scales", "f32", 3),)),
)
ONE_SM = Schedule(num_sms=1, combine_group=1)  # so many items for so few teams that these draw them
TWO_SMS = Schedule(num_sms=2, send_ctas=1, send_warps=2, dispatch_group=3, combine_group=2)


@dataclass(frozen=True)
class Fault:
    """A change of one header. None makes a kernel wait for ever or write where it must not, except
    for the one that memcheck must find."""

    header: str
    text: str
    replacement: str


FAULTS = {
    # A count is read before the barrier, while its warp may be writing it.
    "race": Fault(
        "plan.cuh",
        "shared.chunk[warp][found] = u16(__popc(same));",
        "shared.chunk[warp][found] = u16(__popc(same));\n"
        "    (void)*(volatile u16*)&shared.chunk[warp ^ 1][0];",
    ),
    # The points of a team's item are written by all its warps, and not by the first alone.
    "team race": Fault(
        "combine.cuh",
        "      team_barrier();  // the last item is finished, the next one is known\n",
        "      if (!leads) shared.point[team][turn][lane] = kNoPoint;\n"
        "      team_barrier();  // the last item is finished, the next one is known\n",
    ),
    # Slot codes go behind the end of their tensor.
    "write": Fault(
        "plan.cuh",
        "    call.codes[point] = code;\n",
        "    call.codes[point + call.max_sources * Shape::fanout] = code;\n",
    ),
}


PIECE_FAULTS = {
    # Lines of pieces are read far behind the end of their source.
    "read of pieces": Fault(
        "box_copy.cuh",
        "__ldcg(reinterpret_cast<const uint4*>(at));",
        "__ldcg(reinterpret_cast<const uint4*>(at + (i64(1) << 33)));",
    ),
    # Where runs of another warp are is read while that warp may be writing it.
    "race of pieces": Fault(
        "box_copy.cuh",
        "        places.pair[lane] = {run.from + before * kLine, run.to + before * kLine};\n",
        "        places.pair[lane] = {run.from + before * kLine, run.to + before * kLine};\n"
        "        const int other = threadIdx.x / kWarp % 2 ? -1 : 1;\n"
        "        (void)*(char* volatile*)&(&places)[other].pair[lane].to;\n",
    ),
}
"""Those that `dense_run.py` plants; its case `ulysses_in_parts` comes to all of them."""


def plant(fault: Fault, folder: Path) -> Path:
    """The headers with a fault, copied into ``folder``."""
    shutil.copytree(cuda.INCLUDE, folder, dirs_exist_ok=True)
    path = folder / fault.header
    text = path.read_text()
    assert text.count(fault.text) == 1, f"{fault.header} has changed: plant the fault elsewhere"
    path.write_text(text.replace(fault.text, fault.replacement))
    return folder


def calls(model: Model, most: int, device: torch.device, planted: bool = False) -> bool:
    """Some dispatches and combines of an engine for up to ``most`` tokens; few are staged."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator(device).manual_seed(100 + rank)
    limits = Limits(most, num_ranks * TOKENS * model.topk + model.experts * model.align)
    engine = CudaNode(program(model), limits, dist.group.WORLD, device)
    for kind, tokens, schedule in (
        ("uniform", TOKENS, ONE_SM),
        ("messy", TOKENS - 7 * rank, TWO_SMS),
        ("messy", rank, TWO_SMS),
    ):
        engine.configure(schedule)
        wrong = run_case(engine, model, kind, tokens, generator, combines=2)
        if not planted and settle(wrong, f"{model} {kind} {tokens} of {most}"):
            return True
    return False


def short_copies(device: torch.device) -> bool:
    return copies(device, (TOKENS,))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", choices=FAULTS)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if options.plant:
        failed = False
        with tempfile.TemporaryDirectory() as folder:
            cuda.INCLUDE = plant(FAULTS[options.plant], Path(folder))
            try:
                calls(MODELS[0], MAX_STAGED_PLANS * PLAN_POINTS, device, planted=True)
            except RuntimeError as error:  # the tool ends a kernel that writes where it must not
                print(error, flush=True)
                os._exit(0)  # whatever still uses the GPU would only abort
    else:
        failed = any(
            calls(model, most, device)
            for model in MODELS
            for most in (TOKENS, MAX_STAGED_PLANS * PLAN_POINTS)
        ) or any(edge(device) for edge in (casts, short_copies, maxima))
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks: {'FAILED' if failed else 'all cases hold'}", flush=True
        )
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
