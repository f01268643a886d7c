"""Lists of commands: C makes the calls that Python would make one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.kernels import nccl
from fuscoc_runtime.kernels.commands import (
    Await,
    Command,
    CommandList,
    Communicator,
    Exchange,
    Launch,
    NativeCalls,
    NativeList,
    Transfer,
    Transfers,
    Turn,
    as_numbers,
)
from fuscoc_runtime.kernels.loader import KernelError
from fuscoc_runtime.kernels.machine_code import NUM_SCRATCH
from fuscoc_runtime.kernels.traced import MarkedList

NAMES = ("a", "b.x", "c", "programs")
STREAM, COMM, WORDS = 77, 0x5000, 0x6000
ADDRESS, UNSIGNED, INT, SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_size_t
TRANSFER = [ADDRESS, SIZE, INT, INT, ADDRESS, ADDRESS]
IN_PROGRESS, REFUSED = 7, 5


class Attribute(ctypes.Structure):
    """As in cuda.h, where the value is 64 bytes from an offset of 8."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("flag", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", UNSIGNED * 3),
        ("block", UNSIGNED * 3),
        ("shared_bytes", UNSIGNED),
        ("stream", ADDRESS),
        ("attributes", ctypes.POINTER(Attribute)),
        ("num_attributes", UNSIGNED),
    )


class Kernel:
    """Known by the address of its function."""

    def __init__(self, function: int, taken: list[str], started: list[Any]) -> None:
        self.spec = SimpleNamespace(args=[SimpleNamespace(value=name) for name in taken])
        self.function, self._started = function, started

    def machine_code(self) -> Any:
        sizes = {"threads": self.function % 7, "shared_bytes": 9}
        return SimpleNamespace(function=self.function, **sizes, can_follow=self.function % 2 == 0)

    def start(self, arguments: list[int], programs: int) -> None:
        self._started.append((self.function, programs, *arguments))


