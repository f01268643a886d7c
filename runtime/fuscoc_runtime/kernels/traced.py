"""Kernels and lists of commands that tell a tracer when they run; without one nothing of this is
there, and calls take the way that they always take.

Each has events around it on its stream, so none of them begins before the one in front of it has
ended, as kernels may otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fuscoc_runtime.kernels.commands import (
    Await,
    Command,
    CommandList,
    Exchange,
    Launch,
    NativeCalls,
    NativeList,
    Numbers,
    library,
    one_by_one,
)
from fuscoc_runtime.kernels.cuda import CudaKernel
from fuscoc_runtime.kernels.loader import Kernel
from fuscoc_runtime.kernels.trace import Tracer


def traced(kernel: Kernel, tracer: Tracer | None) -> Kernel:
    """A kernel whose launches are spans, if there is a tracer."""
    if tracer is None:
        return kernel
    given = kernel.spec, kernel.function, kernel.interpreted, kernel.binaries
    return _TracedKernel(*given, tracer=tracer)


def traced_cuda(
    kernels: Mapping[str, CudaKernel], tracer: Tracer | None
) -> Mapping[str, CudaKernel]:
    """The same of CUDA's, by name."""
    if tracer is None:
        return kernels
    return {
        name: _TracedCudaKernel(each.function, each.threads, each.shared_bytes, name, tracer)
        for name, each in kernels.items()
    }


def command_list(
    device: torch.device,
    commands: Sequence[Command],
    varied: Sequence[str],
    tracer: Tracer | None,
) -> CommandList:
    """A list whose kernels and exchanges are spans, if there is a tracer. Its kernels are
    `traced`."""
    if tracer is None:
        return CommandList(device, commands, varied)
    return TracedList(device, commands, varied, tracer)


@dataclass(frozen=True, eq=False)
class _TracedKernel(Kernel):
    tracer: Tracer = field(kw_only=True)

    def start(self, arguments: Sequence[int], num_programs: int) -> None:
        with self.tracer.launch(self.spec.name):
            super().start(arguments, num_programs)


@dataclass(frozen=True, eq=False)
class _TracedCudaKernel(CudaKernel):
    name: str
    tracer: Tracer

    def launch(
        self,
        num_ctas: int,
        arguments: ctypes.Structure,
        stream: int,
        cluster: int = 1,
        early: bool = False,
    ) -> None:
        with self.tracer.launch(self.name, stream):
            super().launch(num_ctas, arguments, stream, cluster)


class MarkedList(NativeList):
    """A list as C has it, with two events for every command.

    Attributes:
        marks: those of the next call, by address; of commands without work they are not looked at.
    """

    def __init__(
        self, commands: Sequence[Command], names: Sequence[str], calls: NativeCalls
    ) -> None:
        super().__init__(one_by_one(commands), names, calls)
        self.marks = (ctypes.c_void_p * (2 * len(commands)))()

    def _enqueue(self, numbers: Numbers) -> int:
        failed: int = library().fuscoc_submit_marked(self.at, numbers, self.marks)
        return failed


class TracedList(CommandList):
    """A list whose kernels and exchanges are spans of a tracer."""

    def __init__(
        self,
        device: torch.device,
        commands: Sequence[Command],
        varied: Sequence[str],
        tracer: Tracer,
    ) -> None:
        super().__init__(device, commands, varied)
        self._tracer = tracer
        self._marked: MarkedList | None = None
        if self.native is not None:
            self._marked = MarkedList(commands, self.names, self._calls)
            self.native = None  # no call is to go past the tracer
        places = [i for i, each in enumerate(commands) if isinstance(each, Exchange)]
        self._exchanges = {place: f"exchange {i}" for i, place in enumerate(places)}  # their names

    def submit(self, numbers: Numbers) -> None:
        """As without a tracer, but on the stream of a turn, if there is one, which captures
        nothing."""
        if self._marked is None:
            self._interpret(self.values(numbers))
            return
        if not numbers[0]:
            numbers[0] = self._tracer.current_stream()
            if self._tracer.is_captured():
                self._tracer.note_capture()
                self._captured.submit(numbers)
                return
        with self._tracer.host("enqueue"):
            self._enqueue(self._marked, numbers)

    def _interpret(self, values: Mapping[str, int]) -> None:
        """One by one, by Python. Kernels tell the tracer by themselves."""
        for place, command in enumerate(self._commands):
            if isinstance(command, Exchange):
                with self._tracer.span(_lane(command), self._exchanges[place]):
                    command.carry_out(values)
            else:
                command.carry_out(values)

    def _enqueue(self, marked: MarkedList, numbers: Numbers) -> None:
        tracer, values, stream = self._tracer, self.values(numbers), numbers[0]
        works = [
            (place, command)
            for place, command in enumerate(self._commands)
            if not isinstance(command, Await)
            and (isinstance(command, Exchange) or values[command.programs] > 0)
        ]
        events = [(tracer.marks.new(), tracer.marks.new()) for _ in works]
        for (place, _), pair in zip(works, events, strict=True):
            marked.marks[2 * place : 2 * place + 2] = [*pair]
        marked.submit(numbers)  # of what has failed nothing is told
        for (place, command), pair in zip(works, events, strict=True):
            if isinstance(command, Launch):
                tracer.add(tracer.lane_of(stream), command.kernel.spec.name, *pair)
            else:
                name, sent = self._exchanges[place], _bytes_sent(command)
                tracer.add(_lane(command), name, *pair, num_bytes=sent)


def _lane(exchange: Exchange) -> str:
    """As the lanes of the general engine's network are called."""
    return f"wire {exchange.lane}"


def _bytes_sent(exchange: Exchange) -> int:
    """By this rank."""
    assert exchange.transfers is not None
    parts = exchange.transfers.transfers[: exchange.transfers.num_transfers]
    return sum(each.num_bytes for each in parts if each.is_sent)
