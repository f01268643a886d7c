"""What the tests of traces let ranks do; every function runs on one rank."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.comm import rails
from fuscoc_runtime.comm.requests import Crossing
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.kernels.loader import Kernel
from tests.node_exact import rank_work as exact_node_work
from tests.node_triton import rank_work
from tests.node_triton.rank_work import batch, run
from tests.rails import exact_work

OPENED = {"exact": exact_work.open_shuffle, "fixed": rank_work.open_shuffle}


@contextmanager
def launches() -> Iterator[tuple[list[str], list[Crossing]]]:
    """Kernels that are launched meanwhile, by name, and exchanges between nodes: from where they
    all pass, whoever asks for them."""
    kernels, exchanges = list[str](), list[Crossing]()
    start, post = Kernel.start, rails.post

    def started(self: Kernel, arguments: Sequence[int], num_programs: int) -> None:
        kernels.append(self.spec.name)
        start(self, arguments, num_programs)

    def posted(group: Any, what: Crossing) -> Any:
        exchanges.append(what)
        return post(group, what)

    patched = mock.patch.object
    with patched(Kernel, "start", started), patched(rails, "post", posted):
        yield kernels, exchanges


def calls(
    group: Any, artifact: str, kind: str, topology: str, batches: Any, file: str
) -> list[str]:
    """Calls, verified, of a shuffle that is traced: every kernel of them and every exchange is
    there once, in order. The names of kernels."""
    shuffle = OPENED[kind](group, artifact, topology=topology, trace=True)
    assert not shuffle.spans or {span.lane[:4] for span in shuffle.spans} == {"wire"}
    before = len(shuffle.spans)
    with launches() as (kernels, exchanges):
        for number, each in enumerate(batches):
            run(shuffle, batch(shuffle.spec, each, number), combines=1)
    spans = shuffle.spans[before:]
    by_lane = {lane: [s for s in spans if s.lane == lane] for lane in {s.lane for s in spans}}
    host = Counter(span.name for span in by_lane.pop("host"))
    assert host["dispatch"] == host["combine"] == len(batches)
    counts = host["wait for counts"]
    assert counts >= len(batches) if isinstance(shuffle.engine, ExactEngine) else counts == 0
    stream = by_lane.pop("stream 0")
    assert [span.name for span in stream] == kernels
    assert all(lane.startswith("wire") for lane in by_lane)
    assert sum(map(len, by_lane.values())) == len(exchanges)
    assert bool(exchanges) == (shuffle.topology.num_nodes > 1)
    for lane in (stream, *by_lane.values()):
        assert all(span.begin <= span.end for span in lane)
        assert all(one.end <= other.begin for one, other in pairwise(lane))
    _save(shuffle, file)
    shuffle.check()
    shuffle.close()
    return kernels


def _save(shuffle: Shuffle, file: str) -> None:
    """What is written is what the ranks have."""
    num_ranks = shuffle.topology.num_ranks
    shuffle.save_trace(file)
    counts = torch.tensor([len(shuffle.spans)])
    found = [int(each) for each in shuffle._executor.engine.members.gather("spans", counts.item())]
    if shuffle.rank:
        return
    with open(file, encoding="utf-8") as written:
        events = json.load(written)["traceEvents"]
    spans = Counter(event["pid"] for event in events if event["ph"] == "X")
    assert [spans[rank] for rank in range(num_ranks)] == found
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def untraced(group: Any, artifact: str, kind: str, topology: str) -> list[str]:
    """The names of the classes of what a shuffle launches that is not traced."""
    shuffle = OPENED[kind](group, artifact, topology=topology)
    run(shuffle, batch(shuffle.spec, [3] * shuffle.topology.num_ranks, 1), combines=1)
    assert not shuffle.spans
    program = shuffle.engine.node._program
    return sorted({type(each).__name__ for each in program.kernels.values()})


def general(group: Any, artifact: str, topology: str) -> list[str]:
    """A call that the kernels refuse is the general engine's, and so are its spans."""
    shuffle = exact_work.open_shuffle(group, artifact, topology, trace=True)
    with mock.patch.object(type(shuffle.engine.node), "new_work", return_value=None):
        given = exact_node_work.data_of(shuffle.rank, 5)
        rows, handle = shuffle.dispatch(**given)
        shuffle.combine(rows, handle)
    return sorted({span.lane for span in shuffle.spans})
