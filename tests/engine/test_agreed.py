"""Extents by which ranks compute slots of each other, and which all must give alike."""

from __future__ import annotations

import re

import pytest
import torch

from fuscoc.lang.agreed import agreed_extents
from fuscoc.lang.check import check
from fuscoc.source import SourceFile
from fuscoc_runtime.errors import ExtentMismatchError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, ROOM = 4, 40
GATHER = """
shuffle gather {
  index t : tokens
  index s : room
  segment row { x : i64 }
  layout mine[t] of row
  layout all[s]  of row
  dispatch mine[t] -> all[rank * tokens + t] on 0
  combine reverse
}"""


def found(slot: str, on: str, length: str, routes: str = "") -> tuple[str, ...]:
    text = f"""shuffle s {{
      const two = 2
      index t : tokens   index p : ranks   index s : {length}   index b : before   index m : most
      segment row {{ x : i64 }}
      layout mine[t] of row   layout theirs[s] of row
      {routes}
      dispatch mine[t] -> theirs[{slot}] on {on}
    }}"""
    return agreed_extents(check(SourceFile("spec.fsc", text))[0].target)


@pytest.mark.parametrize(
    ("slot", "on", "length", "wanted"),
    [
        ("rank * tokens + t", "0", "most", ("tokens",)),
        ("(before + rank) * tokens + t", "p", "most", ("tokens",)),
        ("rank / two * max(tokens, before) + t", "0", "most", ("tokens", "before")),
        ("t * most", "p", "most * tokens", ("most",)),
        ("most - 1 - t", "(rank + 1) % ranks", "most", ("most",)),
        ("t % most", "t / most", "most", ("most",)),
        ("(rank * two + t) % before", "(rank * two + t) / before", "most", ("before",)),
        ("rank * two + t", "rank / before % ranks", "most", ("before",)),
        # What is its own affair: where a rank's rows begin, and how many it deals out.
        ("before + t", "0", "most", ()),
        ("t % before", "t / before", "most", ()),
        ("rank * two + t", "0", "most", ()),
        ("rank * most + t", "rank", "most * ranks", ()),
    ],
)
def test_which(slot: str, on: str, length: str, wanted: tuple[str, ...]) -> None:
    assert found(slot, on, length) == wanted


def test_through_a_computed_route() -> None:
    routes = "route at(t) -> g = rank * tokens + t"
    assert found("at(t)", "0", "most", routes) == ("tokens",)


@pytest.mark.parametrize(
    ("key", "wanted"), [("rank * few + t % few", ("few",)), ("(t + rank) % few", ())]
)
def test_in_a_key(key: str, wanted: tuple[str, ...]) -> None:
    text = f"""shuffle s {{
      index t : tokens   index f : few   index e : 64
      segment row {{ x : i64 }}
      layout mine[t] of row   layout theirs[e, s] of row packed(s)
      place e on rank by block
      route r(t, f) -> e = input routing : int64
      dispatch mine[t] -> theirs[{key}, *]
    }}"""
    assert agreed_extents(check(SourceFile("spec.fsc", text))[0].target) == wanted


def gather(topology: str, tokens: list[int]) -> torch.Tensor:
    shuffle = LockstepShuffle(specs.artifact(GATHER), topology=Topology.parse(topology))
    sources = [[torch.arange(count) + 100 * rank] for rank, count in enumerate(tokens)]
    named = [{"room": ROOM} for _ in tokens]
    return shuffle.dispatch(sources, named)[0].rows["x"]


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
def test_ranks_that_agree(topology: str) -> None:
    rows = gather(topology, [5] * RANKS)
    wanted = torch.cat([torch.arange(5) + 100 * rank for rank in range(RANKS)])
    assert torch.equal(rows.flatten()[: len(wanted)], wanted)


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
@pytest.mark.parametrize(("tokens", "rank"), [([8, 8, 5, 8], 2), ([3, 4, 4, 4], 1)])
def test_ranks_that_do_not(topology: str, tokens: list[int], rank: int) -> None:
    """Though each of their rows would have a slot of its own, which nobody else goes to."""
    places = {r * count + t for r, count in enumerate(tokens) for t in range(count)}
    assert tokens[0] != 3 or (len(places) == sum(tokens) and max(places) < ROOM)
    said = f"`tokens` is {tokens[0]} on rank 0 and {tokens[rank]} on rank {rank}"
    with pytest.raises(ExtentMismatchError, match=re.escape(said)):
        gather(topology, tokens)
