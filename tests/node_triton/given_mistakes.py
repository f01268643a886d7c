"""Mistakes that the tests of given slots let processes make, and what is said of them; every
function runs on one rank."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.errors import KeyRangeError, SourceClashError
from fuscoc_runtime.reference import RankData
from tests.node_triton.given_work import bits, data_of, named, run
from tests.node_triton.rank_work import open_shuffle, said_by


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
        run(shuffle, [data_of(shuffle.spec, each, length, seed) for each in right], combines=1)

    good(1)
    data = [data_of(shuffle.spec, each, length, 7 + r) for r, each in enumerate(wrong)]
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
    run(shuffle, [data_of(shuffle.spec, each, 6, 3) for each in tables], combines=1)
    said.append(said_by(shuffle.check))
    return said


def ragged_mistakes(group: Any, artifact: str, **options: Any) -> list[tuple[str, int, int]]:
    """Pictures of 2 x 2 patches: too many, with sizes that 2 does not divide, negative or huge
    ones, and too few pixels. What ``check`` says and how many points were dropped; the call after
    each is whole."""
    shuffle = open_shuffle(group, artifact, max_sources=4, capacity=16, **options)
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


def wrong_pages(
    group: Any,
    artifact: str,
    pages: Sequence[Sequence[int]],
    places: Sequence[Any],
    **options: Any,
) -> tuple[list[str], int, list[int]]:
    """Pages of a cache to ranks and slots, by rank: what ``check`` says, how many were dropped, and
    the slots that are filled, each with a page that goes there, or with parts of two that do."""
    shuffle = open_shuffle(group, artifact, max_sources=8, capacity=16, **options)
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
        assert (bits(rows)[slot] == bits(torch.stack(sent))).any(0).all()
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


def shared_pages_again(
    group: Any, artifact: str, calls: Sequence[tuple[int, Sequence[Any]]], **options: Any
) -> list[int]:
    """Calls of caches with so many pages, some of which are given away twice, one after the other
    through all handles' memory: what combine clears, and brings back, is that of each. How many
    points ``check`` tells of after each call."""
    shuffle = open_shuffle(group, artifact, max_sources=8, capacity=16, **options)
    [field] = shuffle.spec.declared.source.fields
    random, told = torch.Generator().manual_seed(shuffle.rank), []
    for num_pages, given in calls:
        cache = torch.randn(2, num_pages, *field.shape, generator=random).bfloat16()
        sent = torch.tensor(given[shuffle.rank])
        at = torch.arange(len(sent)) + 8 * shuffle.rank
        to = torch.stack([torch.full_like(at, 1 - shuffle.rank), at], 1)
        rows, handle = shuffle.dispatch(cache, source_page=sent, destination=to, slots=16)
        result = shuffle.combine(rows.clone(), handle)
        for page in range(num_pages):
            wanted = cache[:, page] if page in sent.tolist() else torch.zeros_like(cache[:, page])
            assert torch.equal(result[:, page], wanted)
        try:
            shuffle.check()
        except SourceClashError as error:
            told.append(error.count)
        else:
            told.append(0)
    return told


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


def guarded_sources(group: Any, artifact: str, rows: Sequence[int]) -> None:
    """Dispatches of so many rows each, by more programs than there are items: a read beyond the
    source ends the process."""
    shuffle = open_shuffle(group, artifact, capacity=8, num_handles=2)
    node, num_ranks = shuffle.engine.node, shuffle.topology.num_ranks
    node.configure(replace(node._programs, dispatch=8))
    [field] = shuffle.spec.declared.source.fields
    for number, each in enumerate(rows):
        x = guarded(
            torch.arange(each * num_ranks * 4.0).view(each, num_ranks, *field.shape) + number
        )
        run(shuffle, [RankData({"x": x}, {}, {"rows": each, "length": 8})] * num_ranks, combines=0)
    shuffle.check()


def guarded(tensor: Tensor) -> Tensor:
    """A copy at the end of a page, behind which nothing may be read."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(begin + page), ctypes.c_size_t(page), 0) == 0
    held = torch.frombuffer(memory, dtype=torch.uint8, count=page)[page - tensor.nbytes :]
    copy = held.view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def pair_mistakes(
    group: Any, artifact: str, table: Sequence[Any], length: int
) -> tuple[int, set[int], list[str]]:
    """A dispatch of pairs of which some are wrong: how many points were dropped, which pairs came
    back as 0, and the kinds of errors that ``check`` raises."""
    shuffle = open_shuffle(group, artifact, max_sources=2 * len(table[0]), capacity=length)
    data = named(shuffle.spec, table[shuffle.rank], "to", {"length": length}, shuffle.rank)
    x = data.source["x"]
    rows, handle = shuffle.dispatch(x, **data.inputs, length=length)
    result = shuffle.combine(rows.clone(), handle)
    lost = {int(pair) for pair in (result == 0).all(2).any(1).nonzero().flatten()}
    said = list[str]()
    while (error := said_by(shuffle.check)) != "no error":
        said.append(error.split(":")[0])
    return int(handle.dropped), lost, said
