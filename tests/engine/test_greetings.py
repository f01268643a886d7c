"""What ranks say to each other in JSON, and that nothing else is read."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch

from fuscoc_runtime.comm import gather
from fuscoc_runtime.comm.fabric import Fabric
from fuscoc_runtime.comm.greeting import Greeting, first_difference
from fuscoc_runtime.comm.liveness import ProcessId
from fuscoc_runtime.comm.nodes import Place
from fuscoc_runtime.errors import ProtocolError
from fuscoc_runtime.topology import Topology

GREETED: list[Any] = [["host", 7, "12"], "token", None, []]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Choice:
    size: int
    name: str | None


def told(monkeypatch: pytest.MonkeyPatch, *said: bytes) -> list[Any]:
    """What is heard where the ranks say that."""
    longest = max(map(len, said))
    answers = [
        torch.tensor([[len(each)] for each in said]),
        torch.tensor([list(each.ljust(longest, b"\0")) for each in said], dtype=torch.uint8),
    ]
    monkeypatch.setattr(gather, "gather_in_time", lambda *_: answers.pop(0))
    return gather.gather_json(["mine"], cast(Any, None), CPU, 1.0, "a test")


def test_ranks_speak_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, b'["mine"]', b'{"a": [1, null, "\xc3\xa4"]}') == [
        ["mine"],
        {"a": [1, None, "ä"]},
    ]


class Harm:
    def __reduce__(self) -> Any:
        return os.putenv, ("FUSCOC_HARMED", "yes")


@pytest.mark.parametrize("said", [pickle.dumps(["host"]), pickle.dumps(Harm()), b"\xff", b"{"])
def test_nothing_else_is_read(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    with pytest.raises(ProtocolError, match="rank 1 does not speak JSON"):
        told(monkeypatch, b'["mine"]', said)


def test_a_greeting_arrives_as_it_was() -> None:
    process = ProcessId("host", 7, "12")
    agreed = ("moe", {"hidden": 4}, [], None, 1.5)
    for topology, fabric in ((None, "no GPU"), (Topology(2, 4), Fabric("0f", 3))):
        sent = Greeting(Place("node", True, fabric), process, "token", topology, agreed)
        assert Greeting.from_json(json.loads(json.dumps(sent.to_json()))) == sent


@pytest.mark.parametrize(
    "said",
    [None, 1, [], ["a", "b"], [["node", False, ""], 1, "token", None, []], ["node", *GREETED]],
)
def test_what_is_no_greeting(said: Any) -> None:
    with pytest.raises(ProtocolError, match="none of this version"):
        Greeting.from_json(said)


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        (("moe", Choice(2, None)), ("size=2", "size=1")),
        (("moe", Choice(1, "x")), ("name='x'", "name=None")),
        (("vit", Choice(1, None)), ("'vit'", "'moe'")),
        (("moe", None), ("None", "{'size': 1, 'name': None}")),
    ],
)
def test_what_differs_is_named(theirs: tuple[Any, ...], difference: tuple[str, str]) -> None:
    process = ProcessId("host", 7, "12")
    place = Place("node", False, "")
    heard = [
        Greeting.from_json(Greeting(place, process, "token", None, agreed).to_json()).agreed
        for agreed in (theirs, ("moe", Choice(1, None)))
    ]
    assert first_difference(*heard) == difference
