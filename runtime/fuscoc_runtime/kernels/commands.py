"""Lists of commands that one call of C enqueues: kernels, and what the network carries meanwhile.

A list is made once. What differs from call to call are numbers in a table, of which every launch
has the places: nothing is packed for it, and nothing of Python runs between two commands. On the
CPU, where kernels are interpreted and gloo moves bytes, Python carries out the same list.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

import torch

from fuscoc_runtime.kernels import driver, nccl
from fuscoc_runtime.kernels.loader import Kernel, KernelError
from fuscoc_runtime.kernels.machine_code import NUM_SCRATCH
from fuscoc_runtime.native import COMMANDS

_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64
_NETWORK = 3
_FAILED = {1: "cuLaunchKernelEx", 2: "cuStreamWriteValue32_v2", 4: "an event"}
_CLOSED = 2


@cache
def library() -> ctypes.CDLL:
    """What carries out lists. Raises BuildError."""
    loaded = COMMANDS.load()
    loaded.fuscoc_submit.argtypes = [_ADDRESS, _ADDRESS]
    loaded.fuscoc_submit_marked.argtypes = [_ADDRESS, _ADDRESS, _ADDRESS]
    return loaded


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", _ADDRESS),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_method = _Method(b"submit_words", None, _FASTCALL, None)  # the function that is made names it


@cache
def submit_words() -> Callable[..., int]:
    """``submit_words(list, call, *words)``: write ``words``, which fit 64 bits, to the address of a
    ``call``, and hand it over with the ``list`` at that address. 0, or what has failed
    (`NativeList.failure`). The interpreter's lock is given up meanwhile. Raises BuildError."""
    _method.function = ctypes.cast(library().fuscoc_submit_words, _ADDRESS).value
    new = ctypes.PYFUNCTYPE(ctypes.py_object, _ADDRESS, _ADDRESS, _ADDRESS)
    made: Callable[..., int] = new(("PyCFunction_NewEx", ctypes.pythonapi))(
        ctypes.addressof(_method), None, None
    )
    return made


def prepare(exchanges: bool) -> None:
    """Load what carries out lists, with ``exchanges`` or without.

    Raises BuildError, and NcclError if torch's NCCL cannot be called.
    """
    library()
    native_calls(exchanges)


@dataclass(frozen=True)
class Launch:
    """A launch of ``kernel`` with as many programs as the number named ``programs`` says; with
    none it is left out. ``names``: of arguments that take another number than that of their own
    name. One that ``follows`` waits by itself for what comes before it (`sync.follow`), so that it
    may be there already when that ends."""

    kernel: Kernel
    programs: str
    names: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False

    @property
    def arguments(self) -> list[str]:
        """The names of its numbers, in the order of its parameters."""
        return [self.names.get(arg.value, arg.value) for arg in self.kernel.spec.args]

    def carry_out(self, values: Mapping[str, int]) -> None:
        """Launch it, by Python."""
        if values[self.programs] > 0:
            self.kernel.start([values[name] for name in self.arguments], values[self.programs])


class Transfer(ctypes.Structure):
    """Bytes to or from a rank."""

    _fields_ = (
        ("at", _ADDRESS),
        ("num_bytes", ctypes.c_size_t),
        ("peer", ctypes.c_int32),
        ("is_sent", ctypes.c_int32),
    )


class Communicator(ctypes.Structure):
    """One of NCCL, by address, and whether lists may post to it."""

    _fields_ = (("comm", _ADDRESS), ("state", ctypes.c_int32))

    def close(self) -> bool:
        """Let no list post to it any more, so that it can be freed; False if one is just doing so,
        which may last where a stream is full."""
        return bool(library().fuscoc_close(ctypes.byref(self)))

    @property
    def is_closed(self) -> bool:
        return bool(self.state == _CLOSED)


class Transfers(ctypes.Structure):
    """Sends and receives that are posted as one group, through a communicator of NCCL. Two words
    of the host, 32 bits each, tell the numbers of exchanges that the stream has begun and ended;
    ``number`` is the address of that of the latest, int64. Both are 0 where kernels before and
    behind it tell the host. With a ``stream`` of its own it travels beside the list, once that has
    come to it, if there is an event ``before``; ``after`` is the event of its end."""

    _fields_ = (
        ("communicator", ctypes.POINTER(Communicator)),
        ("number", _ADDRESS),
        ("words", ctypes.c_uint64),
        ("num_transfers", _COUNT),
        ("transfers", ctypes.POINTER(Transfer)),
        ("stream", _ADDRESS),
        ("before", _ADDRESS),
        ("after", _ADDRESS),
    )


