"""What the ranks say of themselves when a shuffle is opened."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, is_dataclass
from typing import Any

from fuscoc_runtime.comm.liveness import ProcessId
from fuscoc_runtime.comm.nodes import Place
from fuscoc_runtime.errors import ProtocolError
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True)
class Greeting:
    """One rank's.

    Attributes:
        place: where it is.
        token: of this opening alone.
        topology: what its user has chosen.
        agreed: settings that must be the same on every rank; dataclasses or what JSON can hold.
    """

    place: Place
    process: ProcessId
    token: str
    topology: Topology | None
    agreed: tuple[Any, ...]

    def to_json(self) -> list[Any]:
        """What ``from_json`` reads."""
        chosen = astuple(self.topology) if self.topology is not None else None
        agreed = [_plain(each) for each in self.agreed]
        return [self.place.to_json(), astuple(self.process), self.token, chosen, agreed]

    @classmethod
    def from_json(cls, said: Any) -> Greeting:
        """A rank's greeting, in which settings are what JSON made of them.

        Raises:
            ProtocolError: it is none.
        """
        try:
            place, process, token, chosen, agreed = said
            topology = Topology(*chosen) if chosen is not None else None
            return cls(Place.from_json(place), ProcessId(*process), token, topology, tuple(agreed))
        except (TypeError, ValueError) as error:
            raise ProtocolError("a rank greets in a way that is none of this version") from error


def _plain(setting: Any) -> Any:
    is_instance = is_dataclass(setting) and not isinstance(setting, type)
    return asdict(setting) if is_instance else setting


def first_difference(theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> tuple[str, str]:
    """What the settings of two greetings differ in, of those that have names by its name."""
    one, other = next(pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1])
    if not isinstance(one, dict) or not isinstance(other, dict) or one.keys() != other.keys():
        return repr(one), repr(other)
    name = next(name for name in one if one[name] != other[name])
    return f"{name}={one[name]!r}", f"{name}={other[name]!r}"
