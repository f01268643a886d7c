"""What the tests let processes of several nodes do; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_triton.rank_work import MAX_SOURCES, batch, run

TIMEOUT = 8.0


def open_shuffle(group: Any, artifact: str, topology: str, **options: Any) -> Shuffle:
    """Of a fixed capacity, among the ranks of several nodes."""
    given = {"max_sources": MAX_SOURCES, "timeout": TIMEOUT, **options}
    shuffle = Shuffle(artifact, group=group, topology=topology, **given)
    engine = shuffle.engine
    assert isinstance(engine, NodeEngine)
    assert isinstance(engine.node, RailNode)
    return shuffle


def calls(
    group: Any, artifact: str, topology: str, batches: Sequence[Sequence[int]], seed: int
) -> None:
    """Dispatches and combines in a row, ``batches[i][rank]`` segments each; rows bit by bit."""
    shuffle = open_shuffle(group, artifact, topology)
    for number, sizes in enumerate(batches):
        run(shuffle, batch(shuffle.spec, sizes, seed + number), combines=1 + number % 2)
    shuffle.check()
