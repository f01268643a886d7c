"""Kernels that wait on all SMs of a GPU, for a signal that nobody sends, until a thread stops them.

    python tests/faults/gpu_stop.py ARTIFACT sleep|item|capture|load|free

Started by `test_gpu.py`, which ends it if it hangs; it says before where it does. Behind the
kernels lies work of more streams than a GPU has queues, copies among it, that must not keep the
stop from them; nor must what the program does meanwhile, such as a call of CUDA that waits for all
kernels.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable

import torch

from fuscoc_runtime.comm.group import alone
from fuscoc_runtime.comm.watch import watch
from fuscoc_runtime.comm.windows import private_window
from fuscoc_runtime.engine.machine import Late, Machine
from fuscoc_runtime.engine.steps import launch_empty
from fuscoc_runtime.engine.waits import Patience
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology
from tests.engine.lockstep import launches_by_list

TIMEOUT, SHORT, LONGEST = 3.0, 1.5, 30.0
NUM_STREAMS = 40
PROGRAMS_PER_SM = 64


def main() -> None:
    path, kind = sys.argv[1:]
    device, topology = torch.device("cuda", 0), Topology(1, 1)
    torch.cuda.set_device(device)
    artifact = load_artifact(path)
    spec = artifact.shuffle(None)
    num_programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
    machine = Machine(artifact, spec, topology, 0, device, num_programs)
    steps, window = launches_by_list(spec), private_window(256, device, 0)
    send, wait = steps["direct"], steps["local"]
    streams = [torch.cuda.Stream(device) for _ in range(NUM_STREAMS)]
    here = torch.zeros(1 << 20, pin_memory=True)
    there = torch.zeros(1 << 20, device=device)

    def launch() -> None:
        """A kernel that waits, and much behind it."""
        launch_empty(machine, wait, window, num_programs)
        ended = torch.cuda.current_stream().record_event()
        for stream in streams:
            stream.wait_event(ended)
            with torch.cuda.stream(stream):
                there.copy_(here, non_blocking=True)
                here.copy_(there, non_blocking=True)
                there.add_(1)

    # Once when nothing is waited for: all that is needed is loaded then.
    meanwhile = MEANWHILE[kind]()
    launch_empty(machine, send, window, num_programs)
    launch()
    machine.waits.tell()
    torch.cuda.synchronize()
    assert machine.late() is None
    assert not machine.waits.under_way(), "what has come is not waited for"

    patience = Patience(machine.waits, alone(topology, device, TIMEOUT))
    watch(patience)
    assert send.signal is not None
    machine.signalled(send.signal)  # a launch of a peer that never is
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    launch()
    meanwhile()
    torch.cuda.synchronize()
    machine.waits.tell()
    torch.cuda.synchronize()
    assert machine.late() == Late("direct", 0), machine.late()
    assert not machine.waits.under_way()
    print("stopped", flush=True)


def sleep() -> Callable[[], object]:
    """Be elsewhere; and the kernels wait as long as they may."""

    def meanwhile() -> None:
        ended = torch.cuda.current_stream().record_event()
        time.sleep(SHORT)
        assert not ended.query()

    return meanwhile


def item() -> Callable[[], object]:
    """Ask for a number that comes after them."""
    asked = torch.zeros(1, device="cuda")
    asked.item()
    return asked.item


def capture() -> Callable[[], object]:
    """Capture a graph, which no call of another thread may break."""
    held, stream = torch.zeros(1, device="cuda"), torch.cuda.Stream()

    def captured(seconds: float) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="global")
            held.add_(1)
            time.sleep(seconds)
            held.add_(1)
            graph.capture_end()

    captured(0)
    return lambda: captured(TIMEOUT + SHORT)


def load() -> Callable[[], object]:
    """Launch a kernel for the first time, which loads it."""
    held = torch.ones(8, device="cuda")
    return held.erfinv_


def free() -> Callable[[], object]:
    """Give memory back to the driver."""
    held = [torch.empty(1 << 26, device="cuda")]

    def meanwhile() -> None:
        held.clear()
        torch.cuda.empty_cache()

    return meanwhile


MEANWHILE: dict[str, Callable[[], Callable[[], object]]] = {
    "sleep": sleep,
    "item": item,
    "capture": capture,
    "load": load,
    "free": free,
}


if __name__ == "__main__":
    main()
