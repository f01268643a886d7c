"""What tests of any spec let ranks of several nodes do; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor

from fuscoc_runtime.demo.verify import Expected
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.rail_calls import RailKnown
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.reference import RankData
from tests.node_triton.given_work import bits, combined, dispatched
from tests.node_triton.rank_work import said_by
from tests.rails.rail_work import several_hosts

Batch = tuple[Sequence[RankData], Expected]


def calls(
    group: Any,
    artifact: Artifact,
    batches: Sequence[Batch],
    again: Batch,
    options: Mapping[str, Any],
    opens: Callable[..., Shuffle],
    in_rounds: bool,
    is_late: bool,
) -> list[str]:
    """A dispatch and its combine of every batch, one more combine of the first, then a dispatch
    ``again`` along the routing of the last one, its combine, and one more of the last. What differs
    from what is expected; all went along rails. Slabs travel ``in_rounds``, however often they
    grow, or not. Weights come with combine if they are ``is_late``.

    A rank that finds something goes on, so that the others need not wait for it.
    """
    with several_hosts() if in_rounds else nullcontext():
        return _calls(opens(group, artifact, **options), batches, again, is_late)


def _calls(shuffle: Shuffle, batches: Sequence[Batch], again: Batch, is_late: bool) -> list[str]:
    rank, spec = shuffle.rank, shuffle.spec
    weights = {each.name for each in spec.inputs if each.role == "weight" and is_late}
    done = []
    wrong: list[str] = []

    def come_back(what: str, number: int, expected: Expected, handle: Any) -> None:
        inputs = batches[number][0][rank].inputs
        late = {name: inputs[name] for name in weights}
        found = combined(shuffle, expected, handle, late)
        wrong.extend(f"{what} of batch {number}: {each}" for each in found)

    for number, (ranks, expected) in enumerate(batches):
        data = ranks[rank]
        given = {name: each for name, each in data.inputs.items() if name not in weights}
        handle, found = dispatched(shuffle, data, expected, {**given, **data.extents})
        check_way(shuffle, handle)
        wrong += [f"dispatch of batch {number}: {each}" for each in found]
        come_back("combine", number, expected, handle)
        done.append(handle)
    come_back("another combine", 0, batches[0][1], done[0])
    last = len(batches) - 1
    (ranks, expected), handle = again, done[last]
    new, found = dispatched(shuffle, ranks[rank], expected, {"handle": handle})
    check_way(shuffle, new)
    wrong += [f"dispatch along the routing: {each}" for each in found]
    come_back("combine along the routing", last, expected, new)
    come_back("another combine", last, batches[last][1], handle)
    if (said := said_by(shuffle.check)) != "no error":
        wrong.append(said)
    assert "general" not in vars(shuffle.engine)
    shuffle.close()
    return wrong


def check_way(shuffle: Shuffle, handle: Any) -> None:
    """What was dispatched has gone along rails, not through the general engine."""
    node = shuffle.engine.node
    if isinstance(node, ExactRails):
        assert isinstance(handle, ExactHandle)
        assert isinstance(handle.known, RailKnown)
    else:
        assert isinstance(node, RailNode)
        assert isinstance(handle, NodeHandle)


def other_rows(ranks: Sequence[RankData]) -> list[RankData]:
    """The same routing of other rows."""
    return [
        replace(data, source={name: backwards(each) for name, each in data.source.items()})
        for data in ranks
    ]


def backwards(tensor: Tensor) -> Tensor:
    """Its elements from the last to the first, of types that torch cannot flip, too."""
    return bits(tensor.flatten()).flip(0).view(-1).view(tensor.dtype).view_as(tensor)
