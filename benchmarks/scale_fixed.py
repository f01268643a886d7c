"""What a call of fixed capacity takes of one rank of a large job; a table of `benchmarks.scale`.

One rank opens the engine and calls it; the others are faked, and so is the machine: functions of
the driver and of NCCL return at once, so no kernel runs and nothing is sent. What is timed is the
host's part until all is handed over, arguments, tables and the list of commands in C included.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch._C._distributed_c10d import HashStore

import fuscoc
from benchmarks.moe_cases import Model, spec
from fuscoc_runtime import Topology
from fuscoc_runtime.comm import rails as comm_rails
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.liveness import Liveness, this_process
from fuscoc_runtime.comm.rails import Beside, Rails
from fuscoc_runtime.comm.requests import Crossing, Window
from fuscoc_runtime.engine.node import rails, triton
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.node.repeats import Repeats
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.sizes import worst_capacity
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.kernels.commands import (
    CommandList,
    Exchange,
    Launch,
    NativeCalls,
    NativeList,
    Numbers,
)
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.native import NativeLibrary

RANKS_PER_NODE, TOKENS = 8, 16
MODEL = Model(experts=1024)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    """One size. ``posted`` are the sends and receives of a dispatch, ``rounds`` the groups in which
    they are posted; ``counts_bytes`` what a rank tells each rank of its node; ``distinct_bytes`` a
    window where keys are distinct."""

    num_ranks: int
    dispatch_seconds: float
    combine_seconds: float
    posted: int
    rounds: int
    slab_bytes: int
    counts_bytes: int
    window_bytes: int
    distinct_bytes: int


WHAT = f"""
With `max_sources` hosts neither count nor plan. They hand over kernels, and sends and receives
whose sizes never change; in rounds, where slabs are large and messages would not be small. Here
there is room for {TOKENS} tokens a rank, hidden {MODEL.hidden:,}, top-{MODEL.topk} of
{MODEL.experts:,} experts, nodes of {RANKS_PER_NODE}. The other ranks are faked,
and so are the driver and NCCL, whose functions return at once. So these are times of fuscoc's own
host, from a call whose arguments are of the forms of an earlier one until all is handed over. What
NCCL takes of a host to post is not in them, nor anything of GPUs and networks. Slabs are those of
both directions, at both ends; a window has room for the worst routing, of any keys or of distinct
ones.
""".strip()

COLUMNS: tuple[tuple[str, str, Callable[[Result], float]], ...] = (
    ("host of a dispatch, µs", ".0f", lambda each: each.dispatch_seconds * 1e6),
    ("host of a combine, µs", ".0f", lambda each: each.combine_seconds * 1e6),
    ("sends and receives of a dispatch", ",.0f", lambda each: each.posted),
    ("rounds", ",.0f", lambda each: each.rounds),
    ("counts told a rank of the node, KB", ",.1f", lambda each: each.counts_bytes / 1e3),
    ("slabs, MB", ",.1f", lambda each: each.slab_bytes / 1e6),
    ("window, MB", ",.1f", lambda each: each.window_bytes / 1e6),
    ("of distinct keys, MB", ",.1f", lambda each: each.distinct_bytes / 1e6),
)


class FakedRails(Rails):
    """A rail on which all is sent at once, and nothing arrives."""

    def command(
        self, what: Crossing, is_told: bool = False, beside: Beside | None = None, lane: int = 0
    ) -> Exchange:
        return Exchange(self._transfers(what, is_told), lambda: None, what)

    def exchange(self, what: Crossing, lane: int = 0) -> None:
        pass

    def submit(self, commands: CommandList, numbers: Numbers) -> None:
        """Calls that are looked at as a whole are not what is timed."""

    def group(self, lane: int = 0) -> Any:
        return FAKED_GROUP

    def check(self) -> None:
        pass


class FakedGroup:
    """Whose communicator is never looked at."""

    def _get_backend(self, device: torch.device) -> Any:
        return SimpleNamespace(_comm_ptr=lambda: 1)


FAKED_GROUP = FakedGroup()


NAMES = tuple(name for name, *_ in NativeCalls._fields_)
COUNTING = "static long counts[{n}];\nlong count(int at) {{ return counts[at]; }}\n"
COUNTED = "int call{at}(void) {{ counts[{at}]++; return 0; }}\n"


@cache
def faked() -> ctypes.CDLL:
    """Functions that return 0 at once, and ``count``, which says how often each was called."""
    functions = (COUNTED.format(at=at) for at in range(len(NAMES)))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "faked.c"
        source.write_text(COUNTING.format(n=len(NAMES)) + "".join(functions))
        library = NativeLibrary("faked", (source,)).load()
    library.count.restype = ctypes.c_long
    return library


def faked_calls() -> NativeCalls:
    functions = (getattr(faked(), f"call{at}") for at in range(len(NAMES)))
    return NativeCalls(*(ctypes.cast(each, ctypes.c_void_p).value for each in functions))


def counts() -> Counter[str]:
    """How often each function was called so far."""
    return Counter({name: faked().count(at) for at, name in enumerate(NAMES)})


def native(commands: CommandList) -> NativeList:
    """The list as C has it, of kernels that are loaded nowhere."""
    code = SimpleNamespace(function=1, threads=128, shared_bytes=0, can_follow=True)
    made = [
        replace(each, kernel=SimpleNamespace(spec=each.kernel.spec, machine_code=lambda: code))
        if isinstance(each, Launch)
        else each
        for each in commands._commands
    ]
    return NativeList(made, commands.names, faked_calls())


def window(nbytes: int) -> Window:
    """Memory that takes none as long as nobody writes to it."""
    local = torch.from_numpy(np.zeros(nbytes, np.uint8))
    bases = torch.full((RANKS_PER_NODE,), local.data_ptr(), dtype=torch.int64)
    return Window(local, bases)


def opened(folder: Path, num_ranks: int) -> tuple[NodeEngine, RailNode]:
    """Rank 0's engine, and its kernels."""
    topology = Topology(num_ranks // RANKS_PER_NODE, RANKS_PER_NODE)
    artifact = load_artifact(folder)
    [shuffle] = artifact.manifest.shuffles
    store = HashStore()
    members = Membership(0, topology, None, CPU, store, Liveness(store, 0, [this_process()]), 60.0)
    node = choose_triton(shuffle, topology, TOKENS)
    assert not isinstance(node, str), node
    worst = worst_capacity(shuffle, num_ranks, TOKENS)
    limits = Limits(TOKENS, worst, 1)
    with (
        patch.object(rails, "Rails", FakedRails),
        patch.object(rails, "divide_slabs", lambda *_: None),
        patch.object(triton, "allocator", lambda _: window),
        patch.object(Membership, "meet", lambda *_: [0] * num_ranks),
        patch.object(comm_rails, "network_groups", lambda _, count: [lambda: FAKED_GROUP] * count),
    ):
        kernels = RailNode(artifact, shuffle, node, members, limits, None)
    for each in (kernels._forth, kernels._back):
        each.native = native(each)
    return NodeEngine(shuffle, members, kernels, "triton"), kernels


class Opened:
    """Rank 0 of so many, to be called."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.engine, self.node = opened(folder, num_ranks)
        self._x = torch.zeros(TOKENS, MODEL.hidden, dtype=torch.bfloat16)
        self._named = {
            "topk_idx": torch.arange(TOKENS * MODEL.topk).view(TOKENS, MODEL.topk),
            "topk_weights": torch.ones(TOKENS, MODEL.topk),
        }

        repeats = Repeats.of(self.engine, Observer("one rank of many"))
        assert repeats is not None
        self._repeats = repeats
        done = self.engine.dispatch([self._x], self._named)
        self._repeats.remember_dispatch([self._x], self._named, done.handle)
        [rows] = done.rows.values()
        self.engine.combine(rows, done.handle, {})
        self._repeats.remember_combine(rows, done.handle)

    def call(self) -> tuple[float, float]:
        """Seconds of a dispatch and of a combine like those before."""
        started = time.process_time()
        found = self.dispatch()
        dispatched = time.process_time()
        combined = self.combine(*found)
        ended = time.process_time()
        assert combined is not None
        return dispatched - started, ended - dispatched

    def dispatch(self) -> Any:
        """Rows and handle."""
        found = self._repeats.dispatch([self._x], self._named, is_beside=False)
        assert found is not None
        return found

    def combine(self, rows: torch.Tensor, handle: Any) -> Any:
        """Sums."""
        return self._repeats.combine(rows, handle, is_beside=False)

    def posted(self) -> int:
        """Sends and receives of a dispatch, counted: a group a round, of which the first one brings
        points, too."""
        before = counts()
        self.dispatch()
        found, rounds = counts() - before, self.node.num_rounds
        to_each = 1 if rounds == 1 else rounds + 1
        assert found["group_start"] == found["group_end"] == rounds, found
        assert found["send"] == found["receive"] == to_each * len(self.node.rails.peers), found
        assert found["launch"] > 0, found
        return found["send"] + found["receive"]

    def result(self, seconds: Sequence[float], distinct_bytes: int) -> Result:
        num_nodes, columns = self.num_ranks // RANKS_PER_NODE, self.node._program.num_columns
        return Result(
            self.num_ranks,
            *seconds,
            posted=self.posted(),
            rounds=self.node.num_rounds,
            slab_bytes=self.node._slabs.memory.num_bytes,
            counts_bytes=num_nodes * (columns + 1) * 4,
            window_bytes=self.node.window_bytes,
            distinct_bytes=distinct_bytes,
        )


def window_of(folder: Path, num_ranks: int) -> int:
    """Bytes of a window."""
    engine, kernels = opened(folder, num_ranks)
    engine.close()
    return kernels.window_bytes


def measure_all(sizes: Sequence[int], repeats: int) -> list[Result]:
    """Sizes of several nodes, in turns: medians."""
    with tempfile.TemporaryDirectory() as folder:
        text, plain, distinct = spec(MODEL, "triton"), Path(folder, "any"), Path(folder, "distinct")
        fuscoc.compile(text, plain)
        fuscoc.compile(text.replace("packed(s)", "packed(s) distinct"), distinct)
        larger = [size for size in sizes if size > RANKS_PER_NODE]
        each = [Opened(plain, size) for size in larger]
        windows = [window_of(distinct, size) for size in larger]
    times = np.median([[one.call() for one in each] for _ in range(repeats)], axis=0)
    results = [
        one.result(seconds, num_bytes)
        for one, seconds, num_bytes in zip(each, times.tolist(), windows, strict=True)
    ]
    for one in each:
        one.engine.close()
    return results
