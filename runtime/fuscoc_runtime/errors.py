"""Everything that can go wrong at run time, as coded, structured data.

An error carries fields, not prose; its message is written once, here. It can be sent to another
rank and be rebuilt there (``to_json``, ``from_json``): that is how all ranks raise the same error
together instead of leaving the others waiting. Codes are stable. There are more than 500
lines because one list of all errors is easier to look through than two.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class FuscoRuntimeError(RuntimeError):
    """Base of all run-time errors of fuscoc; ``text`` is the message with its fields' names."""

    code: ClassVar[str]
    text: ClassVar[str]

    @property
    def message(self) -> str:
        """The sentence for the user, without the code."""
        return self.text.format_map(vars(self))

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (to_json(self),)


@dataclass(eq=False)
class ArtifactError(FuscoRuntimeError):
    """An artifact that cannot be trusted: missing, altered or of another version.

    Compile the spec again, with the fuscoc that is installed.
    """

    code: ClassVar[str] = "FSR001"
    text: ClassVar[str] = "{path}: {problem}"
    path: str
    problem: str


@dataclass(eq=False)
class TopologyError(FuscoRuntimeError):
    """Ranks and nodes that do not fit together, or do not fit the spec."""

    code: ClassVar[str] = "FSR002"
    text: ClassVar[str] = "{problem}"
    problem: str


@dataclass(eq=False)
class InputError(FuscoRuntimeError):
    """A tensor or extent of the wrong shape, dtype, device or presence."""

    code: ClassVar[str] = "FSR003"
    text: ClassVar[str] = "`{input}` on rank {rank} {problem}"
    input: str
    rank: int
    problem: str


@dataclass(eq=False)
class NativeBuildError(FuscoRuntimeError):
    """A rank that cannot compile the native part of the planner.

    A wheel of the runtime has it compiled. From a checkout it is compiled at first use, by a C
    compiler; `fuscoc doctor` says which of both is there.
    """

    code: ClassVar[str] = "FSR004"
    text: ClassVar[str] = "rank {rank} cannot plan: {problem}"
    rank: int
    problem: str


@dataclass(eq=False)
class BackendError(FuscoRuntimeError):
    """Kernels that a shuffle needs and this job cannot run.

    ``wants`` is what needs them.
    """

    code: ClassVar[str] = "FSR005"
    text: ClassVar[str] = "`{shuffle}` wants {wants}, but {problem}"
    shuffle: str
    problem: str
    wants: str = "`backend cuda`"


@dataclass(eq=False)
class PreparationError(FuscoRuntimeError):
    """Anything else that stops a rank before the ranks start to move rows: memory, a bug."""

    code: ClassVar[str] = "FSR006"
    text: ClassVar[str] = "rank {rank} could not prepare the call: {problem}"
    rank: int
    problem: str

    @classmethod
    def of(cls, rank: int, error: BaseException) -> PreparationError:
        """Of what a library has raised."""
        return cls(rank, f"{type(error).__name__}: {error}")


@dataclass(eq=False)
class OptionError(FuscoRuntimeError):
    """An option of a run that makes no sense, or not on this machine."""

    code: ClassVar[str] = "FSR007"
    text: ClassVar[str] = "`{option}` {problem}"
    option: str
    problem: str


@dataclass(eq=False)
class ClosedError(FuscoRuntimeError):
    """A call of a shuffle, or with a routing, that is no more."""

    code: ClassVar[str] = "FSR008"
    text: ClassVar[str] = "{what} is closed, or was opened by another process"
    what: str


@dataclass(eq=False)
class IndexOutOfRangeError(FuscoRuntimeError):
    """A routing value that names no key, no rank, or nothing to look up.

    ``position`` is where in ``input`` it stands; a computed value has none, and ``input`` is the
    expression.
    """

    code: ClassVar[str] = "FSR010"
    input: str
    rank: int
    position: tuple[int, ...]
    value: int
    lowest: int
    highest: int

    @property
    def message(self) -> str:
        at = f"[{', '.join(map(str, self.position))}]" if self.position else ""
        return (
            f"`{self.input}{at}` on rank {self.rank} is {self.value}; "
            f"it must be between {self.lowest} and {self.highest}"
        )


