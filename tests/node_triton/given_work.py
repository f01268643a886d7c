"""What the tests of given slots let processes do; every function runs on one rank."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.demo.verify import (
    Expected,
    MismatchError,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.errors import KeyRangeError
from fuscoc_runtime.face.shuffle import Shuffle
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
    rank, spec = shuffle.rank, shuffle.spec
    data, own = ranks[rank], expected.rows[rank]
    wrong = []
    rows, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
    num_slots = len(own.written)
    num_rows = own.num_rows if spec.program.is_compact else num_slots
    fields = by_field(rows, spec.declared.fields[0].name)
    try:
        check_rows(own, {name: each[:num_rows] for name, each in fields.items()}, handle)
    except MismatchError as error:
        wrong.append(str(error))
    if expected.results is not None:
        worked = work_on(spec, own.fields, own.written, slot_keys(own))
        outputs = filled_up(worked, handle.num_slots)
        result = shuffle.combine(outputs, handle)
        try:
            check_result(expected.results[rank], by_field(result, next(iter(outputs))))
        except MismatchError as error:
            wrong.append(str(error))
    if (said := said_by(shuffle.check)) != "no error":
        wrong.append(said)
    shuffle.close()
    return wrong


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
            _data(shuffle.spec, each, length, number + rank) for rank, each in enumerate(table)
        ]
        run(shuffle, ranks, combines=2)
    shuffle.check()


def _data(spec: ShuffleSpec, table: Sequence[Any], length: int, seed: int) -> RankData:
    fanout = spec.program.fanout
    to = torch.tensor(table, dtype=torch.int64).view(len(table), fanout, 2)
    random = torch.Generator().manual_seed(seed)
    [field] = spec.declared.source.fields
    x = torch.randn(len(to), *field.shape, generator=random).to(TORCH_DTYPES[field.dtype])
    inputs = {"to": to if fanout > 1 else to[:, 0]}
    if spec.declared.combine is not None and spec.declared.combine.weight is not None:
        inputs["weights"] = torch.rand(to.shape[:2], generator=random)
    return RankData({field.name: x}, inputs, {"tokens": len(to), "length": length})


def mistaken(
    group: Any,
    artifact: str,
    wrong: Sequence[Any],
    right: Sequence[Any],
    length: int,
    **options: Any,
) -> tuple[list[str], list[int], int, Tensor]:
    """A dispatch to the tables ``wrong`` between two to ``right`` ones: what ``check`` says after
    it, which segments of this rank came back as 0, how many points were dropped, and the slots
    that hold something. Everything else is as it should be."""
    shuffle = open_shuffle(group, artifact, capacity=length + 2, **options)
    rank = shuffle.rank

    def good(seed: int) -> None:
        run(shuffle, [_data(shuffle.spec, each, length, seed) for each in right], combines=1)

    good(1)
    data = [_data(shuffle.spec, each, length, 7 + r) for r, each in enumerate(wrong)]
    x = data[rank].source["x"]
    rows, handle = shuffle.dispatch(x, **data[rank].inputs, length=length)
    held = rows.clone()
    result = shuffle.combine(held, handle)
    lost = (result == 0).all(1)
    assert torch.equal(result[~lost], x[~lost])
    segments = [row.tolist() for each in data for row in each.source["x"]]
    filled = handle.launched.filled.clone()
    assert all(row.tolist() in segments for row in held[filled])
    said = []
    while not said or said[-1] != "no error":
        said.append(said_by(shuffle.check))
    good(2)
    return said, lost.nonzero().flatten().tolist(), int(handle.dropped), filled.nonzero().flatten()


def one_has_too_many_slots(group: Any, artifact: str) -> list[str]:
    """Rank 1 has a longer target than there is room for: it refuses the call, whose other rows and
    results are whole. Segments that went to it come back as NaN."""
    shuffle = open_shuffle(group, artifact, capacity=6)
    rank = shuffle.rank
    x = torch.rand(3, 3)
    to = torch.tensor([[r, rank] for r in range(3)])
    said, handle = [], None

    def dispatch() -> None:
        nonlocal handle
        _, handle = shuffle.dispatch(x, to=to, length=7 if rank == 1 else 5)

    said.append(said_by(dispatch))
    if rank != 1:
        rows = torch.full((5, 3), 2.0)
        result = shuffle.combine(rows, handle)
        assert result.isnan().all(1).tolist() == [False, True, False]
        assert torch.equal(result[[0, 2]], torch.full((2, 3), 2.0))
    said.append(said_by(shuffle.check))
    shuffle.engine.members.meet("test")  # no rows for the refused call are under way any more
    tables = [[(r, 5 - rank) for r in range(3)] for rank in range(3)]
    run(shuffle, [_data(shuffle.spec, each, 6, 3) for each in tables], combines=1)
    said.append(said_by(shuffle.check))
    return said


def ragged_mistakes(group: Any, artifact: str) -> list[tuple[str, int, int]]:
    """Pictures of 2 x 2 patches: too many, with sizes that 2 does not divide, negative or huge
    ones, and too few pixels. What ``check`` says and how many points were dropped; the call after
    each is whole."""
    shuffle = open_shuffle(group, artifact, max_sources=4, capacity=16)
    rank, said = shuffle.rank, []
    cases = [
        ([[4, 4], [2, 4], [2, 2]], 28),  # 4, 2 and 1 patches
        ([[4, 3]], 12),
        ([[-2, -2]], 4),
        ([[2**40, 2**40]], 4),
        ([[2, 4], [2, 2]], 11),
    ]
    for sizes, num_pixels in cases:
        height, width = torch.tensor(sizes).T.contiguous()
        pictures = torch.arange(3 * num_pixels, dtype=torch.uint8).view(-1, 3)
        first = 8 * rank + torch.tensor([0, 4, 6][: len(sizes)])
        packing = torch.stack([torch.zeros_like(first), first], 1)
        given = {"height": height, "width": width, "packing": packing, "length": 16}
        _, handle = shuffle.dispatch(pictures, **given)
        result = shuffle.combine(torch.full((16, 2, 2, 3), 9, dtype=torch.uint8), handle)
        moved = result.view(-1, 3).eq(9).all(1).sum() // 4
        assert torch.equal(result, torch.where(result == 9, 9, torch.zeros_like(result)))
        said.append((said_by(shuffle.check), int(handle.dropped), int(moved)))
        assert said_by(shuffle.check) == "no error"
    return said


def gradients(
    group: Any, artifact: str, tables: Sequence[Any], length: int, **options: Any
) -> None:
    """Of rows and weights through two layers; slots that nobody fills are 0."""
    shuffle = open_shuffle(group, artifact, capacity=length + 2, **options)
    data = _data(shuffle.spec, tables[shuffle.rank], length, shuffle.rank)
    x, to = data.source["x"].requires_grad_(), data.inputs["to"]
    weighted = "weights" in data.inputs
    leaves = [x, *([data.inputs["weights"].requires_grad_()] if weighted else [])]

    def fused(x: Tensor, *weights: Tensor) -> Tensor:
        named = {"weights": weights[0]} if weights else {}
        rows, handle = shuffle.dispatch(x, to=to, length=length, **named)
        assert not rows[~handle.launched.filled].any()
        return shuffle.combine(rows.sin(), handle)

    def plain(x: Tensor, *weights: Tensor) -> Tensor:
        lives = (to.view(len(to), -1, 2)[:, :, 0] >= 0).float()
        factor = lives * weights[0] if weights else lives
        return x.sin() * factor.sum(1, keepdim=True)

    found, wanted = (
        torch.autograd.grad(layer(layer(*leaves), *leaves[1:]).square().sum(), leaves)
        for layer in (fused, plain)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    shuffle.check()


def wrong_pages(
    group: Any, artifact: str, pages: Sequence[Sequence[int]], places: Sequence[Any]
) -> tuple[list[str], int, list[int]]:
    """Pages of a cache to ranks and slots, by rank: what ``check`` says, how many were dropped, and
    the slots that are filled, each with a page that goes there."""
    shuffle = open_shuffle(group, artifact, max_sources=8, capacity=16)
    caches = [
        torch.randn(2, 5, 4, 2, 8, 64, generator=torch.Generator().manual_seed(rank)).bfloat16()
        for rank in range(len(pages))
    ]
    inputs = torch.tensor(pages[shuffle.rank]), torch.tensor(places[shuffle.rank])
    rows, handle = shuffle.dispatch(
        caches[shuffle.rank], source_page=inputs[0], destination=inputs[1], slots=16
    )
    filled = handle.launched.filled.nonzero().flatten().tolist()
    for slot in filled:
        sent = [
            caches[rank][:, page].flatten()
            for rank, (own, to) in enumerate(zip(pages, places, strict=True))
            for page, place in zip(own, to, strict=True)
            if list(place) == [shuffle.rank, slot] and 0 <= page < 5
        ]
        assert any(torch.equal(bits(rows)[slot], bits(each[None])[0]) for each in sent)
    return [said_by(shuffle.check), said_by(shuffle.check)], int(handle.dropped), filled


def shared_pages(
    group: Any,
    artifact: str,
    pages: Sequence[Sequence[int]],
    places: Sequence[Any],
    **options: Any,
) -> tuple[list[str], int]:
    """As ``wrong_pages``, of pages that come back, some of them given away twice: what ``check``
    says, and how many points were dropped. Every page is back that moved, as one that was there."""
    shuffle = open_shuffle(group, artifact, max_sources=8, capacity=16, **options)
    [field] = shuffle.spec.declared.source.fields
    random = torch.Generator().manual_seed(shuffle.rank)
    cache = torch.randn(2, 5, *field.shape, generator=random).bfloat16()
    sent, to = torch.tensor(pages[shuffle.rank]), torch.tensor(places[shuffle.rank])
    rows, handle = shuffle.dispatch(cache, source_page=sent, destination=to, slots=16)
    result = shuffle.combine(rows.clone(), handle)
    for page in range(5):
        wanted = cache[:, page] if page in sent.tolist() else torch.zeros_like(cache[:, page])
        assert torch.equal(result[:, page], wanted)
    return [said_by(shuffle.check), said_by(shuffle.check)], int(handle.dropped)


def missing_places(group: Any, artifact: str) -> list[str]:
    """How many points were told to have no key, of two whose groups do not exist."""
    shuffle = open_shuffle(group, artifact)
    keys = torch.tensor([-1, 1, 2, 3, 4])
    groups = torch.tensor([[0, 7], [-2, 1], [-1, 2]])
    x = torch.rand(3, 3)
    rows, handle = shuffle.dispatch(x, groups=groups, keys=keys)
    result = shuffle.combine(rows, handle)
    assert torch.equal(result, x * torch.tensor([[0.0], [1.0], [1.0]]))
    assert int(handle.dropped) == 2
    try:
        shuffle.check()
    except KeyRangeError as error:
        return [str(error.count), said_by(shuffle.check)]
    return []


def without_capacity(group: Any, artifact: str) -> str:
    return said_by(lambda: open_shuffle(group, artifact, capacity=None))


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
    group: Any, artifact: str, calls: Sequence[tuple[Sequence[int], Sequence[int]]], first: int
) -> list[tuple[int, str]]:
    """Dispatches, and combines where every rank joins and every point has a slot, of ``rows[rank]``
    and ``length[rank]``, with two handles in turn and as if there had been ``first`` calls before.
    Whether each made boxes, and what it says."""
    shuffle = open_shuffle(group, artifact, capacity=8, num_handles=2)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    pretend(shuffle, first)
    taken, seen = shuffle.engine.node._scratch["taken"], []
    for number, (rows, lengths) in enumerate(calls):
        random = torch.Generator().manual_seed(number)
        ranks = [
            RankData(
                {"x": torch.randn(rows[r], num_ranks, 3, generator=random)},
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
        seen.append((int(taken[4]), said))
    return seen


def guarded_sizes(group: Any, artifact: str, widths: Sequence[int]) -> tuple[str, int]:
    """What a dispatch of rows in 4 parts of so many sizes says, and how many slots it fills: a read
    beyond an input of the relation ends the process."""
    shuffle = open_shuffle(group, artifact, capacity=64, max_sources=64)
    num_cells = 4 * sum(widths) if 0 <= min(widths) <= max(widths) < 100 else 8
    places = torch.full((len(widths), 4, 2), shuffle.rank)
    places[..., 1] = torch.arange(4 * len(widths)).view(-1, 4) * 6
    inputs = {"width": guarded(torch.tensor(widths)), "places_of": guarded(places)}
    _, handle = shuffle.dispatch(torch.zeros(num_cells, 3), **inputs, length=64)
    return said_by(shuffle.check), int(handle.launched.filled.sum())


def guarded(tensor: Tensor) -> Tensor:
    """A copy at the end of a page, behind which nothing may be read."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(begin + page), ctypes.c_size_t(page), 0) == 0
    held = torch.frombuffer(memory, dtype=torch.uint8, count=page)[page - tensor.nbytes :]
    copy = held.view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def compiled(group: Any, artifact: str, tables: Sequence[Any], length: int) -> None:
    """A compiled layer, whose rows are as many as the target is long."""
    shuffle = open_shuffle(group, artifact, capacity=length + 2)
    data = _data(shuffle.spec, tables[shuffle.rank], length, shuffle.rank)
    x, to = data.source["x"], data.inputs["to"]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        rows, handle = shuffle.dispatch(x, to=to, length=length)
        return rows.sum(), shuffle.combine(2 * rows, handle)

    x.requires_grad_()
    lives = (to.view(len(to), -1, 2)[:, :, 0] >= 0).sum(1, keepdim=True)
    for _ in range(2):
        _, result = layer(x, to)
        torch.testing.assert_close(result, 2 * x * lives)
        (grad,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(grad, 2 * torch.ones_like(x) * lives)
    shuffle.check()


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
            _named(shuffle.spec, each, name, extents, number + rank)
            for rank, each in enumerate(table)
        ]
        run(shuffle, ranks, combines=2)
    shuffle.check()