@dataclass(frozen=True, eq=False)
class Exchange:
    """What is sent and received at a place in a list: on a GPU ``transfers``, on the CPU by a call.
    ``held`` keeps memory that these name; ``lane`` is the number of the communicator."""

    transfers: Transfers | None
    carry_out_now: Callable[[], None]
    held: Any
    lane: int = 0

    def carry_out(self, values: Mapping[str, int]) -> None:
        self.carry_out_now()


@dataclass(frozen=True, eq=False)
class Await:
    """What comes behind it begins when an exchange beside the list has ended, and all that travels
    with that one and was posted before."""

    exchange: Exchange

    def carry_out(self, values: Mapping[str, int]) -> None:
        """By Python each has ended when the next one begins."""


Command: TypeAlias = Launch | Exchange | Await
Numbers: TypeAlias = "ctypes.Array[ctypes.c_int64]"
"""Of a call, as C reads them: the words of a `Turn`, and behind them the numbers of a list, in the
order of its names."""


class Turn(NamedTuple):
    """The stream of a call, and events around its list, by address; there need be none: the list
    begins when the stream ``before_on`` has come as far as it is now, of which the event ``before``
    tells, and when the event ``awaited`` has been recorded; ``ended`` and ``told`` are recorded at
    its end."""

    stream: int = 0
    before_on: int = 0
    before: int = 0
    awaited: int = 0
    ended: int = 0
    told: int = 0


TURN_WORDS = len(Turn._fields)


def as_numbers(numbers: Sequence[int]) -> Numbers:
    """Numbers of a list, in the order of its names, for a turn that is not known yet."""
    return (ctypes.c_int64 * (TURN_WORDS + len(numbers)))(*Turn(), *numbers)


def carry_out(commands: Iterable[Command], values: Mapping[str, int]) -> None:
    """Carry them out one by one, by Python."""
    for command in commands:
        command.carry_out(values)


def one_by_one(commands: Iterable[Command]) -> list[Command]:
    """The same, of which none begins before all that the stream has before it has ended."""
    return [replace(each, follows=False) if isinstance(each, Launch) else each for each in commands]


class CommandList:
    """Commands for the current stream of ``device``, in order. Calls of one list take turns.

    Attributes:
        names: of the numbers that it takes.
        native: the list as C has it; None on the CPU, and where more than its calls is wanted.
    """

    def __init__(
        self, device: torch.device, commands: Sequence[Command], varied: Sequence[str] = ()
    ) -> None:
        """Names of numbers that are ``varied`` come first, those that it has no use for, too.

        Raises BuildError, and NcclError: what carries it out is missing.
        """
        self._device, self._commands = device, commands
        launches = [each for each in commands if isinstance(each, Launch)]
        taken = (name for each in launches for name in (each.programs, *each.arguments))
        self.names = tuple(dict.fromkeys((*varied, *taken)))
        self.native: NativeList | None = None
        if device.type == "cuda":
            self._calls = native_calls(any(isinstance(each, Exchange) for each in commands))
            self.native = NativeList(commands, self.names, self._calls)

    def numbers(self, values: Mapping[str, int]) -> Numbers:
        """Those that it takes, of ``values``.

        Raises:
            KernelError: one is missing.
        """
        try:
            return as_numbers([values[name] for name in self.names])
        except KeyError as missing:
            raise KernelError(f"no value for {missing}") from None

    def values(self, numbers: Numbers) -> dict[str, int]:
        """These by name."""
        return dict(zip(self.names, numbers[TURN_WORDS:], strict=True))

    def submit(self, numbers: Numbers) -> None:
        """Enqueue all of it, with the numbers of `names`, or let a graph that the stream captures
        have it. Addresses are of memory that lives until the stream has passed. On the CPU all that
        comes before has ended.

        Raises:
            NcclError: an exchange could not be posted, and nothing behind it.
            RuntimeError: the driver refuses.
        """
        if self.native is None:
            carry_out(self._commands, self.values(numbers))
            return
        numbers[0] = torch._C._cuda_getCurrentRawStream(self._device.index)
        is_captured = torch._C._cuda_isCurrentStreamCapturing()
        (self._captured if is_captured else self.native).submit(numbers)

    @cached_property
    def _captured(self) -> NativeList:
        """The list for graphs: what else is recorded in one asks for its edges by a call that knows
        no programmatic ones."""
        return NativeList(one_by_one(self._commands), self.names, self._calls)