@dataclass(eq=False)
class InexactDivisionError(FuscoRuntimeError):
    """An extent whose division leaves a remainder.

    If it is ragged, it does so at ``index = position``; otherwise both are None.
    """

    code: ClassVar[str] = "FSR011"
    rank: int
    index: str | None
    position: int | None
    dividend: str
    value: int
    divisor: int

    @property
    def message(self) -> str:
        if self.dividend == str(self.value):
            return f"{self.divisor} does not divide {self.value}, as rank {self.rank} needs it to"
        at = f" at {self.index} = {self.position}" if self.index is not None else ""
        return (
            f"`{self.dividend}` is {self.value}{at} on rank {self.rank}, "
            f"which {self.divisor} does not divide"
        )


@dataclass(eq=False)
class SlotOverlapError(FuscoRuntimeError):
    """Two segments for one slot of a dense target.

    ``first`` and ``second`` are (rank, number of the segment in its source).
    """

    code: ClassVar[str] = "FSR012"
    text: ClassVar[str] = (
        "slot {slot} on rank {rank} is written twice: by segment {first[1]} "
        "of rank {first[0]} and by segment {second[1]} of rank {second[0]}"
    )
    rank: int
    slot: int
    first: tuple[int, int]
    second: tuple[int, int]


@dataclass(eq=False)
class SlotOutOfRangeError(FuscoRuntimeError):
    """A slot beyond the end of a dense target.

    ``source`` is (rank, number of the segment in its source).
    """

    code: ClassVar[str] = "FSR013"
    text: ClassVar[str] = (
        "segment {source[1]} of rank {source[0]} goes to slot {slot} of rank "
        "{rank}, which has {length} slots"
    )
    rank: int
    slot: int
    length: int
    source: tuple[int, int]

    @property
    def message(self) -> str:
        """The sentence; -1 looks as if it dropped the segment, as it would as a rank."""
        hint = "; what drops a segment is a rank of -1" if self.slot == -1 else ""
        return super().message + hint


@dataclass(eq=False)
class CapacityError(FuscoRuntimeError):
    """More slots than a rank may hold.

    That is as many as `capacity max` of the spec says; without it there is a limit of 2^47.
    """

    code: ClassVar[str] = "FSR014"
    text: ClassVar[str] = "rank {rank} needs {num_slots} slots; the capacity is {capacity}"
    rank: int
    num_slots: int
    capacity: int


@dataclass(eq=False)
class PlacementMismatchError(FuscoRuntimeError):
    """Ranks that disagree about which rank owns a key."""

    code: ClassVar[str] = "FSR015"
    text: ClassVar[str] = "`{table}` on rank {rank} differs from rank 0's: all must be equal"
    table: str
    rank: int


@dataclass(eq=False)
class TablesDifferError(FuscoRuntimeError):
    """Ranks that a device found to disagree about which rank owns a key; nothing was moved.

    It is `PlacementMismatchError` of calls with `max_sources`.
    """

    code: ClassVar[str] = "FSR033"
    text: ClassVar[str] = (
        "`{table}` differed between ranks in {count} dispatches of rank {rank}, of which nothing "
        "was moved: it must be equal on all ranks"
    )
    table: str
    rank: int
    count: int


@dataclass(eq=False)
class ExtentMismatchError(FuscoRuntimeError):
    """Ranks that disagree about an extent by which all of them compute slots.

    ``values`` are those of rank 0, and of ``rank``, the first that gives another one.
    """

    code: ClassVar[str] = "FSR032"
    text: ClassVar[str] = (
        "`{extent}` is {values[0]} on rank 0 and {values[1]} on rank {rank}: by it all ranks "
        "compute slots of each other, so it must be the same on all"
    )
    extent: str
    rank: int
    values: tuple[int, int]


