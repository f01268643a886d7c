"""What the tests of given slots let processes do; every function runs on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import ne
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuscoc_runtime.demo.memory import memory_arguments
from fuscoc_runtime.demo.verify import (
    Expected,
    MismatchError,
    check_memory,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.kernels.device import load
from fuscoc_runtime.kernels.loader import launching
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, route
from tests.node_triton.rank_work import (
    batch,
    by_field,
    filled_up,
    open_shuffle,
    pretend,
    said_by,
    source_of,
)


def epochs(
    group: Any,
    artifact: str,
    batches: Sequence[Sequence[int]],
    seed: int,
    options: Mapping[str, Any],
    first: int = 0,
) -> None:
    """Dispatches and combines in a row, whose outermost extent is ``batches[i][rank]``; as if there
    had been ``first`` of each before."""
    shuffle = open_shuffle(group, artifact, **options)
    if first:
        pretend(shuffle, first)
    for number, sizes in enumerate(batches):
        run(shuffle, batch(shuffle.spec, sizes, seed + number), combines=1 + number % 2)
    shuffle.check()


def planned_in_parts(
    group: Any, artifact: str, batches: Sequence[Sequence[int]], options: Mapping[str, Any]
) -> None:
    """The same where programs that plan are too many to wait for peers."""
    shuffle = open_shuffle(group, artifact, **options)
    node = shuffle.engine.node
    node.configure(replace(node._programs, sms=0))
    *planning, _ = node._commands_forth()
    assert [each.names["part"] for each in planning] == ["meets", "places"]
    for number, sizes in enumerate(batches):
        run(shuffle, batch(shuffle.spec, sizes, number), combines=1)
    shuffle.check()


def one_leaves(group: Any, artifact: str, options: Mapping[str, Any]) -> tuple[bool, str]:
    """Equal calls, among them one whose combine the last rank does not join: it goes on with its
    next dispatch, in which nothing is new. Whether results of this rank lack rows, and what it
    says."""
    shuffle = open_shuffle(group, artifact, **options)
    spec, rank, num_ranks = shuffle.spec, shuffle.rank, shuffle.topology.num_ranks
    ranks = batch(spec, [1] * num_ranks, 5)
    for _ in range(4):
        run(shuffle, ranks, combines=1)
    rows, handle = shuffle.dispatch(**ranks[rank].source, **ranks[rank].extents)
    worked, lacks = rows.clone(), False
    if rank == num_ranks - 1:
        assert "`handle` on rank" in said_by(lambda: shuffle.combine(worked, None))
    else:
        lacks = bool(shuffle.combine(worked, handle).isnan().any())
    said = said_by(shuffle.check)
    for _ in range(2):
        run(shuffle, ranks, combines=1)
    return lacks, said


def run(shuffle: Shuffle, ranks: Sequence[RankData], combines: int) -> None:
    """One dispatch and some combines of it, compared with the reference."""
    rank, spec = shuffle.rank, shuffle.spec
    data = ranks[rank]
    expected = expect(spec, list(ranks))
    own = expected.rows[rank]
    before = {name: each.clone() for name, each in shuffle.engine.rows.items()}
    given, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
    first = spec.declared.fields[0].name
    rows = by_field(given, first)
    assert handle.num_slots == len(own.written)
    assert all(len(each) == handle.num_slots for each in rows.values())
    check_rows(own, rows, handle)
    for name, each in rows.items():  # slots that nobody names are left as they were
        assert torch.equal(bits(each)[~own.written], bits(before[name])[: len(each)][~own.written])
    assert torch.equal(handle.launched.filled, own.written)
    stats = shuffle.stats()
    assert stats is not None
    assert (stats.num_rows, stats.num_slots) == (int(own.written.sum()), len(own.written))
    sent = [each for each in route(spec, ranks)[0] if each.origin.rank == rank]
    assert stats.rows_to_rank == tuple(
        sum(each.rank == peer for each in sent) for peer in range(len(ranks))
    )
    assert stats.num_sources > max((each.origin.source for each in sent), default=-1)
    if expected.results is None:
        return
    worked = work_on(spec, rows, own.written, torch.zeros(len(own.written), dtype=torch.int64))
    for _ in range(combines):
        result = by_field(shuffle.combine(worked, handle), first)
        check_result(expected.results[rank], result)


def one_call(
    group: Any,
    artifact: Artifact,
    ranks: Sequence[RankData],
    expected: Expected,
    options: Mapping[str, Any],
    opens: Callable[..., Shuffle] = open_shuffle,
) -> list[str]:
    """A dispatch and, if there is one, its combine; what differs from what is ``expected``.

    A rank that finds something goes on, so that the others need not wait for it.
    """
    shuffle = opens(group, artifact, **options)
    data = ranks[shuffle.rank]
    handle, wrong = dispatched(shuffle, data, expected, {**data.inputs, **data.extents})
    wrong += combined(shuffle, expected, handle)
    if (said := said_by(shuffle.check)) != "no error":
        wrong.append(said)
    shuffle.close()
    return wrong


def dispatched(
    shuffle: Shuffle, data: RankData, expected: Expected, given: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """A dispatch of what a rank has, beside what else it is ``given``: its handle, and how rows
    differ from those ``expected``."""
    rank, spec = shuffle.rank, shuffle.spec
    own = expected.rows[rank]
    beside = memory_arguments(spec, data)
    rows, handle = shuffle.dispatch(**{**data.source, **given, **beside})
    num_rows = own.num_rows if spec.program.is_compact else len(own.written)
    fields = by_field(rows, spec.declared.fields[0].name)
    try:
        if expected.memory is not None:  # which dispatch has returned
            check_memory(expected.memory[rank], fields)
        else:
            check_rows(own, {name: each[:num_rows] for name, each in fields.items()}, handle)
    except MismatchError as error:
        return handle, [str(error)]
    return handle, []


def combined(
    shuffle: Shuffle, expected: Expected, handle: Any, late: Mapping[str, Tensor] | None = None
) -> list[str]:
    """How a combine, if there is one, differs from what is ``expected``; with weights that come
    ``late``."""
    if expected.results is None:
        return []
    own = expected.rows[shuffle.rank]
    worked = work_on(shuffle.spec, own.fields, own.written, slot_keys(own))
    outputs = filled_up(worked, handle.num_slots)
    result = shuffle.combine(outputs, handle, **(late or {}))
    try:
        check_result(expected.results[shuffle.rank], by_field(result, next(iter(outputs))))
    except MismatchError as error:
        return [str(error)]
    return []


def bits(tensor: Tensor) -> Tensor:
    """uint8 [entries, bytes]."""
    nbytes = tensor.shape[1:].numel() * tensor.dtype.itemsize
    return tensor.contiguous().view(-1).view(torch.uint8).view(len(tensor), nbytes)


def routed(
    group: Any, artifact: str, tables: Sequence[Any], length: int, options: Mapping[str, Any]
) -> None:
    """A dispatch of three elements a segment to each of ``tables``, by rank lists of a (rank, slot)
    for every segment and fan-out."""
    shuffle = open_shuffle(group, artifact, **options)
    for number, table in enumerate(tables):
        ranks = [
            data_of(shuffle.spec, each, length, number + rank) for rank, each in enumerate(table)
        ]
        run(shuffle, ranks, combines=2)
    shuffle.check()


def data_of(spec: ShuffleSpec, table: Sequence[Any], length: int, seed: int) -> RankData:
    fanout = spec.program.fanout
    to = torch.tensor(table, dtype=torch.int64).view(len(table), fanout, 2)
    random = torch.Generator().manual_seed(seed)
    [field] = spec.declared.source.fields
    x = torch.randn(len(to), *field.shape, generator=random).to(TORCH_DTYPES[field.dtype])
    inputs = {"to": to if fanout > 1 else to[:, 0]}
    if spec.declared.combine is not None and spec.declared.combine.weight is not None:
        inputs["weights"] = torch.rand(to.shape[:2], generator=random)
    return RankData({field.name: x}, inputs, {"tokens": len(to), "length": length})


def older_handles(group: Any, artifact: str, options: Mapping[str, Any]) -> None:
    """Combines of two dispatches in turn, and of a third along the routing of the first: where
    segments lie belongs to their handle."""
    shuffle = open_shuffle(group, artifact, num_handles=3, **options)
    spec, rank = shuffle.spec, shuffle.rank
    sizes = [[2] * shuffle.topology.num_ranks, [1 + r for r in range(shuffle.topology.num_ranks)]]
    handles, worked, results = [], [], []
    for number, each in enumerate(sizes):
        ranks = batch(spec, each, 11 + number)
        data, expected = ranks[rank], expect(spec, list(ranks))
        rows, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
        written = expected.rows[rank].written
        held = by_field(rows, spec.declared.fields[0].name)
        worked.append(work_on(spec, held, written, torch.zeros(len(written), dtype=torch.int64)))
        handles.append(handle)
        results.append(expected.results[rank])
        if not number:
            source = data.source
    _, again = shuffle.dispatch(**source, handle=handles[0])
    for number, handle in ((0, handles[0]), (1, handles[1]), (0, again), (1, handles[1])):
        result = by_field(shuffle.combine(worked[number], handle), next(iter(worked[number])))
        check_result(results[number], result)
    shuffle.check()


def changing_extents(
    group: Any,
    artifact: str,
    calls: Sequence[tuple[Sequence[int], Sequence[int]]],
    first: int,
    programs: int,
) -> list[tuple[bool, bool, int, str]]:
    """Dispatches, and combines where every rank joins and every point has a slot, of ``rows[rank]``
    and ``length[rank]``, with two handles in turn and as if there had been ``first`` calls before.
    Whether each made boxes, whether all ranks kept theirs, how many ring entries have boxes in
    another half then, and what it says. So many ``programs`` dispatch."""
    shuffle = open_shuffle(group, artifact, capacity=8, num_handles=2)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    pretend(shuffle, first)
    node, seen = shuffle.engine.node, []
    node.configure(replace(node._programs, dispatch=programs))
    taken, [field] = node._scratch["taken"], shuffle.spec.declared.source.fields
    halves = halves_of(shuffle)
    for number, (rows, lengths) in enumerate(calls):
        random = torch.Generator().manual_seed(number)
        ranks = [
            RankData(
                {"x": torch.randn(rows[r], num_ranks, *field.shape, generator=random)},
                {},
                {"rows": rows[r], "length": lengths[r]},
            )
            for r in range(num_ranks)
        ]
        if 7 <= min(lengths) <= max(lengths) <= 8:
            run(shuffle, ranks, combines=1)
            said = said_by(shuffle.check)
        else:
            own = ranks[rank]
            said = said_by(lambda own=own: shuffle.dispatch(**own.source, **own.extents))
            said += said_by(shuffle.check)
            shuffle.engine.members.meet("test")  # nothing of the call is under way any more
        before, halves = halves, halves_of(shuffle)
        turned = sum(map(ne, before, halves))
        seen.append((bool(taken[4]), bool(taken[6]), turned, said))
    return seen


def halves_of(shuffle: Shuffle) -> list[int]:
    """The half of its memory where each ring entry has the boxes that dispatch copies."""
    return [int(buffers["forth"][0]) for buffers in shuffle.engine.node._buffers]


def ranks_that_do_not_exist(
    group: Any, artifact: str, extents: Sequence[Mapping[str, int]]
) -> list[tuple[str, list[int]]]:
    """What dispatches of two rows and of these extents say, and the ranks that the boxes of either
    ring entry are for then. As many programs dispatch as could have an item, and more."""
    shuffle = open_shuffle(group, artifact, capacity=16, num_handles=2)
    node, seen = shuffle.engine.node, []
    node.configure(replace(node._programs, dispatch=8))
    [field] = shuffle.spec.declared.source.fields
    source = torch.ones(2, shuffle.topology.num_ranks, *field.shape)
    for each in extents:
        said = said_by(lambda each=each: shuffle.dispatch(x=source, rows=2, length=8, **each))
        said += said_by(shuffle.check)
        shuffle.engine.members.meet("test")
        boxes = [
            buffers["boxes_forth"].view(2, -1)[half, BOX_RANK]
            for buffers, half in zip(node._buffers, halves_of(shuffle), strict=True)
        ]
        seen.append((said, [int(rank) for rank in boxes]))
    return seen


BOX_RANK = 5  # as in kernels/device/boxes.py


def overtaken(group: Any, artifact: str, num_calls: int) -> list[bool]:
    """Whether all ranks keep their boxes in dispatches in which nothing changes, as the planner
    hears it of peers that have gone on to the next dispatch when it looks. On processors programs
    of dispatch come behind it: they find what these have told before."""
    shuffle = open_shuffle(group, artifact, capacity=8, num_handles=2)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    notes = shuffle.engine.node._memory.part("notes", torch.int32, num_ranks)
    with launching(interpreted=True):
        kept = load("kept")
    wait, renew, told = kept.sync.wait, kept.renew, notes.clone()

    def wait_too_long(call: Any, flag: Any, *rest: Any) -> Any:
        found = wait(call, flag, *rest)
        told.copy_(notes)
        notes[1 - rank] += 2
        return found

    def renew_then(*arguments: Any) -> None:
        notes.copy_(told)
        renew(*arguments)

    seen = []
    source = torch.ones(2, num_ranks, 3)
    with mock.patch.multiple(kept, sync=Patched(kept.sync, wait_too_long), renew=renew_then):
        for _ in range(num_calls):
            shuffle.dispatch(x=source, rows=2, length=8)
            seen.append(bool(shuffle.engine.node._scratch["taken"][6]))
    shuffle.check()
    return seen


class Patched:
    """A module in which something else waits."""

    def __init__(self, module: Any, wait: Any) -> None:
        self._module, self.wait = module, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def rows_of_a_late_peer(group: Any, artifact: str, seconds: float, num_calls: int) -> list[float]:
    """Elements of this rank that are wrong where a dispatch has returned, in dispatches that rank 1
    goes on with so much later than it has said that nothing is new."""
    shuffle = open_shuffle(group, artifact, capacity=8, num_handles=2)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    with launching(interpreted=True):
        kept = load("kept")
    hear = kept.hear

    def hear_late(call: Any) -> Any:
        time.sleep(seconds if rank == 1 else 0)
        return hear(call)

    wrong = []
    with mock.patch.object(kept, "hear", hear_late):
        for call in range(num_calls):
            sources = [torch.full((4, num_ranks, 3), 10.0 * call + each) for each in range(2)]
            rows, _ = shuffle.dispatch(x=sources[rank], rows=4, length=8)
            expected = torch.cat([each[:, rank] for each in sources])
            wrong.append(float((rows != expected).sum()))
    shuffle.check()
    return wrong


def flags_of_unchanging_calls(
    group: Any, artifact: str, first: int, num_calls: int
) -> dict[str, list[int]]:
    """What the flags of this rank's window are, by their peers, behind calls with two handles in
    turn in which nothing changes, as if there had been ``first`` before."""
    shuffle = open_shuffle(group, artifact, capacity=8, num_handles=2)
    num_ranks = shuffle.topology.num_ranks
    pretend(shuffle, first)
    source = {"x": torch.ones(2, num_ranks, 3)}
    ranks = [RankData(source, {}, {"rows": 2, "length": 8})] * num_ranks
    for _ in range(num_calls):
        run(shuffle, ranks, combines=1)
    shuffle.engine.members.meet("test")
    memory = shuffle.engine.node._memory
    names = ("plan_flags", "told_flags")
    return {name: memory.part(name, torch.int32, num_ranks).tolist() for name in names}


def unpacked(
    group: Any, artifact: str, tables: Sequence[Any], images: int, options: Mapping[str, Any]
) -> None:
    """Dispatches of patches to ``tables``, by rank lists of a (rank, image, row, column) for each,
    and combines."""
    _epochs_of(group, artifact, tables, "places", {"images": images}, options)


def paired(
    group: Any, artifact: str, tables: Sequence[Any], length: int, options: Mapping[str, Any]
) -> None:
    """Dispatches of pairs of rows to ``tables``, by rank lists of a (rank, slot) for each pair, and
    combines."""
    _epochs_of(group, artifact, tables, "to", {"length": length}, options)


def _epochs_of(
    group: Any,
    artifact: str,
    tables: Sequence[Any],
    name: str,
    extents: Mapping[str, int],
    options: Mapping[str, Any],
) -> None:
    """Calls whose one input is each of ``tables``."""
    shuffle = open_shuffle(group, artifact, **options)
    for number, table in enumerate(tables):
        ranks = [
            named(shuffle.spec, each, name, extents, number + rank)
            for rank, each in enumerate(table)
        ]
        run(shuffle, ranks, combines=2)
    shuffle.check()


def named(
    spec: ShuffleSpec, table: Sequence[Any], name: str, extents: Mapping[str, int], seed: int
) -> RankData:
    [outer] = [each for each in spec.declared.extents if each not in extents]
    data = RankData(
        {}, {name: torch.tensor(table, dtype=torch.int64)}, {outer: len(table), **extents}
    )
    return replace(data, source=source_of(spec, data, seed))
