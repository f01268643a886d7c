"""What the tests let ranks do whose keys a table places; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.demo.verify import check_rows, expect
from fuscoc_runtime.engine.node import places
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_exact import rank_work as exact_work
from tests.node_triton import rank_work
from tests.node_triton.rank_work import batch, run, said_by


def open_shuffle(group: Any, artifact: str, topology: str, is_exact: bool) -> Shuffle:
    """Of exact sizes, by kernels and with few places at first, or of a fixed capacity."""
    made = exact_work if is_exact else rank_work
    with mock.patch.object(places, "FIRST_SOURCES", 1):
        shuffle = made.open_shuffle(group, artifact, topology=topology)
    assert shuffle.backend == "triton"
    return shuffle


def calls(
    group: Any, artifact: str, topology: str, is_exact: bool, batches: Sequence[Sequence[int]]
) -> None:
    """Dispatches and combines, verified, with another table each, and one along the first routing
    once the caller's table has changed."""
    shuffle = open_shuffle(group, artifact, topology, is_exact)
    for number, each in enumerate(batches):
        run(shuffle, batch(shuffle.spec, each, number), combines=1)
    if not is_exact:  # whose handles read their inputs again
        return
    data = batch(shuffle.spec, batches[0], 1)[shuffle.rank]
    rows, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
    assert isinstance(handle, ExactHandle)
    before, keys = rows.clone(), (data.inputs["owner"] == shuffle.rank).nonzero().flatten()
    data.inputs["owner"].zero_()
    again, _ = shuffle.dispatch(**data.source, handle=handle)
    held = torch.cat([torch.arange(0), *(_slots(handle))])
    index = handle.row_index
    if index is not None:
        held = index[held]
    assert torch.equal(again[held], before[held])
    assert torch.equal(handle.keys, keys)
    shuffle.check()


def _slots(handle: Any) -> list[torch.Tensor]:
    """Those that hold a row."""
    pairs = zip(handle.key_offsets.tolist(), handle.key_counts.tolist(), strict=False)
    return [torch.arange(start, start + count) for start, count in pairs]


def another_table(
    group: Any, artifact: str, topology: str, is_exact: bool, who: int
) -> tuple[list[str], int, int, int]:
    """A rank gives a table of which two keys have changed places. What is said of that, and of a
    whole call behind it; this rank's points, and of those how many were not moved, and rows that
    have come."""
    shuffle = open_shuffle(group, artifact, topology, is_exact)
    num_ranks = shuffle.topology.num_ranks
    data = batch(shuffle.spec, [3] * num_ranks, 1)[shuffle.rank]
    if shuffle.rank == who:
        owner = data.inputs["owner"]
        first = int((owner != owner[0]).nonzero()[0])
        owner[[0, first]] = owner[[first, 0]]
    num_points = int((data.inputs["idx"] >= 0).sum())
    given = {**data.source, **data.inputs, **data.extents}
    dropped = rows = -1
    if is_exact:
        said = [said_by(lambda: shuffle.dispatch(**given))]
    else:
        out, handle = shuffle.dispatch(**given)
        if shuffle.spec.program.combine is not None:
            given = out.new_ones(handle.num_slots, *out.shape[1:])
            assert not bool(shuffle.combine(given, handle).any())
        said = [said_by(shuffle.check)]
        dropped, rows = int(handle.dropped), int(handle.key_counts.sum())
    said.append(said_by(shuffle.check))
    run(shuffle, batch(shuffle.spec, [2] * num_ranks, 2), combines=1)
    said.append(said_by(shuffle.check))
    return said, num_points, dropped, rows


def no_rank(group: Any, artifact: str, topology: str) -> str:
    """Tables of exact sizes have an entry that is no rank, for a key that no point has."""
    shuffle = open_shuffle(group, artifact, topology, is_exact=True)
    data = batch(shuffle.spec, [2] * shuffle.topology.num_ranks, 1)[shuffle.rank]
    data.inputs["idx"].fill_(1)
    data.inputs["owner"][0] = -1
    return said_by(lambda: shuffle.dispatch(**data.source, **data.inputs, **data.extents))


def one_refuses(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank refuses a dispatch, without a table therefore, and takes on segments of other
    nodes all the same: rows of the others, verified, and what is said."""
    shuffle = open_shuffle(group, artifact, topology, is_exact=False)
    num_ranks, spec = shuffle.topology.num_ranks, shuffle.spec
    ranks = batch(spec, [3] * (num_ranks - 1) + [0], 1)
    data = ranks[shuffle.rank]
    if shuffle.rank == num_ranks - 1:
        [name] = data.source
        wrong = {name: data.source[name].double()}
        return [said_by(lambda: shuffle.dispatch(**wrong, **data.inputs, **data.extents))]
    [field] = spec.declared.fields
    rows, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
    own = expect(spec, ranks, shuffle.rank).rows[shuffle.rank]
    check_rows(own, {field.name: rows[: len(own.written)]}, handle)
    return [said_by(shuffle.check)]


def repeated(group: Any, artifact: str, topology: str) -> None:
    """Calls that repeat earlier ones, but for the table."""
    shuffle = open_shuffle(group, artifact, topology, is_exact=False)
    num_ranks = shuffle.topology.num_ranks
    ranks = batch(shuffle.spec, [3] * num_ranks, 1)
    for turn in range(3):
        tables = [(data.inputs["owner"] + turn) % num_ranks for data in ranks]
        turned = [
            replace(data, inputs={**data.inputs, "owner": table})
            for data, table in zip(ranks, tables, strict=True)
        ]
        run(shuffle, turned, combines=1)
    shuffle.check()