@dataclass(eq=False)
class DivisorError(FuscoRuntimeError):
    """A divisor that run-time extents make zero or negative."""

    code: ClassVar[str] = "FSR016"
    text: ClassVar[str] = "the divisor `{divisor}` is {value} on rank {rank}: it must be positive"
    rank: int
    divisor: str
    value: int


@dataclass(eq=False)
class KeyRangeError(FuscoRuntimeError):
    """Points that a device found to have no rank; they were not moved."""

    code: ClassVar[str] = "FSR017"
    text: ClassVar[str] = (
        "`{key}` is no key for {count} points of rank {rank}, which were "
        "dropped: it must be between -1 and {highest}, and its placement a rank"
    )
    rank: int
    key: str
    count: int
    highest: int
    is_distinct: bool = False

    @property
    def message(self) -> str:
        differs = ", and points of a segment must have different ones" if self.is_distinct else ""
        return super().message + differs


@dataclass(eq=False)
class NoSlotError(FuscoRuntimeError):
    """Points that a device found to be beyond the capacity; they were not moved."""

    code: ClassVar[str] = "FSR018"
    text: ClassVar[str] = (
        "{count} points of rank {rank} were dropped, for where they go all "
        "{capacity} slots are taken: load the shuffle with a larger `capacity`"
    )
    rank: int
    count: int
    capacity: int


@dataclass(eq=False)
class DestinationError(FuscoRuntimeError):
    """Points of a dense target that a device found to have no rank or slot; they were not moved.

    ``to`` and ``slot`` are the spec's expressions.
    """

    code: ClassVar[str] = "FSR019"
    text: ClassVar[str] = (
        "{count} points of rank {rank} were dropped: for these `{to}` is no rank, `{slot}` no slot "
        "of that rank, or a place that they look up does not exist"
    )
    rank: int
    to: str
    slot: str
    count: int


@dataclass(eq=False)
class HopTimeoutError(FuscoRuntimeError):
    """A wait that ran out. ``hop`` is what was waited for, ``peer`` the rank that did not come, and
    ``known`` what is known of it."""

    code: ClassVar[str] = "FSR020"
    text: ClassVar[str] = (
        "rank {rank} waited {seconds:g} s for rank {peer} in the {hop} hop: {known}"
    )
    rank: int
    hop: str
    peer: int
    seconds: float
    known: str = "is that rank alive, and did it make the same calls?"


@dataclass(eq=False)
class NetworkError(FuscoRuntimeError):
    """The communication library failed underneath."""

    code: ClassVar[str] = "FSR021"
    text: ClassVar[str] = "{operation} failed on rank {rank}: {problem}"
    rank: int
    operation: str
    problem: str


@dataclass(eq=False)
class RefusedCallError(FuscoRuntimeError):
    """Calls that this rank has joined, and a peer has refused: it raised an error instead."""

    code: ClassVar[str] = "FSR022"
    text: ClassVar[str] = (
        "rank {peer} refused {count} calls that rank {rank} had joined: they went on without "
        "its rows, and sums that needed them are NaN; see what rank {peer} says"
    )
    rank: int
    peer: int
    count: int


@dataclass(eq=False)
class OutdatedError(FuscoRuntimeError):
    """Combines that a device found to come too late, such as between replays of a graph."""

    code: ClassVar[str] = "FSR023"
    text: ClassVar[str] = (
        "{count} combines of rank {rank} came after later dispatches, replayed ones too, had "
        "taken the {what} that they needed, and their results are NaN: combine before, or load "
        "the shuffle with more `num_handles`"
    )
    rank: int
    what: str
    count: int


@dataclass(eq=False)
class SlotClashError(FuscoRuntimeError):
    """Points of a dense target that a device found to share a slot.

    The slot holds one of them or, where slots follow from pieces or rows are short, parts of
    several.
    """

    code: ClassVar[str] = "FSR024"
    text: ClassVar[str] = (
        "rank {rank} found {count} points whose slots `{slot}` gives to other points, too: every "
        "slot takes one segment, and which of them it has is open"
    )
    rank: int
    slot: str
    count: int


