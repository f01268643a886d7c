"""Casts that compute with numbers of the call, against torch's own arithmetic in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, KEYS, FAN, CHANNELS = 4, 8, 2, 3
SPEC = f"""
shuffle given {{
  const mean = input mean : f32[{CHANNELS}], std = input deviation : f32[{CHANNELS}]
  const gain = input gain : f32, wide = std + [0.5, 1, 2]
  index t : tokens   index k : {FAN}   index e : {KEYS}
  segment left {{ x : u8[5, {CHANNELS}], id : f32 }}
  segment came {{ x : DTYPE[5, {CHANNELS}], id : f32 }}
  layout mine[t]  of left
  layout by[e, s] of came  packed(s)
  place e on rank by cyclic
  route to(t, k) -> e = input keys : int64
  dispatch mine[t] -> by[to(t, k), *]  cast(EXPRESSION)
}}"""

Line = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
LINES: dict[str, Line] = {
    "(x / 255 - mean) / std": lambda m, s, g, one: (m * 255, one / 255 / s),
    "x * std + mean": lambda m, s, g, one: (0 - m / s, s),
    "gain - x * 2": lambda m, s, g, one: (0 - g * -0.5, one * -2),
    "x * gain": lambda m, s, g, one: (one * 0, g),
    "x / gain - mean * 2": lambda m, s, g, one: (m * 2 / (one / g), one / g),
    "(x - [1, 2, 3]) / wide": lambda m, s, g, one: (
        torch.tensor([1.0, 2.0, 3.0]).double(),
        one / (s + torch.tensor([0.5, 1.0, 2.0])),
    ),
    "x - x * gain": lambda m, s, g, one: (one * 0, 1 - g),
}
"""What is subtracted, and what it is multiplied by, of mean, deviation and gain in f64."""


def text(expression: str, dtype: str = "bf16") -> str:
    return SPEC.replace("EXPRESSION", expression).replace("DTYPE", dtype)


def numbers(random: torch.Generator) -> dict[str, Tensor]:
    """Those of one rank and one call."""
    return {
        "mean": torch.randn(CHANNELS, generator=random),
        "deviation": torch.rand(CHANNELS, generator=random) + 0.1,
        "gain": torch.rand((), generator=random) + 0.1,
    }


def used(named: dict[str, Tensor], expression: str) -> dict[str, Tensor]:
    """Those that an expression has; what it has not is no argument of the call."""
    words = expression.replace("wide", "std")
    names = {"mean": "mean", "deviation": "std", "gain": "gain"}
    return {name: each for name, each in named.items() if names[name] in words}


def wanted(x: Tensor, named: dict[str, Tensor], expression: str, dtype: torch.dtype) -> Tensor:
    one = torch.tensor(1.0, dtype=torch.float64)
    given_numbers = (named[name].double() for name in ("mean", "deviation", "gain"))
    shift, factor = (each.float() for each in LINES[expression](*given_numbers, one))
    return ((x.float() - shift) * factor).to(dtype)


def by_id(rows: Any) -> dict[int, list[Tensor]]:
    """The rows that came, by the number of the token."""
    found: dict[int, list[Tensor]] = {}
    for row, number in zip(rows["x"], rows["id"].tolist(), strict=True):
        found.setdefault(int(number), []).append(row)
    return found


@given(
    st.sampled_from(["1x4", "2x2"]),
    st.sampled_from([*LINES]),
    st.sampled_from(["bf16", "f32", "f8e4m3"]),
    st.lists(st.integers(0, 5), min_size=RANKS, max_size=RANKS),
    st.integers(0, 2**32),
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@example("2x2", "(x / 255 - mean) / std", "bf16", [3, 0, 5, 2], 0)
@example("1x4", "(x - [1, 2, 3]) / wide", "f32", [3, 0, 5, 2], 0)
def test_every_rank_has_its_own(
    topology: str, expression: str, dtype: str, sizes: list[int], seed: int
) -> None:
    """Twice by one artifact, with other numbers: those of the rank that sends count, wherever rows
    go, bit by bit."""
    shuffle = LockstepShuffle(
        specs.artifact(text(expression, dtype)), topology=Topology.parse(topology)
    )
    random = torch.Generator().manual_seed(seed)
    for _ in range(2):
        sent, named, expected = [], [], dict[int, tuple[Tensor, int]]()
        for rank, size in enumerate(sizes):
            x = torch.randint(256, (size, 5, CHANNELS), dtype=torch.uint8, generator=random)
            ids = torch.arange(size) + 100 * rank
            keys = torch.randint(-1, KEYS, (size, FAN), generator=random)
            mine = numbers(random)
            sent.append([x, ids.float()])
            named.append({"keys": keys, **used(mine, expression)})
            for row, number, chosen in zip(x, ids.tolist(), keys, strict=True):
                kept = getattr(torch, {"bf16": "bfloat16", "f32": "float32"}.get(dtype, ""), None)
                made = wanted(row, mine, expression, kept or torch.float32)
                if kept is None:
                    made = made.clamp(-448, 448).to(torch.float8_e4m3fn)
                expected[number] = made, int((chosen >= 0).sum())
        found: dict[int, list[Tensor]] = {}
        for done in shuffle.dispatch(sent, named):
            for number, rows in by_id(done.rows).items():
                found.setdefault(number, []).extend(rows)
        assert {number: len(rows) for number, rows in found.items()} == {
            number: count for number, (_, count) in expected.items() if count
        }
        for number, rows in found.items():
            for row in rows:
                assert torch.equal(row.view(torch.uint8), expected[number][0].view(torch.uint8))


ENGINES = [{}, {"max_sources": 8}]


@pytest.fixture(params=ENGINES, ids=["exact", "fixed"])
def alone(request: pytest.FixtureRequest) -> Any:
    artifact = specs.artifact(text("(x / 255 - mean) / std", "f32"))
    with Shuffle(artifact, **request.param) as shuffle:
        yield shuffle


def arguments(seed: int = 0) -> tuple[list[Tensor], dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (4, 5, CHANNELS), dtype=torch.uint8, generator=random)
    keys = torch.zeros(4, FAN, dtype=torch.int64)
    given_numbers = used(numbers(random), "mean std")
    return [x, torch.arange(4.0)], {"keys": keys, **given_numbers}


def test_a_handle_leaves_them_to_the_call(alone: Shuffle) -> None:
    """They are none of the routing, and may have been changed in place."""
    sent, named = arguments()
    _, handle = alone.dispatch(*sent, **named)
    named["mean"].add_(1)
    others = used(numbers(torch.Generator().manual_seed(7)), "mean std")
    rows, _ = alone.dispatch(*sent, **others, handle=handle)
    full = {**others, "gain": torch.zeros(())}
    first = int(handle.key_offsets[0])
    came = {name: each[first : first + 4 * FAN] for name, each in rows.items()}
    for number, found in by_id(came).items():
        expected = wanted(sent[0][number], full, "(x / 255 - mean) / std", torch.float32)
        assert len(found) == FAN
        assert all(torch.equal(row, expected) for row in found)
    with pytest.raises(InputError, match=r"`mean`.*is missing"):
        alone.dispatch(*sent, deviation=others["deviation"], handle=handle)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("mean", torch.zeros(4), r"has the shape \[4\]; the spec says \[3\]"),
        ("mean", torch.zeros(()), r"has the shape \[\]; the spec says \[3\]"),
        ("mean", torch.zeros(3).double(), "is torch.float64; the spec says torch.float32"),
        ("mean", [0.0, 0.0, 0.0], "is a list; it must be a tensor"),
        ("deviation", torch.ones(3, requires_grad=True), "requires grad, .* has no gradient"),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["planned", "handle"])
def test_wrong_ones(alone: Shuffle, name: str, value: Any, problem: str, again: bool) -> None:
    sent, named = arguments()
    handle = alone.dispatch(*sent, **named)[1] if again else None
    if again:
        del named["keys"]
    with pytest.raises(InputError, match=f"`{name}`.*{problem}"):
        alone.dispatch(*sent, **{**named, name: value}, handle=handle)


BACK = (
    text("(x / 255 - mean) / std")
    .replace("u8[", "f32[")
    .replace(")\n}", ")\n  combine reverse reduce sum\n}")
)


@pytest.mark.parametrize("again", [False, True], ids=["planned", "handle"])
def test_gradients(again: bool) -> None:
    """Of every rank by its own deviation, with that of the call."""
    shuffle = LockstepShuffle(specs.artifact(BACK), topology=Topology.parse("2x2"))
    random = torch.Generator().manual_seed(3)
    sent, named = [], []
    for _ in range(RANKS):
        x = torch.randn(3, 5, CHANNELS, generator=random, requires_grad=True)
        sent.append([x, torch.arange(3.0)])
        keys = torch.randint(-1, KEYS, (3, FAN), generator=random)
        named.append({"keys": keys, **used(numbers(random), "mean std")})
    done = shuffle.dispatch(sent, named)
    torch.stack([each.rows["x"].float().sum() for each in done]).sum().backward()
    for (x, _), own in zip(sent, named, strict=True):
        times = (own["keys"] >= 0).sum(1)[:, None, None]
        exact = times / 255 / own["deviation"].double()
        torch.testing.assert_close(x.grad, exact.float().expand_as(x))


@pytest.mark.parametrize("options", ENGINES, ids=["exact", "fixed"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_with_a_handle(compiled: bool, options: dict[str, int]) -> None:
    """The second dispatch has numbers of its own; no gradient is theirs."""
    with Shuffle(specs.artifact(BACK), **options) as shuffle:
        sent, named = arguments()

        def loss(x: Tensor, ids: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
            given_numbers = {"mean": mean, "deviation": deviation}
            rows, handle = shuffle.dispatch_fresh(x, ids, keys=named["keys"], **given_numbers)
            given_numbers["deviation"] = deviation * 2
            again, _ = shuffle.dispatch_fresh(x, ids, **given_numbers, handle=handle)
            return rows["x"].float().sum() + again["x"].float().sum()

        call = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
        x = sent[0].float().requires_grad_()
        call(x, sent[1], named["mean"], named["deviation"]).backward()
        exact = FAN / 255 / named["deviation"].double() * 1.5
        torch.testing.assert_close(x.grad, exact.float().expand_as(x))
        with pytest.raises(InputError, match="has no gradient"):
            loss(x, sent[1], named["mean"].requires_grad_(), named["deviation"])


PLANES = """shuffle planes {
  const gain = input gain : f32[2]
  index t : tokens   index s : slots
  segment row { x : f32[3, 2] }
  layout mine[t, c, w] of f32 dense(2, 3)
  layout theirs[s] of row
  view   rows[t] = mine[t, 0 .. 2, 0 .. 3] order(w, c)
  route  to(t) -> s = input slot : int64
  dispatch rows[t] -> theirs[to(t)] on rank cast(x * gain)
  combine reverse
}"""


def test_channels_that_lie_apart() -> None:
    """Are read as any, and have no gradient, which would be that of other channels."""
    with Shuffle(specs.artifact(PLANES)) as shuffle:
        x, gain = torch.randn(4, 2, 3), torch.tensor([2.0, 0.3])
        named = {"gain": gain, "slot": torch.arange(4), "slots": 4}
        rows, _ = shuffle.dispatch(x, **named)
        assert torch.equal(rows, x.permute(0, 2, 1) * gain)
        with pytest.raises(InputError, match="for channels that are no dimension of an element"):
            shuffle.dispatch(x.requires_grad_(), **named)


def test_a_static_shuffle_stays_static() -> None:
    """Numbers decide no plan."""
    static = """shuffle turn {
      const gain = input gain : f32
      index i : 8
      segment row { x : f32[4] }
      layout mine[i] of row
      layout theirs[j] of row dense(8)
      dispatch mine[i] -> theirs[i] on (rank + 1) % ranks cast(x * gain)
    }"""
    shuffle = LockstepShuffle(specs.artifact(static), topology=Topology.parse("2x2"))
    assert shuffle.spec.program.is_static
    x = torch.randn(8, 4)
    for call in range(2):
        gains = [torch.tensor(1.5 + rank + 10 * call) for rank in range(RANKS)]
        done = shuffle.dispatch([[x]] * RANKS, [{"gain": each} for each in gains])
        for rank, each in enumerate(done):
            assert torch.equal(each.rows["x"], x * gains[rank - 1])


def test_more_channels_than_a_text_holds() -> None:
    spec = """shuffle wide {
      const scale = input scale : f32[600]
      index t : tokens
      segment row { x : f32[600] }
      layout mine[t] of row
      layout theirs[t] of row
      dispatch mine[t] -> theirs[t] on rank cast(x * scale)
    }"""
    with Shuffle(specs.artifact(spec)) as shuffle:
        x, scale = torch.randn(3, 600), torch.randn(600)
        rows, _ = shuffle.dispatch(x, scale=scale)
        assert torch.equal(rows, x * scale)
