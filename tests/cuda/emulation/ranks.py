"""Ranks as threads of one process, whose kernels are those of `library.emulated`.

`CudaNode` and the checks of dense_run.py are what runs; what they ask of GPUs is answered here.
"""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from benchmarks import moe_cases
from fuscoc_runtime import reference
from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.demo import generate
from fuscoc_runtime.engine.node import cuda, nvlink, pieces
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from tests.cuda import (
    checks,
    dense_mistakes,
    dense_node,
    dense_run,
    edges,
    node_run,
    short_run,
)
from tests.cuda.emulation.library import emulated
from tests.engine.lent_memory import Results

NUM_SMS = 2
PATIENCE = 600.0
ALIGNMENT = 1024

_own = threading.local()  # of a rank: its number, and its launches that have not ended


class World:
    """What torch.distributed is to the ranks."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks, self.group = num_ranks, SimpleNamespace(WORLD=self)
        self._meeting, self._said = threading.Barrier(num_ranks, timeout=PATIENCE), {}

    def get_rank(self, group: object = None) -> int:
        rank: int = _own.rank
        return rank

    def get_world_size(self, group: object = None) -> int:
        return self.num_ranks

    def barrier(self, group: object = None) -> None:
        self._meeting.wait()

    def all_gather_object(self, everyone: list[Any], said: Any, group: object = None) -> None:
        self._said[_own.rank] = said
        self.barrier()
        everyone[:] = [self._said[rank] for rank in range(self.num_ranks)]
        self.barrier()

    def all_gather(
        self, everyone: list[torch.Tensor], own: torch.Tensor, group: object = None
    ) -> None:
        said: list[Any] = []
        self.all_gather_object(said, own)
        for to, theirs in zip(everyone, said, strict=True):
            to.copy_(theirs)
        self.barrier()

    def run(self, work: Callable[[], list[str]]) -> list[str]:
        """What is wrong on any rank."""
        wrong, errors = list[str](), list[BaseException]()

        def on_rank(rank: int) -> None:
            _own.rank, _own.launches = rank, []
            try:
                wrong.extend(f"rank {rank}: {each}" for each in work())
            except BaseException as error:
                errors.append(error)
                self._meeting.abort()

        threads = [threading.Thread(target=on_rank, args=(r,)) for r in range(self.num_ranks)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return wrong


class Once:
    """Functions of a module whose results ranks share, as they change none: each is computed by
    the rank that asks first, and other ones that pass the same get what it got."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._lock = module, threading.Lock()
        self._known: list[tuple[Any, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._module, name)

        def call(shuffle: ShuffleSpec, *arguments: Any) -> Any:
            asked = (name, shuffle.declared, *arguments)
            with self._lock:
                for before, said in self._known:
                    if _are_same(asked, before):
                        return said
                self._known.append((asked, said := function(shuffle, *arguments)))
                return said

        return call


def _are_same(one: Any, other: Any) -> bool:
    """Whether arguments are alike, to the last bit."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, RankData):
        return _are_same(vars(one), vars(other))
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(*(each.flatten().view(torch.uint8) for each in (one, other)))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return bool(one == other)


class Kernel:
    """A kernel of a library; as on a stream, one begins when the one before has ended, or early."""

    def __init__(self, library: ctypes.CDLL, name: str, threads: int, shared_bytes: int) -> None:
        self._body = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        self._library, self._cta = library, (threads, shared_bytes)
        self._waits = name.endswith("_combine")  # for all that the one before does
        self.shared_bytes = shared_bytes

    def launch(
        self,
        num_ctas: int,
        arguments: ctypes.Structure,
        stream: int,
        cluster: int = 1,
        early: bool = False,
    ) -> None:
        if not early or self._waits:
            synchronize()
        call = type(arguments).from_buffer_copy(arguments)
        given = (self._body, ctypes.byref(call), num_ctas, *self._cta)
        launch = threading.Thread(target=self._library.run, args=given)
        launch.start()
        _own.launches.append((launch, call))


def synchronize(device: object = None) -> None:
    """Wait for all launches of this rank."""
    for launch, _ in _own.launches:
        launch.join()
    _own.launches.clear()


def is_busy() -> bool:
    """Whether a launch of this rank has not ended."""
    return any(launch.is_alive() for launch, _ in _own.launches)


def set_words(address: int, value: int, num_words: int, stream: int) -> None:
    synchronize()
    ctypes.memmove(address, value.to_bytes(4, "little") * num_words, 4 * num_words)


def _window_allocator(world: World, device: torch.device) -> Callable[[int], Window]:
    def allocate(nbytes: int) -> Window:
        memory = torch.zeros(nbytes + ALIGNMENT, dtype=torch.uint8)
        begin = -memory.data_ptr() % ALIGNMENT
        windows: list[torch.Tensor] = [memory] * world.num_ranks
        world.all_gather_object(windows, memory[begin : begin + nbytes])
        bases = torch.tensor([each.data_ptr() for each in windows])
        return Window(windows[world.get_rank()], bases)

    return allocate


def _results(world: World, nbytes: int) -> Results:
    return Results(_window_allocator(world, torch.device("cpu")), world.get_rank(), nbytes)


@contextmanager
def emulated_ranks(num_ranks: int, arch: int = 90, **constants: int) -> Iterator[World]:
    """Ranks whose GPUs are of compute capability ``arch`` / 10, and other ``constants`` than the
    headers'."""
    world, libraries, lock = World(num_ranks), dict[bytes, ctypes.CDLL](), threading.Lock()
    capability, kept, zeros = divmod(arch, 10), list[object](), torch.zeros

    def load(code: bytes, launches: dict[str, tuple[int, int]]) -> dict[str, Kernel]:
        with lock:
            if code not in libraries:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                libraries[code] = emulated(code.decode(), Path(folder), 10 * arch, constants)
        return {name: Kernel(libraries[code], name, *cta) for name, cta in launches.items()}

    def waiting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            synchronize()
            return method(*arguments)

        return call

    def keeping(method: Callable[..., Any]) -> Callable[..., Any]:
        """There is no stream behind which memory is freed."""

        def call(*arguments: Any) -> Any:
            kept.append((result := method(*arguments), arguments))
            return result

        return call

    def pageable(*sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return zeros(*sizes, **options)

    dense, known, made_up = dense_node.Dense, Once(reference), Once(generate)
    properties = SimpleNamespace(
        major=capability[0], minor=capability[1], multi_processor_count=NUM_SMS
    )
    with ExitStack() as stack:
        for target, changes in (
            (nvlink, {"node_allocator": _window_allocator, "load_kernels": load, "dist": world}),
            (nvlink, {"cubin": lambda text, arch: text.encode(), "set_words": set_words}),
            (pieces, {"result_memory": lambda nbytes, group, device: _results(world, nbytes)}),
            (cuda, {"dist": world}),
            *((each, {"dist": world, "reference": known}) for each in (dense_node, dense_run)),
            (dense_node, {"generate": made_up.generate}),
            *(
                (each, {"dist": world})
                for each in (checks, edges, moe_cases, node_run, short_run, dense_mistakes)
            ),
            (dense, {name: waiting(getattr(dense, name)) for name in ("wrong_rows", "troubles")}),
            (dense, {"wrong_result": waiting(dense.wrong_result)}),
            (dense, {name: keeping(getattr(dense, name)) for name in ("dispatch", "combine")}),
            (torch, {"zeros": pageable}),
            (torch.cuda, {"get_device_properties": lambda device=None: properties}),
            (torch.cuda, {"get_device_capability": lambda device=None: capability}),
            (torch.cuda, {"current_stream": lambda device=None: SimpleNamespace(cuda_stream=0)}),
            (torch.cuda, {"is_current_stream_capturing": lambda: False}),
            (torch.cuda, {"synchronize": synchronize, "_sleep": lambda cycles: None}),
        ):
            for name, value in changes.items():
                stack.enter_context(mock.patch.object(target, name, value))
        yield world
