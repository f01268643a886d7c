"""All that the gate knows of manifests and of the engine: what a module becomes, and a run's log.

A run is one dispatch and one combine of all ranks in lockstep. Its log has first for how many slots
memory of a fixed size would have room, which no run here has. Then it has, in order, every list
that a step is given (name, columns, contents), every launch (rank, kernel, grid, warps, arguments
by name; an address is a buffer, its size and an offset), every signal and every stage of the
network hop (who, to whom, how many bytes). Kernels that move rows are logged, not executed: no list
depends on what is in a row, and a flipped program may not touch memory that is not its own. For the
same reason a run ends where it departs from the log that it is compared with.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fuscoc.artifact import MANIFEST, SUMS, artifact_files, with_sums, write_artifact
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.sizes import worst_capacity
from fuscoc_runtime.engine.steps import PreparedStep
from fuscoc_runtime.face import into
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.engine.lockstep import inputs_of
from tests.gate.examples import Example

Entry = tuple[Any, ...]
Data = tuple[ShuffleSpec, list[RankData]]
"""What all programs of an example run on: the same, whatever their manifests say."""
SEED = 0
MOST_SOURCES = 6  # of a rank, with memory of a fixed size


@dataclass(frozen=True)
class Program:
    """What a module at L3 becomes: kernels' files, and the manifest without digests. ``warps`` are
    those of the kernels of one node, which no run here launches."""

    kernels: dict[str, str]
    manifest: str
    warps: dict[str, int]


def program(example: Example, module: Any, interned: dict[str, str]) -> Program:
    """The artifact's files; equal texts are kept once, in ``interned``."""
    item = example.compiled(module)
    files = {
        name: interned.setdefault(text, text)
        for name, content in artifact_files(item.checked.source_file, [item]).items()
        if (text := content.decode())
    }
    del files[SUMS]
    manifest = json.loads(files.pop(MANIFEST))
    nodes = [each["node"]["kernels"] for each in manifest["shuffles"] if each["node"]]
    fused = {name for kernels in nodes for name in kernels.values()}
    warps = {each["name"]: each["num_warps"] for each in manifest["kernels"]}
    return Program(
        files,
        json.dumps(manifest, sort_keys=True),
        {name: count for name, count in warps.items() if name in fused},
    )


class Departed(Exception):
    """A run does something else than the one that it is compared with."""


@dataclass
class Log:
    """What happened, compared with what is ``expected`` as it happens."""

    expected: list[Entry] | None = None
    entries: list[Entry] = field(default_factory=list)
    departed: bool = False
    known: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)

    def add(self, *entry: Any) -> None:
        """Log something that is about to happen; it must not if this raises."""
        at = len(self.entries)
        self.entries.append(entry)
        if self.expected is not None and self.expected[at : at + 1] != [entry]:
            self.departed = True
        if self.departed:
            raise Departed(entry)

    def knows(self, rank: int, buffer: str, begin: int, num_bytes: int) -> None:
        """Where a buffer of a rank lies."""
        self.known[rank, buffer] = begin, num_bytes

    def place(self, rank: int, buffer: str, at: int) -> Entry:
        """An address in a buffer, as it is in every run."""
        begin, num_bytes = self.known.get((rank, buffer), (0, 0))
        return buffer, num_bytes, at - begin


