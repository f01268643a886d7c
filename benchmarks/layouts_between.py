"""Layouts with many segments between nodes: rails beside the general engine and torch.

    python -m benchmarks.layouts_between --compile
    torchrun --nproc-per-node 2 -m benchmarks.layouts_between --topology 2x1 --one-host

``--compile`` writes artifacts into ``build/layouts_between`` and needs no GPU. A case is moved
there and back with ``max_sources`` (rails), without (exact; static ones in memory of a fixed size,
too), by the general engine (which plans static ones once) and by torch (permute, all-to-all,
permute), in turn, and every result is compared bit by bit, in memory that was poisoned before; with
``max_sources`` the host must wait for nothing meanwhile, as torch is made to see to. Nodes and
times are as in ``embedding.py``. The bound is that of the bytes which leave a rank, at ``--wire``
GB/s: ``NCCL_MAX_P2P_NCHANNELS=4`` makes NVLink a wire of 40.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from benchmarks.embedding import captured, join, medians_ms
from benchmarks.layout_case import Case
from benchmarks.layout_parts import gathered, haloed, texts
from benchmarks.layouts import EXAMPLES, dealt, flat, given, gpu_times, pages, pictures, transposed
from benchmarks.nvlink_timing import HEAD_START_CYCLES, Barrier
from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.node.static_engine import StaticEngine
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.topology import Topology

FOLDER = Path("build/layouts_between")
TURNS = 9
ULYSSES = {"tokens": 1024, "heads": 32, "width": 128, "block": 64}
FFT = {"nx": 256, "ny": 64, "nz": 256}
REDISTRIBUTE = {"rows": 16384, "columns": 512}
BUCKETS = {"width": 1024, "buckets": 64}
GATHERED, HALOED = {"total": 16384, "width": 1024}, {"rows": 16384, "reach": 2, "width": 1024}
PICTURES, PAGES, MOVES, TEXTS = 8, 24, 16, 64
SPECS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ulysses": ("ulysses", ULYSSES),
    "redistribute": ("redistribute", REDISTRIBUTE),
    "vit": ("vit_patches", {}),
    "kv": ("kv_pages", {}),
    "fft": ("fft_transpose", FFT),
    "ragged_text": ("ragged_text", BUCKETS),
    "all_gather": ("all_gather", GATHERED),
    "halo": ("halo", HALOED),
}


def compile_all(names: list[str]) -> None:
    import fuscoc

    for name in names:
        example, constants = SPECS[name]
        fuscoc.compile(EXAMPLES / f"{example}.fsc", FOLDER / name, **constants)


def of_case(name: str, rank: int, ranks: int, device: torch.device) -> Case:
    torch.manual_seed(17 + rank)
    if name == "ragged_text":
        return texts(BUCKETS, rank, ranks, device, TEXTS)
    if name == "all_gather":
        return gathered(GATHERED, rank, ranks, device)
    if name == "halo":
        return haloed(HALOED, rank, ranks, device)
    if name == "vit":
        return pictures(rank, ranks, device, PICTURES)
    if name == "kv":
        return pages(rank, ranks, device, PAGES, MOVES)
    if name == "redistribute":
        return dealt(REDISTRIBUTE["rows"], REDISTRIBUTE["columns"], ranks, device)
    if name == "fft":
        return transposed(FFT["nz"], FFT["ny"], FFT["nx"] * 8, 1, ranks, device)
    line = ULYSSES["width"] * 2
    return transposed(ULYSSES["tokens"], ULYSSES["heads"], line, ULYSSES["block"], ranks, device)


class Way:
    """A case there and back by an opened shuffle."""

    def __init__(self, name: str, case: Case, shuffle: Shuffle) -> None:
        self._case, self.shuffle, self._x = case, shuffle, given(name, case, shuffle)
        self.returned = flat(self._x if case.returned is None else case.returned)

    def there(self) -> None:
        self.rows, self._handle = self.shuffle.dispatch(self._x, **self._case.inputs)

    def back(self) -> None:
        self.came = self.shuffle.combine(self._work, self._handle)

    def both(self) -> torch.Tensor:
        self.there()
        self.back()
        return self.came

    def compare(self, wanted: torch.Tensor) -> list[str]:
        """What differs, of three calls."""
        wrong = list[str]()
        for _ in range(3):
            if isinstance(self.shuffle.engine, NodeEngine | ExactEngine):
                for window in self.shuffle.engine.node.rows:
                    window.view(torch.uint8).fill_(0xA5)
            self.there()
            begin = self._case.begin
            if not torch.equal(flat(self.rows)[begin : begin + len(wanted)], wanted):
                wrong.append("rows differ")
            self._work = self.rows.clone()
            self.back()
            if not torch.equal(flat(self.came), self.returned):
                wrong.append("what came back differs")
            self.shuffle.check()
        return wrong

    def waits(self) -> str:
        """The first wait of the host in a dispatch and a combine, nothing if there is none."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.both()
        except RuntimeError as error:
            return str(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return ""


def measure(name: str, topology: Topology, is_one_host: bool, wire: float) -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    case = of_case(name, rank, ranks, device)
    sizes: dict[str, Any] = {"max_sources": case.max_sources, "capacity": case.capacity}
    kinds = {
        "rails": (NodeEngine, sizes, {}),
        "exact": (ExactEngine | StaticEngine, {}, {}),
        "general": (ProcessEngine, {}, {"FUSCOC_ENGINE": "general"}),
    }
    ways = {}
    for kind, (engine, options, wanted_engine) in kinds.items():
        with mock.patch.dict(os.environ, wanted_engine):
            shuffle = Shuffle(
                FOLDER / name, SPECS[name][0], topology=topology, timeout=60.0, **options
            )
        assert isinstance(shuffle.engine, engine), f"{name}, {kind}: {shuffle.engine}"
        ways[kind] = Way(name, case, shuffle)
    wanted = case.there(case.source)
    wrong = [
        f"{name}, {kind}: {each}"
        for kind, way in ways.items()
        for each in way.compare(flat(wanted))
    ]
    if waits := ways["rails"].waits():
        wrong.append(f"{name}: the host waits: {waits}")
    back = case.back
    assert back is not None
    bound = case.num_remote / wire / 1e3
    by_torch: dict[str, Callable[[], object]] = {
        "there": lambda: case.there(case.source),
        "back": lambda: back(wanted),
        "both": lambda: back(case.there(case.source)),
    }
    for direction, torch_way in by_torch.items():
        calls: dict[str, Callable[[], object]] = {"torch": torch_way}
        calls |= {kind: getattr(way, direction) for kind, way in ways.items()}
        graph = None
        if direction == "both" and is_one_host:
            graph, came = captured(ways["rails"].both)
            calls["rails, a graph"] = graph.replay
        host = medians_ms(calls, ranks)
        gpu = gpu_times(calls, TURNS, Barrier(device), HEAD_START_CYCLES)
        if rank == 0:
            cells = [f"{kind} {gpu[kind]:.0f} / {host[kind] * 1e3:.0f}" for kind in calls]
            least = bound * (1 + (direction == "both"))
            print(f"{name} {direction}: bound {least:.0f}; {', '.join(cells)}", flush=True)
        if graph is not None:
            came.zero_()
            graph.replay()
            if not torch.equal(flat(came), ways["rails"].returned):
                wrong.append(f"{name}: what a replay brings back differs")
            graph.reset()
    for way in ways.values():
        way.shuffle.check()
        way.shuffle.close()
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cases", nargs="+", default=list(SPECS), choices=list(SPECS))
    parser.add_argument("--topology", type=Topology.parse, help="by default as NCCL has hosts")
    parser.add_argument("--one-host", action="store_true", help="all nodes are of one")
    parser.add_argument("--wire", type=float, default=40.0, help="GB/s")
    options = parser.parse_args()
    if options.compile:
        compile_all(options.cases)
        return
    join(options.topology, options.one_host)
    if dist.get_rank() == 0:
        print(f"{torch.cuda.get_device_name()}: us of the GPU / of the host's clock", flush=True)
    wrong = []
    for name in options.cases:
        wrong += measure(name, options.topology, options.one_host, options.wire)
        torch.cuda.empty_cache()
    dist.destroy_process_group()
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