def _named(
    spec: ShuffleSpec, table: Sequence[Any], name: str, extents: Mapping[str, int], seed: int
) -> RankData:
    [outer] = [each for each in spec.declared.extents if each not in extents]
    data = RankData(
        {}, {name: torch.tensor(table, dtype=torch.int64)}, {outer: len(table), **extents}
    )
    return replace(data, source=source_of(spec, data, seed))


def pair_mistakes(
    group: Any, artifact: str, table: Sequence[Any], length: int
) -> tuple[int, set[int], list[str]]:
    """A dispatch of pairs of which some are wrong: how many points were dropped, which pairs came
    back as 0, and the kinds of errors that ``check`` raises."""
    shuffle = open_shuffle(group, artifact, max_sources=2 * len(table[0]), capacity=length)
    data = _named(shuffle.spec, table[shuffle.rank], "to", {"length": length}, shuffle.rank)
    x = data.source["x"]
    rows, handle = shuffle.dispatch(x, **data.inputs, length=length)
    result = shuffle.combine(rows.clone(), handle)
    lost = {int(pair) for pair in (result == 0).all(2).any(1).nonzero().flatten()}
    said = list[str]()
    while (error := said_by(shuffle.check)) != "no error":
        said.append(error.split(":")[0])
    return int(handle.dropped), lost, said
