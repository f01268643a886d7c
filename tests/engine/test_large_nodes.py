"""Nodes of as many ranks as newer machines have, in one process, against the reference."""

from __future__ import annotations

import pytest

from fuscoc_runtime.demo.generate import generate
from tests.engine import specs
from tests.engine.lockstep import lockstep, round_trip

TEXT = specs.routed("bf16", hidden=8, keys=144, topk=3, align=4, placement="cyclic")


@pytest.mark.parametrize(
    "topology",
    ["1x16", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("2x16", "1x72", "2x72"))],
)
def test_round_trips(topology: str) -> None:
    """Nothing in a kernel or a plan counts the ranks of a node beforehand."""
    shuffle = lockstep(TEXT, topology)
    for seed, tokens in enumerate((3, 1)):
        round_trip(shuffle, generate(shuffle.spec, shuffle.topology, tokens, seed))