class Recorded:
    """A driver and an NCCL that note what they are called with; the call after ``good`` ones
    fails, and communicators say ``polls`` times that they are not ready yet. Something happens
    ``meanwhile``, before a group is ended."""

    def __init__(
        self,
        num_arguments: dict[int, int],
        good: int = 1 << 30,
        polls: int = 0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self._meanwhile = meanwhile
        self._num_arguments, self._good, self._polls = num_arguments, good, polls
        self._made = [
            self._function(self._launch, [ctypes.POINTER(Config), *[ADDRESS] * 3]),
            self._function(self._noting("word"), [ADDRESS, SIZE, ctypes.c_uint32, UNSIGNED]),
            self._function(self._noting("start"), []),
            self._function(self._noting("end"), []),
            self._function(self._noting("send"), TRANSFER),
            self._function(self._noting("receive"), TRANSFER),
            self._function(self._async_error, [ADDRESS, ADDRESS]),
            self._function(self._noting("record"), [ADDRESS, ADDRESS]),
            self._function(self._noting("wait"), [ADDRESS, ADDRESS, UNSIGNED]),
        ]
        self.calls = NativeCalls(*(ctypes.cast(each, ADDRESS).value for each in self._made))

    def _function(self, noted: Callable[..., int], types: list[Any]) -> Any:
        return ctypes.CFUNCTYPE(INT, *types)(noted)

    def _noting(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self._note((name, *arguments))

    def _note(self, said: tuple[Any, ...]) -> int:
        self.notes.append(said)
        if said == ("end",):
            self._meanwhile()
        self._good -= 1
        if self._good == -1:
            return REFUSED
        return IN_PROGRESS if self._polls > 0 and said[0] in ("send", "receive", "end") else 0

    def _launch(self, given: Any, kernel: int, arguments: int, extra: int | None) -> int:
        config = given.contents
        attributes = [config.attributes[i] for i in range(config.num_attributes)]
        assert [(each.id, each.flag) for each in attributes] in ([], [(6, 1)])
        shape = *config.grid, *config.block, config.shared_bytes, len(attributes)
        count = self._num_arguments[kernel] + NUM_SCRATCH
        places = ctypes.cast(arguments, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
        given = [places[i].contents.value for i in range(count)]
        return self._note(("launch", kernel, *shape, config.stream, *given, extra))

    def _async_error(self, comm: int, status: int) -> int:
        waits = self._polls > 0
        self._polls -= waits
        ctypes.cast(status, ctypes.POINTER(INT)).contents.value = IN_PROGRESS if waits else 0
        return 0 if waits else self._note(("error", comm))


class Told(list[Any]):
    """Sends and receives that kernels tell the host of."""


launches = st.tuples(
    st.lists(st.sampled_from(NAMES), max_size=4), st.sampled_from(NAMES), st.booleans()
)
exchanges = st.lists(
    st.tuples(st.integers(1, 1 << 40), st.integers(1, 1 << 33), st.integers(0, 999), st.booleans()),
    max_size=3,
)
told = exchanges.map(Told)
numbers = st.fixed_dictionaries(
    {name: st.integers(-(1 << 63), (1 << 63) - 1) for name in NAMES}
    | {"programs": st.integers(-1, 1 << 31)}
)


def made(
    kinds: list[Any], number: ctypes.c_int64, started: list[Any]
) -> tuple[list[Command], dict[int, int]]:
    """Commands, and how many arguments their kernels take."""
    commands: list[Any] = []
    taken: dict[int, int] = {}
    for kind in kinds:
        if isinstance(kind, tuple):
            names, programs, renames = kind
            kernel: Any = Kernel(0x1000 + len(commands), names, started)
            taken[kernel.function] = len(names)
            commands.append(Launch(kernel, programs, {"a": "c"} if renames else {}, renames))
            continue
        transfers = (Transfer * len(kind))(*(Transfer(*each) for each in kind))
        words = (0, 0) if isinstance(kind, Told) else (ctypes.addressof(number), WORDS)
        given = *words, len(kind), transfers
        communicator = ctypes.pointer(Communicator(COMM))
        commands.append(Exchange(Transfers(communicator, *given), lambda: None, None))
    return commands, taken


IN_LINE = Turn(STREAM)


def call(numbers: list[int], turn: Turn = IN_LINE) -> Any:
    """As C is given it."""
    found = as_numbers(numbers)
    found[: len(turn)] = [*turn]
    return found


def expected(kinds: list[Any], values: dict[str, int], first: int) -> list[tuple[Any, ...]]:
    """What a driver and an NCCL are called with."""
    notes: list[tuple[Any, ...]] = []
    for place, kind in enumerate(kinds):
        if isinstance(kind, tuple):
            names, programs, renames = kind
            function, grid = 0x1000 + place, values[programs]
            given = [values["c" if renames and name == "a" else name] for name in names]
            sizes = (grid, 1, 1, function % 7, 1, 1, 9, int(renames and function % 2 == 0))
            if grid > 0:
                scratch = [0] * NUM_SCRATCH
                notes.append(("launch", function, *sizes, STREAM, *given, *scratch, None))
            continue
        is_told = isinstance(kind, Told)
        first += not is_told
        notes += [("start",)] if is_told else [("word", STREAM, WORDS, first, 0), ("start",)]
        for at, num_bytes, peer, is_sent in kind:
            name = "send" if is_sent else "receive"
            notes.append((name, at, num_bytes, 1, peer, COMM, STREAM))
        notes += [("end",), ("error", COMM)]
        notes += [] if is_told else [("word", STREAM, WORDS + 4, first, 0)]
    return notes


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(launches, exchanges, told), max_size=5), numbers, numbers, st.integers(0, 3)
)
def test_c_calls_what_the_list_says(
    kinds: list[Any], values: dict[str, int], others: dict[str, int], polls: int
) -> None:
    """With numbers of its own each time, and as Python launches it."""
    grids = {kind[1] for kind in kinds if isinstance(kind, tuple)} - {"programs"}
    sane = [
        {name: number % 3 if name in grids else number for name, number in each.items()}
        for each in (values, others)
    ]
    number, started = ctypes.c_int64(40), list[Any]()
    commands, taken = made(kinds, number, started)
    driver = Recorded(taken, polls=polls)
    names = CommandList(torch.device("cpu"), commands).names
    native = NativeList(commands, names, driver.calls)
    num_exchanges = sum(type(kind) is list for kind in kinds)
    for turn, each in enumerate(sane):
        driver.notes.clear()
        native.submit(call([each[name] for name in names]))
        assert driver.notes == expected(kinds, each, 40 + turn * num_exchanges)
        started.clear()
        on_cpu = CommandList(torch.device("cpu"), commands)
        on_cpu.submit(on_cpu.numbers(each))
        launched = [note for note in driver.notes if note[0] == "launch"]
        found = [(n[1], n[2], *n[11 : 11 + taken[n[1]]]) for n in launched]
        assert [tuple(each) for each in started] == found


@pytest.mark.parametrize("good", range(9))
def test_what_fails_ends_the_list(monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    """And a group that was started is ended all the same."""
    monkeypatch.setattr(nccl, "reason", lambda status: f"NCCL says {status}")
    kinds: list[Any] = [
        (["a"], "c", False),
        [(8, 16, 1, True), (9, 16, 1, False)],
        ([], "c", False),
    ]
    values = {"a": 5, "c": 2}
    commands, taken = made(kinds, number := ctypes.c_int64(), [])
    driver, whole = Recorded(taken, good), expected(kinds, values, 0)
    native = NativeList(commands, ("c", "a"), driver.calls)
    kind = {0: "cuLaunchKernel", 1: "cuStreamWrite", 7: "cuStreamWrite", 8: "cuLaunchKernel"}
    with pytest.raises(RuntimeError, match=kind.get(good, "NCCL says 5")) as raised:
        native.submit(call([2, 5]))
    assert isinstance(raised.value, nccl.NcclError) == (good not in kind)
    failed = whole[good][0]
    behind = [("end",)] if failed in ("send", "receive") else []
    if failed not in ("launch", "word"):  # what is not posted is not waited for
        behind.append(("word", STREAM, WORDS + 4, 1, 0))
    assert driver.notes == whole[: good + 1] + behind
    assert number.value == (good > 0)


BEGUN = [
    ("record", 3, 4),
    ("wait", STREAM, 3, 0),
    ("wait", STREAM, 5, 0),
]


@pytest.mark.parametrize("good", range(7))
def test_what_a_list_awaits_and_ends(good: int) -> None:
    """What is there of a list that fails has an end, too."""
    commands, taken = made([(["a"], "a", False)], ctypes.c_int64(), [])
    driver = Recorded(taken, good)
    native = NativeList(commands, ("a",), driver.calls)
    ends = [("record", 6, STREAM), ("record", 7, STREAM)]
    whole = [*BEGUN, *expected([(["a"], "a", False)], {"a": 2}, 0), *ends]
    turn = Turn(STREAM, before_on=4, before=3, awaited=5, ended=6, told=7)
    if good == len(whole):
        native.submit(call([2], turn))
        assert driver.notes == whole
        return
    with pytest.raises(RuntimeError, match="cuLaunchKernel" if good == 3 else "an event"):
        native.submit(call([2], turn))
    assert driver.notes == whole[: good + 1] + ends[max(0, good - 3) :]


@pytest.mark.parametrize("good", range(16))
def test_exchanges_beside_a_list(monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    """The first begins when the list has come to it, the second behind the first, and a kernel
    waits for it."""
    monkeypatch.setattr(nccl, "reason", lambda status: f"NCCL says {status}")
    launch = (["a"], "c", False)
    posts = [Told([(at, 16, 1, True)]) for at in (8, 9)]
    commands, taken = made([launch, *posts, launch], ctypes.c_int64(), [])
    _, first, second, _ = commands
    assert isinstance(first, Exchange)
    assert isinstance(second, Exchange)
    assert first.transfers is not None
    assert second.transfers is not None
    for each, before, after in ((first.transfers, 21, 22), (second.transfers, 0, 23)):
        each.stream, each.before, each.after = 20, before, after
    commands.insert(3, Await(second))
    driver = Recorded(taken, good)
    native = NativeList(commands, ("c", "a"), driver.calls)
    kernels = expected([launch, *posts, launch], {"a": 5, "c": 2}, 0)
    kernels = [note for note in kernels if note[0] == "launch"]

    def posted(at: int) -> list[tuple[Any, ...]]:
        return [("start",), ("send", at, 16, 1, 1, COMM, 20), ("end",), ("error", COMM)]

    whole = [
        kernels[0],
        ("record", 21, STREAM),
        ("wait", 20, 21, 0),
        *posted(8),
        ("record", 22, 20),
        *posted(9),
        ("record", 23, 20),
        ("wait", STREAM, 23, 0),
        kernels[1],
    ]
    if good == len(whole):
        native.submit(call([2, 5]))
        assert driver.notes == whole
        return
    with pytest.raises(RuntimeError):
        native.submit(call([2, 5]))
    behind = [("end",)] if whole[good][0] == "send" else []  # a group that was started is ended
    assert driver.notes == whole[: good + 1] + behind


def beside_a_list() -> tuple[list[Command], dict[int, int], list[tuple[Any, ...]]]:
    """A kernel, what travels in the list and beside it, one that awaits that, and one without
    programs; and what a driver and an NCCL are called with, where the marks are 1000, 1001, ..."""
    kinds: list[Any] = [(["a"], "c", True), Told([(7, 5, 1, True), (7, 3, 1, False)])]
    kinds += [Told([(8, 16, 1, True)]), (["a"], "c", True), (["a"], "b.x", True)]
    commands, taken = made(kinds, ctypes.c_int64(), [])
    beside = commands[2]
    assert isinstance(beside, Exchange)
    assert beside.transfers is not None
    beside.transfers.stream, beside.transfers.before, beside.transfers.after = 20, 21, 22
    commands[2] = replace(beside, lane=1)
    commands.insert(3, Await(commands[2]))
    notes = expected(kinds, {"a": 5, "c": 2, "b.x": 0}, 0)
    first, *post = notes[:5]
    second = notes[-1]

    def alone(launch: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*launch[:9], 0, *launch[10:])  # without a programmatic edge

    whole = [
        ("record", 1000, STREAM),
        alone(first),
        ("record", 1001, STREAM),
        ("record", 1002, STREAM),
        *post,
        *notes[5:6],
        ("record", 1003, STREAM),
        ("record", 21, STREAM),
        ("wait", 20, 21, 0),
        ("record", 1004, 20),
        ("start",),
        ("send", 8, 16, 1, 1, COMM, 20),
        ("end",),
        ("error", COMM),
        ("record", 1005, 20),
        ("record", 22, 20),
        ("wait", STREAM, 22, 0),
        ("record", 1008, STREAM),
        alone(second),
        ("record", 1009, STREAM),
    ]
    return commands, taken, whole


@pytest.mark.parametrize("good", range(24))
def test_marks_around_commands(monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    """On the streams that do their work, once it may begin; of commands without work there are
    none."""
    monkeypatch.setattr(nccl, "reason", lambda status: f"NCCL says {status}")
    commands, taken, whole = beside_a_list()
    names = "a", "b.x", "c"
    driver = Recorded(taken, good)
    native = MarkedList(commands, names, driver.calls)
    native.marks[:] = [1000 + number for number in range(len(native.marks))]
    if good >= len(whole):
        native.submit(call([5, 0, 2]))
        assert driver.notes == whole
        return
    with pytest.raises(RuntimeError):
        native.submit(call([5, 0, 2]))
    behind = [("end",)] if whole[good][0] in ("send", "receive") else []
    assert driver.notes == whole[: good + 1] + behind


def test_nobody_posts_to_a_closed_communicator() -> None:
    commands, _ = made([[(8, 16, 1, True)]], number := ctypes.c_int64(), [])
    assert isinstance(commands[0], Exchange)
    assert commands[0].transfers is not None
    communicator, closing = commands[0].transfers.communicator.contents, list[bool]()
    driver = Recorded({}, meanwhile=lambda: closing.append(communicator.close()))
    native = NativeList(commands, (), driver.calls)
    native.submit(call([]))
    assert closing == [False]
    assert not communicator.is_closed
    assert communicator.close()
    assert communicator.is_closed
    assert communicator.close()
    driver.notes.clear()
    with pytest.raises(nccl.NcclError, match="aborted when a rank was lost"):
        native.submit(call([]))
    assert driver.notes == [("word", STREAM, WORDS, 2, 0), ("word", STREAM, WORDS + 4, 2, 0)]
    assert number.value == 2


def test_graphs_have_no_programmatic_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    commands, taken = made([(["a"], "c", True)], ctypes.c_int64(), [])
    driver, is_capturing = Recorded(taken), True
    on_gpu = CommandList(torch.device("cpu"), commands)
    on_gpu._calls = driver.calls
    on_gpu.native = NativeList(commands, on_gpu.names, driver.calls)
    for name, answer in (
        ("isCurrentStreamCapturing", lambda: is_capturing),
        ("getCurrentRawStream", lambda _: STREAM),
    ):
        monkeypatch.setattr(torch._C, f"_cuda_{name}", answer, raising=False)
    numbers = on_gpu.numbers({"c": 2})
    on_gpu.submit(numbers)
    is_capturing = False
    on_gpu.submit(numbers)
    [with_edge] = expected([(["a"], "c", True)], {"c": 2}, 0)
    plain = (*with_edge[:9], 0, *with_edge[10:])
    assert driver.notes == [plain, with_edge]


def test_a_number_is_missing() -> None:
    commands, _ = made([(["a", "b.x"], "c", False)], ctypes.c_int64(), [])
    with pytest.raises(KernelError, match=r"no value for 'b\.x'"):
        CommandList(torch.device("cpu"), commands).numbers({"a": 1, "c": 1})
