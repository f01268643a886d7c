"""Texts of any length to the buckets that an input names, against lists of texts in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.forked import run_program
from tests.static import specs

RANKS, BUCKETS, WIDTH = 4, 8, 3
ROOT = Path(__file__).parents[2]

texts = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, BUCKETS - 1)), max_size=4)
"""Lengths and buckets; -1 leads nowhere."""


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["1x4", "2x2"]), st.lists(texts, min_size=RANKS, max_size=RANKS))
def test_texts_stay_whole(topology: str, drawn: list[list[tuple[int, int]]]) -> None:
    """A bucket has its texts by source rank, whole, and their lengths in the same order; tokens
    and vectors come back to the texts that they are of, and zeros to those that went nowhere."""
    first = torch.arange(4.0 * 4 * RANKS).view(RANKS, 4, 4, 1)  # of each token another number
    ranks = [
        [(first[rank, i, :length].expand(-1, WIDTH), b) for i, (length, b) in enumerate(some)]
        for rank, some in enumerate(drawn)
    ]
    wanted: dict[int, list[Tensor]] = {bucket: [] for bucket in range(-1, BUCKETS)}
    for some in ranks:
        for text, bucket in some:
            wanted[bucket].append(text)

    tokens, lengths = (opened(name, topology) for name in ("ragged_text", "text_lengths"))
    sizes = [whole([length for length, _ in some]) for some in drawn]
    buckets = [whole([bucket for _, bucket in some]) for some in drawn]
    sent = tokens.dispatch(
        [[joined([text for text, _ in some]).bfloat16()] for some in ranks],
        [{"length": n, "bucket": b} for n, b in zip(sizes, buckets, strict=True)],
    )
    asked = lengths.dispatch([[n] for n in sizes], [{"bucket": b} for b in buckets])
    for rank, (there, numbers) in enumerate(zip(sent, asked, strict=True)):
        own = range(rank, BUCKETS, RANKS)
        assert there.handle.keys.tolist() == numbers.handle.keys.tolist() == list(own)
        here = [text for bucket in own for text in wanted[bucket]]
        assert torch.equal(there.rows["x"].float(), joined(here))
        assert numbers.rows["tokens"].tolist() == [len(text) for text in here]
        counts = [sum(map(len, wanted[bucket])) for bucket in own]
        assert there.handle.key_counts.tolist() == counts
        assert numbers.handle.key_counts.tolist() == [len(wanted[bucket]) for bucket in own]

    doubled = [each.rows["x"] * 2 for each in sent]
    back = tokens.combine(doubled, [each.handle for each in sent], [{}] * RANKS)
    sums = [
        torch.stack([text.sum() for text in each.rows["x"].float().split(numbers.tolist())])
        if len(numbers := other.rows["tokens"])
        else torch.zeros(0)
        for each, other in zip(sent, asked, strict=True)
    ]
    vectors = [each[:, None].expand(-1, WIDTH).contiguous() for each in sums]
    replies = lengths.combine(vectors, [each.handle for each in asked], [{}] * RANKS)
    for some, result, reply in zip(ranks, back, replies, strict=True):
        expected = joined([text * 2 * (bucket >= 0) for text, bucket in some])
        assert torch.equal(result["x"].float(), expected)
        assert reply["x"].tolist() == [
            [float(text.sum()) * (bucket >= 0)] * WIDTH for text, bucket in some
        ]


def opened(name: str, topology: str) -> LockstepShuffle:
    artifact = specs.artifact("ragged_text.fsc", width=WIDTH, buckets=BUCKETS)
    return LockstepShuffle(artifact, name, topology=Topology.parse(topology))


def whole(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def joined(some: list[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, WIDTH), *some])


def test_the_example_runs(tmp_path: Path) -> None:
    options = ("--ranks", "2", "--texts", "6")
    done = run_program(ROOT / "examples/ragged_text.py", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("verified: every text has the vector that it has by itself\n")


@pytest.mark.parametrize(
    ("length", "message"),
    [(-1, "`length` on rank 0 has a negative size"), (2, "has 1 cells; its sizes add up to 2")],
)
def test_lengths_are_those_of_the_tokens(length: int, message: str) -> None:
    shuffle = opened("ragged_text", "1x4")
    inputs = {"length": whole([length]), "bucket": whole([0])}
    with pytest.raises(FuscoRuntimeError, match=message):
        shuffle.dispatch([[torch.zeros(1, WIDTH).bfloat16()]] * RANKS, [inputs] * RANKS)
