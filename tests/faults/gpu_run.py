"""One rank that shuffles without end, over a pretended network where there are several nodes.

    python -m tests.faults.gpu_run ARTIFACT TOPOLOGY sync|async|fixed|replayed TIMEOUT

Started for every rank by `test_gpu.py`, with torchrun's variables set. Writes a line when all ranks
have shuffled once, and at last the error that ended it, as JSON; says where it is if it does not
end then.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import fuscoc_runtime
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.topology import Topology
from tests.gpu_ranks import join

MOST = 1000
"""Segments of a call of fixed capacity."""
LONGEST = 20.0
"""Seconds to the end of a process that has raised, or after which it says where it is."""


def shuffle_for_ever(shuffle: fuscoc_runtime.Shuffle, rank: int, is_async: bool) -> None:
    """Batches of changing sizes; the error that ends it is raised."""
    [field], constants = shuffle.spec.declared.source_fields, shuffle.spec.declared.constants
    random = torch.Generator("cuda").manual_seed(rank)
    for number in itertools.count():
        tokens = 64 + 97 * number % 1900
        x = torch.randn(tokens, *field.shape, device="cuda", generator=random).bfloat16()
        scores = torch.rand(tokens, constants["experts"], device="cuda", generator=random)
        idx = scores.topk(constants["topk"], dim=1).indices
        rows, handle, *_ = shuffle.dispatch(x, topk_idx=idx, async_op=is_async)
        weights = torch.rand(idx.shape, device="cuda")
        shuffle.combine(rows, handle, topk_weights=weights, async_op=is_async)
        if number == 0:
            print("shuffled", flush=True)


def shuffle_fixed(shuffle: fuscoc_runtime.Shuffle, rank: int, is_replayed: bool) -> None:
    """Calls of a fixed capacity, none of which waits; or replays of them, which none of fuscoc's
    code sees: there only ``check`` can raise."""
    [field], constants = shuffle.spec.declared.source_fields, shuffle.spec.declared.constants
    random = torch.Generator("cuda").manual_seed(rank)
    x = torch.randn(MOST, *field.shape, device="cuda", generator=random).bfloat16()
    scores = torch.rand(MOST, constants["experts"], device="cuda", generator=random)
    idx = scores.topk(constants["topk"], dim=1).indices
    weights = torch.rand(idx.shape, device="cuda")

    def call() -> None:
        rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=weights)
        shuffle.combine(rows, handle)

    call()
    shuffle.check()
    graph = torch.cuda.CUDAGraph()
    if is_replayed:
        with torch.cuda.graph(graph):
            call()
    print("shuffled", flush=True)
    is_between_nodes = shuffle.topology.num_nodes > 1  # what waits for the network may never end
    for number in itertools.count():
        if is_replayed:
            graph.replay()
        else:
            call()
        if number % (5 if is_between_nodes else 50) == 0:  # so that the host does not run away
            shuffle.check() if is_replayed or is_between_nodes else torch.cuda.synchronize()


def await_others(place: Path, rank: int) -> None:
    """Until all but the one that was killed have raised: rank 0 takes the store along, which under
    torchrun would outlive it, and nothing of the runtime runs at such an end."""
    job, num_ranks = os.environ["MASTER_PORT"], int(os.environ["WORLD_SIZE"])
    (place / f"raised.{job}.{rank}").touch()
    deadline = time.monotonic() + LONGEST
    while len([*place.glob(f"raised.{job}.*")]) < num_ranks - 1 and time.monotonic() < deadline:
        time.sleep(0.05)


def told(shuffle: fuscoc_runtime.Shuffle, error: RuntimeError) -> FuscoRuntimeError:
    """What fuscoc says of an error, which may be one of torch's own calls."""
    if isinstance(error, FuscoRuntimeError):
        return error
    print(error, file=sys.stderr, flush=True)
    try:
        shuffle.check()
    except FuscoRuntimeError as found:
        return found
    raise error


def gpu_has_failed() -> bool:
    """Whether CUDA has nothing but an earlier error to say."""
    try:
        torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return True
    return False


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    artifact, text, kind, timeout = sys.argv[1:]
    topology, rank = Topology.parse(text), int(os.environ["RANK"])
    device = join(topology)
    is_fixed = kind in ("fixed", "replayed")
    shuffle = fuscoc_runtime.Shuffle(
        artifact,
        topology=topology,
        device=device,
        timeout=float(timeout),
        max_sources=MOST if is_fixed else None,
    )
    try:
        if is_fixed:
            shuffle_fixed(shuffle, rank, kind == "replayed")
        shuffle_for_ever(shuffle, rank, kind == "async")
    except RuntimeError as error:
        # Kept, and so the frames that it has passed: what they hold may wait for the dead.
        raised = told(shuffle, error)
        found = {"type": type(raised).__name__, "text": str(raised)}
        print(json.dumps(found | {"peer": getattr(raised, "peer", None)}), flush=True)
    faulthandler.dump_traceback_later(LONGEST)
    if not is_fixed or topology.num_nodes == 1 or gpu_has_failed():
        await_others(Path(artifact).parent, rank)
        os._exit(0)  # the process group waits for the dead at its end, or aborts on a failed GPU


if __name__ == "__main__":
    main()
