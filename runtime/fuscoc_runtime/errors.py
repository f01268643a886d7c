"""Everything that can go wrong at run time, as coded, structured data.

An error carries fields, not prose; its message is written once, here. It can be sent to another
rank and be rebuilt there (``to_json``, ``from_json``): that is how all ranks raise the same error
together instead of leaving the others waiting. Codes are stable.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class FuscoRuntimeError(RuntimeError):
    """Base of all run-time errors of fuscoc."""

    code: ClassVar[str]

    @property
    def message(self) -> str:
        """The sentence for the user, without the code."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (to_json(self),)


@dataclass(eq=False)
class ArtifactError(FuscoRuntimeError):
    """An artifact that cannot be trusted: missing, altered or of another version."""

    code: ClassVar[str] = "FSR001"
    path: str
    problem: str

    @property
    def message(self) -> str:
        return f"{self.path}: {self.problem}"


@dataclass(eq=False)
class TopologyError(FuscoRuntimeError):
    """Ranks and nodes that do not fit together, or do not fit the spec."""

    code: ClassVar[str] = "FSR002"
    problem: str

    @property
    def message(self) -> str:
        return self.problem


@dataclass(eq=False)
class InputError(FuscoRuntimeError):
    """A tensor or extent of the wrong shape, dtype, device or presence."""

    code: ClassVar[str] = "FSR003"
    input: str
    rank: int
    problem: str

    @property
    def message(self) -> str:
        return f"`{self.input}` on rank {self.rank} {self.problem}"


@dataclass(eq=False)
class NativeBuildError(FuscoRuntimeError):
    """A rank that cannot compile the native part of the planner."""

    code: ClassVar[str] = "FSR004"
    rank: int
    problem: str

    @property
    def message(self) -> str:
        return f"rank {self.rank} cannot plan: {self.problem}"


@dataclass(eq=False)
class PreparationError(FuscoRuntimeError):
    """Anything else that stops a rank before the ranks start to move rows: memory, a bug."""

    code: ClassVar[str] = "FSR006"
    rank: int
    problem: str

    @property
    def message(self) -> str:
        return f"rank {self.rank} could not prepare the call: {self.problem}"


@dataclass(eq=False)
class OptionError(FuscoRuntimeError):
    """An option of a run that makes no sense, or not on this machine."""

    code: ClassVar[str] = "FSR007"
    option: str
    problem: str

    @property
    def message(self) -> str:
        return f"`{self.option}` {self.problem}"


@dataclass(eq=False)
class ClosedError(FuscoRuntimeError):
    """A call of a shuffle, or with a routing, that is no more."""

    code: ClassVar[str] = "FSR008"
    what: str

    @property
    def message(self) -> str:
        return f"{self.what} is closed, or was opened by another process"