class _Command(ctypes.Structure):
    _fields_ = (
        ("kernel", _ADDRESS),
        ("programs", _ADDRESS),
        ("arguments", _ADDRESS),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("follows", ctypes.c_uint32),
        ("exchange", ctypes.POINTER(Transfers)),
        ("awaited", _ADDRESS),
    )


class _List(ctypes.Structure):
    _fields_ = (
        ("calls", _ADDRESS),
        ("commands", _ADDRESS),
        ("count", _COUNT),
        ("numbers", _ADDRESS),
        ("num_numbers", _COUNT),
        ("status", _COUNT),
    )


class NativeCalls(ctypes.Structure):
    """Functions of the driver and of NCCL, by address."""

    _fields_ = (
        ("launch", _ADDRESS),
        ("write_word", _ADDRESS),
        ("group_start", _ADDRESS),
        ("group_end", _ADDRESS),
        ("send", _ADDRESS),
        ("receive", _ADDRESS),
        ("async_error", _ADDRESS),
        ("record", _ADDRESS),
        ("wait", _ADDRESS),
    )


@cache
def native_calls(exchanges: bool) -> NativeCalls:
    """Those that there are; NCCL's only for lists with ``exchanges``."""
    found = [driver.function("cuLaunchKernelEx"), driver.function("cuStreamWriteValue32_v2")]
    names = ("GroupStart", "GroupEnd", "Send", "Recv", "CommGetAsyncError")
    found += [nccl.function(f"nccl{name}") if exchanges else None for name in names]
    found += [driver.function("cuEventRecord"), driver.function("cuStreamWaitEvent")]
    return NativeCalls(*(each and ctypes.cast(each, _ADDRESS).value for each in found))


class NativeList:
    """A list as C has it. ``names`` are of its numbers; its kernels are loaded.

    Attributes:
        at: where it is.
    """

    def __init__(
        self, commands: Sequence[Command], names: Sequence[str], calls: NativeCalls
    ) -> None:
        self.calls = calls
        self._numbers = (ctypes.c_int64 * (len(names) + 1))()  # the last one is 0
        first, size = ctypes.addressof(self._numbers), ctypes.sizeof(ctypes.c_int64)
        places = {name: first + size * i for i, name in enumerate(names)}
        self._held: list[Any] = [commands]
        made = []
        for command in commands:
            if isinstance(command, Exchange):
                assert command.transfers is not None
                made.append(_Command(exchange=ctypes.pointer(command.transfers)))
                continue
            if isinstance(command, Await):
                assert command.exchange.transfers is not None
                none = first + size * len(names)
                made.append(_Command(programs=none, awaited=command.exchange.transfers.after))
                continue
            code = command.kernel.machine_code()
            at = [places[name] for name in command.arguments]
            at += [first + size * len(names)] * NUM_SCRATCH
            arguments = (ctypes.c_void_p * len(at))(*at)
            self._held += [code, arguments]
            made.append(
                _Command(
                    code.function,
                    places[command.programs],
                    ctypes.addressof(arguments),
                    code.threads,
                    code.shared_bytes,
                    command.follows and code.can_follow,
                )
            )
        self._commands = (_Command * len(made))(*made)
        self._list = _List(
            ctypes.addressof(calls),
            ctypes.addressof(self._commands),
            len(made),
            first,
            len(names),
        )
        self.at = ctypes.c_void_p(ctypes.addressof(self._list))

    def submit(self, numbers: Numbers) -> None:
        """With the numbers of a call. The interpreter's lock is given up: where a stream is full,
        behind kernels that wait for a lost rank, this lasts until another thread has ended these.

        Raises:
            RuntimeError: the driver refuses; NcclError, NCCL does.
        """
        if failed := self._enqueue(numbers):
            raise self.failure(failed)

    def _enqueue(self, numbers: Numbers) -> int:
        failed: int = library().fuscoc_submit(self.at, numbers)
        return failed

    def failure(self, failed: int) -> Exception:
        """What to raise where C has returned that the latest call ``failed``."""
        if failed == _NETWORK:
            return nccl.NcclError(nccl.reason(self._list.status))
        return RuntimeError(f"{_FAILED[failed]} failed with CUDA error {self._list.status}")