class Logs:
    """Runs of one example's programs, each made once."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self._logs: dict[tuple[str, str], list[Entry]] = {}
        self._found: dict[tuple[str, str], bool] = {}
        self._data: dict[str, Data] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="fuscoc-gate-")

    def differ(self, one: Program, other: Program) -> bool:
        """Whether the runs of two programs with equal kernels differ on any topology."""
        key = one.manifest, other.manifest
        if key not in self._found:
            self._found[key] = any(
                self.run(other, topology, self.of(one, topology)).departed
                for topology in self._example.topologies
            )
        return self._found[key]

    def of(self, program: Program, topology: str) -> list[Entry]:
        """The log of a program that runs to its end."""
        key = program.manifest, topology
        if key not in self._logs:
            self._logs[key] = self.run(program, topology).entries
        return self._logs[key]

    def run(self, program: Program, topology: str, expected: list[Entry] | None = None) -> Log:
        """Run a program until it ends, fails or departs from what is expected."""
        log = Log(expected)
        try:
            with _watched(log):
                shuffle = self._open(program, topology)
                if topology not in self._data:
                    self._data[topology] = _data(shuffle, self._example)
                _round_trip(shuffle, self._data[topology], log)
        except Exception as error:
            if expected is None:
                raise
            log.departed |= not isinstance(error, Departed)
        log.departed |= expected is not None and len(log.entries) != len(expected)
        return log

    def _open(self, program: Program, topology: str) -> LockstepShuffle:
        files = program.kernels | {MANIFEST: program.manifest}
        encoded = {name: text.encode() for name, text in files.items()}
        folder = write_artifact(Path(self._folder.name) / "artifact", with_sums(encoded))
        return LockstepShuffle(load_artifact(folder), topology=Topology.parse(topology))


def _data(shuffle: LockstepShuffle, example: Example) -> Data:
    return shuffle.spec, generate(shuffle.spec, shuffle.topology, example.tokens, SEED)


def _round_trip(shuffle: LockstepShuffle, data: Data, log: Log) -> None:
    """Dispatch made-up data and combine rows of zeros."""
    spec, ranks = data
    if isinstance(shuffle.spec.program.target, PackedSlots):
        log.add("room", worst_capacity(shuffle.spec, shuffle.topology.num_ranks, MOST_SOURCES))
    dispatched = shuffle.dispatch(
        [list(data.source.values()) for data in ranks],
        [inputs_of(spec, data, weights=False) for data in ranks],
    )
    back = spec.reply or spec
    if back.program.combine is None:
        return
    rows = [
        {
            each.name: torch.zeros(
                done.handle.num_slots, *each.shape, dtype=TORCH_DTYPES[each.dtype]
            )
            for each in back.declared.source_fields
        }
        for done in dispatched
    ]
    weights = [inputs_of(back, data, weights=True) for data in ranks]
    shuffle.combine(rows, [done.handle for done in dispatched], weights)


@contextmanager
def _watched(log: Log) -> Iterator[None]:
    """Tell ``log`` what the engine does."""
    prepare, launch = PreparedStep.__init__, Machine.launch
    accumulate = into.accumulate_rows
    signalled, cross = Machine.signalled, LockstepShuffle._cross

    def prepared(self: Any, machine: Machine, step: Any, columns: Any, buffers: Any):
        rank = machine.context.rank
        columns = {name: each.contiguous() for name, each in columns.items()}
        log.add("list", rank, step.list, {name: each.tolist() for name, each in columns.items()})
        for name, each in columns.items():
            log.knows(rank, f"{step.kernel}.{name}", address(each), each.nbytes)
        for name, each in buffers.tensors.items():
            log.knows(rank, name, address(each), each.nbytes)
        for name, each in buffers.windows.items():
            log.knows(rank, f"peers.{name}", address(each.peer_bases), each.local.nbytes)
        prepare(self, machine, step, columns, buffers)

    def launched(self: Machine, kernel: str, arguments: Sequence[int], num_programs: int) -> None:
        spec, rank = self.kernel(kernel).spec, self.context.rank
        places = self.places.get(kernel)
        bound = {}
        if places is not None:
            bound = {at: name for name, at in places.bound}
            bound |= {at: f"{kernel}.{name}" for name, at in places.columns}
        given = [
            (
                arg.name,
                arg.value,
                log.place(rank, bound[at], value)
                if at in bound
                else value
                if arg.kind == "scalar"
                else "address",
            )
            for at, (arg, value) in enumerate(zip(spec.args, arguments, strict=True))
        ]
        log.add("launch", rank, kernel, num_programs, spec.num_warps, given)
        if places is None:
            launch(self, kernel, arguments, num_programs)

    def signals(self: Machine, slot: int) -> None:
        log.add("signal", self.context.rank, slot)
        signalled(self, slot)

    def crosses(self: LockstepShuffle, requests: Any) -> Any:
        for rank, request in enumerate(requests):
            sides = [
                [(rows.peer, [each.nbytes for each in rows.fields]) for rows in side]
                for side in (request.sends, request.receives)
            ]
            log.add("cross", rank, request.stage, *sides)
        return cross(self, requests)

    def adds(rows: torch.Tensor, index: torch.Tensor, memory: torch.Tensor) -> None:
        log.add("add", index.tolist())
        accumulate(rows, index, memory)

    watched = (
        (PreparedStep, "__init__", prepared),
        (Machine, "launch", launched),
        (Machine, "signalled", signals),
        (LockstepShuffle, "_cross", crosses),
        (into, "accumulate_rows", adds),
    )
    with ExitStack() as stack:
        for owner, name, method in watched:
            stack.enter_context(patch.object(owner, name, method))
        yield
