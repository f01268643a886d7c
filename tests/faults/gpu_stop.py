"""Kernels that wait on all SMs of a GPU, for a signal that nobody sends, until a thread stops them.

    python tests/faults/gpu_stop.py ARTIFACT sleep|capture|load|free

Started by `test_gpu.py`, which ends it if it hangs. Behind the kernels lies work of more streams
than a GPU has queues, copies among it, that must not keep the stop from them; nor must what the
program does meanwhile, such as a call of CUDA that waits for all kernels.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from fuscoc_runtime.artifact import load_artifact
from fuscoc_runtime.comm.group import alone
from fuscoc_runtime.comm.watch import watch
from fuscoc_runtime.comm.windows import private_window
from fuscoc_runtime.engine.machine import Late, Machine
from fuscoc_runtime.engine.patience import Patience
from fuscoc_runtime.engine.steps import launch_empty, steps_by_list
from fuscoc_runtime.topology import Topology

TIMEOUT, SHORT = 3.0, 1.5
NUM_STREAMS = 40
PROGRAMS_PER_SM = 64


def main() -> None:
    path, meanwhile = sys.argv[1:]
    device, topology = torch.device("cuda", 0), Topology(1, 1)
    torch.cuda.set_device(device)
    artifact = load_artifact(path)
    spec = artifact.shuffle(None)
    num_programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
    machine = Machine(artifact, spec, topology, 0, device, num_programs)
    steps, window = steps_by_list(spec.dispatch), private_window(256, device)
    send, wait = steps["direct"], steps["local"]
    here = torch.zeros(1 << 20, pin_memory=True)
    there = torch.zeros(1 << 20, device=device).add_(1)
    launch_empty(machine, send, window, num_programs)
    launch_empty(machine, wait, window, num_programs)
    torch.cuda.synchronize()
    assert not machine.waits.under_way(), "what has come is not waited for"

    patience = Patience(machine.waits, alone(topology, device, TIMEOUT))
    watch(patience)
    assert send.signal is not None
    machine.signalled(send.signal)  # a launch of a peer that never is
    launch_empty(machine, wait, window, num_programs)
    ended = torch.cuda.current_stream().record_event()
    for stream in [torch.cuda.Stream(device) for _ in range(NUM_STREAMS)]:
        stream.wait_event(ended)
        with torch.cuda.stream(stream):
            there.copy_(here, non_blocking=True)
            here.copy_(there, non_blocking=True)
            there.add_(1)
    MEANWHILE[meanwhile]()
    torch.cuda.synchronize()
    machine.waits.tell()
    torch.cuda.synchronize()
    assert machine.late() == Late("direct", 0), machine.late()
    assert not machine.waits.under_way()
    print("stopped", flush=True)


def sleep() -> None:
    """Be elsewhere; and the kernels wait as long as they may."""
    ended = torch.cuda.current_stream().record_event()
    time.sleep(SHORT)
    assert not ended.query()


def capture() -> None:
    """Capture a graph, which no call of another thread may break."""
    graph, held = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode="global")
        held.add_(1)
        time.sleep(SHORT)
        held.add_(1)
        graph.capture_end()


def load() -> None:
    """Launch a kernel for the first time, which loads it."""
    torch.ones(8, device="cuda").erfinv_()


def free() -> None:
    """Give memory back to the driver."""
    torch.empty(1 << 26, device="cuda")
    torch.cuda.empty_cache()


MEANWHILE: dict[str, Callable[[], None]] = {
    "sleep": sleep,
    "capture": capture,
    "load": load,
    "free": free,
}


if __name__ == "__main__":
    main()
