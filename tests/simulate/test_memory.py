"""What a rank's buffers take, counted row by row from where every point goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from fuscoc.simulate.contenders import CONTENDERS, Rewrite, ablated
from fuscoc.simulate.counts import Sharing, count
from fuscoc.simulate.hop import plan_network
from fuscoc.simulate.runs import memory
from fuscoc_runtime.plan.links import row_bytes
from fuscoc_runtime.topology import Topology
from tests.simulate.small import cluster, destinations, made

NODES, M, TOKENS = 3, 2, 3000
OFF = ablated(CONTENDERS["fusco"])


def buffers(rewrite: Rewrite) -> tuple[list[list[list[int]]], dict[str, float]]:
    """The ranks of every point by rank and token, and the memory that is predicted, in rows."""
    topology, contender = Topology(NODES, M), made(rewrite)
    ranks = destinations(topology, TOKENS, seed=4)
    sharing = Sharing.of(contender.program)
    counts = count(ranks, topology, [sharing])[sharing]
    program = contender.program.with_rules(slice_bytes=1 << 16)
    contender, here = replace(contender, program=program), cluster(NODES, M)
    plan = plan_network(contender, counts, here)
    assert plan.num_rounds > 1 or contender.at_once
    size = {row_bytes(program.buffers[name]) for name in ("slices", "landing", "target")}
    assert len(size) == 1
    found = memory(contender, counts, plan, here)
    rows = {name: found.get(name, 0.0) / size.copy().pop() for name in ("slices", "landing")}
    points = [[[rank for rank in token if rank >= 0] for token in each.tolist()] for each in ranks]
    return points, rows


@pytest.mark.parametrize("execution", ["staged", "hops"])
def test_forwarders_have_room_for_all_that_they_pass_on(
    execution: Literal["staged", "hops"],
) -> None:
    """Of equal local index: whoever has that index elsewhere sends them a token once."""
    points, found = buffers(replace(OFF["balancer"], execution=execution))
    landed, packed, passed, arrived = (np.zeros(NODES * M) for _ in range(4))
    for rank, tokens in enumerate(points):
        for token in tokens:
            np.add.at(arrived, token, 1)
            for node in {each // M for each in token}:
                here = sum(each // M == node for each in token)
                forwarder = node * M + rank % M
                if node == rank // M:
                    packed[rank] += here
                else:
                    packed[rank] += 1
                    landed[forwarder] += 1
                    passed[forwarder] += here
    if execution == "hops":
        assert found == {"slices": 0, "landing": landed.max()}
    else:
        assert found["slices"] == pytest.approx(np.maximum(packed, passed).max())
        assert found["landing"] == np.maximum(landed, arrived).max()


@pytest.mark.parametrize(("rewrite", "permutes"), [(CONTENDERS["naive"], 1), (OFF["planner"], 0)])
def test_rows_that_go_straight_are_packed_and_placed_only_by_permutes(
    rewrite: Rewrite, permutes: int
) -> None:
    points, found = buffers(rewrite)
    sent = [sum(map(len, tokens)) for tokens in points]
    arrived = np.bincount([rank for tokens in points for token in tokens for rank in token])
    assert found == {"slices": permutes * max(sent), "landing": permutes * arrived.max()}