@dataclass(eq=False)
class IndexOutOfRangeError(FuscoRuntimeError):
    """A routing value that names no key or rank.

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
    """An extent whose division leaves a remainder; if it is ragged, at ``index = position``."""

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
    """Two segments for one slot of a dense target. A source is (rank, source id)."""

    code: ClassVar[str] = "FSR012"
    rank: int
    slot: int
    first: tuple[int, int]
    second: tuple[int, int]

    @property
    def message(self) -> str:
        return (
            f"slot {self.slot} on rank {self.rank} is written twice: by segment {self.first[1]} "
            f"of rank {self.first[0]} and by segment {self.second[1]} of rank {self.second[0]}"
        )


@dataclass(eq=False)
class SlotOutOfRangeError(FuscoRuntimeError):
    """A slot beyond the end of a dense target."""

    code: ClassVar[str] = "FSR013"
    rank: int
    slot: int
    length: int
    source: tuple[int, int]

    @property
    def message(self) -> str:
        return (
            f"segment {self.source[1]} of rank {self.source[0]} goes to slot {self.slot} of rank "
            f"{self.rank}, which has {self.length} slots"
        )


@dataclass(eq=False)
class CapacityError(FuscoRuntimeError):
    """More slots than a rank may hold."""

    code: ClassVar[str] = "FSR014"
    rank: int
    num_slots: int
    capacity: int

    @property
    def message(self) -> str:
        return f"rank {self.rank} needs {self.num_slots} slots; the capacity is {self.capacity}"


@dataclass(eq=False)
class PlacementMismatchError(FuscoRuntimeError):
    """Ranks that disagree about which rank owns a key."""

    code: ClassVar[str] = "FSR015"
    table: str
    rank: int

    @property
    def message(self) -> str:
        return f"`{self.table}` on rank {self.rank} differs from rank 0's: all must be equal"


@dataclass(eq=False)
class DivisorError(FuscoRuntimeError):
    """A divisor that run-time extents make zero or negative."""

    code: ClassVar[str] = "FSR016"
    rank: int
    divisor: str
    value: int

    @property
    def message(self) -> str:
        return (
            f"the divisor `{self.divisor}` is {self.value} on rank {self.rank}: it must be positive"
        )


@dataclass(eq=False)
class KeyRangeError(FuscoRuntimeError):
    """Points that a device found to have no rank; they were not moved."""

    code: ClassVar[str] = "FSR017"
    rank: int
    key: str
    count: int
    highest: int

    @property
    def message(self) -> str:
        return (
            f"`{self.key}` is no key for {self.count} points of rank {self.rank}, which were "
            f"dropped: it must be between -1 and {self.highest}, and its placement a rank"
        )


@dataclass(eq=False)
class NoSlotError(FuscoRuntimeError):
    """Points that a device found to be beyond the capacity; they were not moved."""

    code: ClassVar[str] = "FSR018"
    rank: int
    count: int
    capacity: int

    @property
    def message(self) -> str:
        return (
            f"{self.count} points of rank {self.rank} were dropped, for where they go all "
            f"{self.capacity} slots are taken: load the shuffle with a larger `capacity`"
        )


@dataclass(eq=False)
class BackendError(FuscoRuntimeError):
    """Kernels that the spec demands and this job cannot run; ``wants`` says what for."""

    code: ClassVar[str] = "FSR005"
    shuffle: str
    problem: str
    wants: str = "`backend cuda`"

    @property
    def message(self) -> str:
        return f"`{self.shuffle}` wants {self.wants}, but {self.problem}"


@dataclass(eq=False)
class HopTimeoutError(FuscoRuntimeError):
    """A wait that ran out. ``hop`` is what was waited for, ``peer`` the rank that did not come."""

    code: ClassVar[str] = "FSR020"
    rank: int
    hop: str
    peer: int
    seconds: float

    @property
    def message(self) -> str:
        return (
            f"rank {self.rank} waited {self.seconds:g} s for rank {self.peer} in the {self.hop} "
            "hop: is that rank alive, and did it make the same calls?"
        )


@dataclass(eq=False)
class NetworkError(FuscoRuntimeError):
    """The communication library failed underneath."""

    code: ClassVar[str] = "FSR021"
    rank: int
    operation: str
    problem: str

    @property
    def message(self) -> str:
        return f"{self.operation} failed on rank {self.rank}: {self.problem}"


@dataclass(eq=False)
class RefusedCallError(FuscoRuntimeError):
    """A peer raised an error instead of joining a call that this rank had joined."""

    code: ClassVar[str] = "FSR022"
    rank: int
    peer: int

    @property
    def message(self) -> str:
        return (
            f"rank {self.peer} raised an error instead of joining a call, and rank {self.rank} "
            f"stopped waiting for it: see what rank {self.peer} says, and open the shuffle again"
        )


@dataclass(eq=False)
class AdapterError(FuscoRuntimeError):
    """A framework, or its use, that an adapter was not written for."""

    code: ClassVar[str] = "FSR030"
    framework: str
    problem: str

    @property
    def message(self) -> str:
        return f"{self.framework}: {self.problem}"


@dataclass(eq=False)
class ProtocolError(FuscoRuntimeError):
    """Ranks out of step: a bug in fuscoc, or ranks that made different calls."""

    code: ClassVar[str] = "FSR090"
    problem: str

    @property
    def message(self) -> str:
        return f"internal error: {self.problem}"


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