@dataclass(eq=False)
class ExcessError(FuscoRuntimeError):
    """Source segments that a device found to be more than there is memory for; not moved."""

    code: ClassVar[str] = "FSR025"
    text: ClassVar[str] = (
        "{count} source segments of rank {rank} were dropped, for in their calls they came behind "
        "the first {max_sources}: load the shuffle with more `max_sources`"
    )
    rank: int
    count: int
    max_sources: int


@dataclass(eq=False)
class SizesError(FuscoRuntimeError):
    """Dispatches whose ragged sizes a device found to be impossible; nothing of them was moved.

    They are negative, do not divide as the spec says, or do not add up to the cells that the call
    was given.
    """

    code: ClassVar[str] = "FSR026"
    text: ClassVar[str] = (
        "nothing was moved in {count} calls of rank {rank}, whose sizes were negative or too "
        "large, did not divide as the spec says, or did not add up to the cells of `{source}`"
    )
    rank: int
    source: str
    count: int


@dataclass(eq=False)
class PlaceRangeError(FuscoRuntimeError):
    """Rows that an ``into`` sends to places which the caller's memory does not have.

    With `max_sources`; otherwise it is `IndexOutOfRangeError`.
    """

    code: ClassVar[str] = "FSR027"
    text: ClassVar[str] = (
        "`{place}` leads out of `{argument}` for {count} rows of rank {rank}, which go nowhere"
    )
    rank: int
    argument: str
    place: str
    count: int


@dataclass(eq=False)
class PlaceOverlapError(FuscoRuntimeError):
    """Rows that an ``into`` sends to places which rows of earlier slots go to."""

    code: ClassVar[str] = "FSR028"
    text: ClassVar[str] = (
        "`{place}` is one place of `{argument}` for several rows of rank {rank}: {count} of them, "
        "those of the later slots, go nowhere"
    )
    rank: int
    argument: str
    place: str
    count: int


@dataclass(eq=False)
class SourceOverlapError(FuscoRuntimeError):
    """Two segments of a source that a way back would write to one place; neither was moved."""

    code: ClassVar[str] = "FSR029"
    text: ClassVar[str] = (
        "segments {first} and {second} of rank {rank} are the same cells of `{layout}`, from cell "
        "{cell} on: on the way back one of them would be lost"
    )
    rank: int
    layout: str
    cell: int
    first: int
    second: int


@dataclass(eq=False)
class SourceClashError(FuscoRuntimeError):
    """Segments that a device found to share cells of the source with others.

    What comes back to such cells has parts of any of them. It is `SourceOverlapError` of calls with
    `max_sources`.
    """

    code: ClassVar[str] = "FSR031"
    text: ClassVar[str] = (
        "rank {rank} found {count} segments that are cells of `{layout}` which other segments are, "
        "too: on the way back a cell takes one segment, and which of them it gets is open"
    )
    rank: int
    layout: str
    count: int


@dataclass(eq=False)
class AdapterError(FuscoRuntimeError):
    """A framework, or its use, that an adapter was not written for."""

    code: ClassVar[str] = "FSR030"
    text: ClassVar[str] = "{framework}: {problem}"
    framework: str
    problem: str


@dataclass(eq=False)
class ProtocolError(FuscoRuntimeError):
    """Ranks out of step: a bug in fuscoc, or ranks that made different calls."""

    code: ClassVar[str] = "FSR090"
    text: ClassVar[str] = "the ranks disagree: {problem}"
    problem: str


ERRORS: dict[str, type[FuscoRuntimeError]] = {
    error.code: error for error in FuscoRuntimeError.__subclasses__()
}


def to_json(error: FuscoRuntimeError) -> str:
    """The error as text, for the wire."""
    return json.dumps({"code": error.code, **asdict(error)})  # type: ignore[call-overload]


def from_json(text: str) -> FuscoRuntimeError:
    """The error that ``to_json`` wrote."""
    values = json.loads(text)
    error = ERRORS[values.pop("code")]
    return error(**{name: _tuple(value) for name, value in values.items()})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
