"""Mistakes in calls of the CUDA kernels for given slots and segments with places, which
`dense_run.py` makes on GPUs: they are told and counted, and whatever else moves is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from fuscoc_runtime.engine.node.state import Trouble
from tests.cuda.dense_cases import CASES
from tests.cuda.dense_node import Dense, in_bytes, ranks_of


def mistakes(folder: Path, device: torch.device, case: str = "kv_pages") -> list[str]:
    """Destinations that are none, or another's: not moved, counted and named; others arrive. Pages
    that are pieces are dropped whole, and who has a slot that is given twice finds it."""
    path, name, wrong = folder / case, "destination", []
    data = ranks_of(path, CASES[case].tokens, range(1))
    dense = Dense(path, data, device)
    num_ranks, length = dense.num_ranks, dense.num_slots(0, data[0][0])
    sender = data[0][0]
    pages = sender.inputs["source_page"]
    live = ((sender.inputs[name] != -1).all(1) & (pages != -1)).nonzero()
    first, second, third, fourth, fifth = live.flatten()[:5].tolist()
    good = sender.inputs[name].clone()
    kept = good.clone()
    kept[[first, second, third, fifth]] = -1  # what is left of the call in the reference's eyes
    bad = good.clone()
    bad[first, 1], bad[second, 0], bad[third, 1] = length, num_ranks, -7
    bad[fifth] = bad[fourth]  # either of them is moved: their pages hold the same
    source = {field: each.clone() for field, each in sender.source.items()}
    for each in source.values():
        each[:, pages[fifth]] = each[:, pages[fourth]]
    right = [replace(sender, source=source, inputs={**sender.inputs, name: kept}), *data[0][1:]]
    batch = dense.batch(right)
    given = {**batch.inputs, name: bad.to(device)}
    dense.dispatch(batch)  # pages like these are then known before the ranks have met
    before = dense.troubles()
    dense.wipe()
    torch.cuda.synchronize()
    dist.barrier()
    handle = dense.dispatch(replace(batch, inputs=given) if dense.rank == 0 else batch)
    torch.cuda.synchronize()
    if count := int(dense.wrong_rows(batch, handle)):
        wrong.append(f"{count} rows beside mistakes")
    pieces = handle.claims is None
    wanted = {"DestinationError": 3} if dense.rank == 0 else {}
    if dense.rank == (int(bad[fourth, 0]) if pieces else 0):
        wanted["SlotClashError"] = 1
    if dense.errors(before) != wanted:
        wrong.append(f"mistakes are told as {dense.errors(before)}, not {wanted}")
    if dense.rank == 0 and int(handle.dropped) != 4 - pieces:
        wrong.append(f"{int(handle.dropped)} points were dropped, not {4 - pieces}")
    return wrong


def piece_mistakes(folder: Path, device: torch.device) -> list[str]:
    return mistakes(folder, device, "kv_long_pages")


def shared_pages(folder: Path, device: torch.device, case: str = "kv_pages") -> list[str]:
    """A page that is given away twice: told, and what other pages get back is theirs. A piece is
    moved all the same; of points the second one is not."""
    path, wrong = folder / case, []
    data = ranks_of(path, CASES[case].tokens, range(1))
    dense = Dense(path, data, device)
    sender = data[0][0]
    pages = sender.inputs["source_page"].clone()
    live = ((sender.inputs["destination"] != -1).all(1) & (pages != -1)).nonzero()
    first, second = live.flatten()[:2].tolist()
    pages[second] = pages[first]
    right = replace(sender, inputs={**sender.inputs, "source_page": pages})
    batch = dense.batch([right, *data[0][1:]])
    before = dense.troubles()
    torch.cuda.synchronize()
    dist.barrier()
    handle = dense.dispatch(batch)
    [(field, result)] = dense.combine(batch, handle).items()
    torch.cuda.synchronize()
    wanted = {"SourceClashError": 1} if dense.rank == 0 else {}
    if dense.errors(before) != wanted:
        wrong.append(f"a page that is shared is told as {dense.errors(before)}, not {wanted}")
    dropped = int(handle.dropped) if dense.rank == 0 else 0
    if dropped != (dense.rank == 0 and handle.claims is not None):
        wrong.append(f"{dropped} points were dropped")
    others = [page for page in range(result.shape[1]) if dense.rank or page != pages[first]]
    if not torch.equal(in_bytes(result[:, others]), in_bytes(batch.result[field][:, others])):
        wrong.append("other pages differ")
    return wrong


def shared_pieces(folder: Path, device: torch.device) -> list[str]:
    return shared_pages(folder, device, "kv_long_pages")


def entry_mistakes(folder: Path, device: torch.device) -> list[str]:
    """The same of entries of ten points each, that keep no box."""
    path, name, points, wrong = folder / "entries", "places_of", 10, []
    data = ranks_of(path, CASES["entries"].tokens, range(1))
    dense = Dense(path, data, device)
    sender = data[0][0]
    places = sender.inputs[name].flatten(0, 1)
    live = (places != -1).all(1).nonzero().flatten()
    first, second, third, fourth, fifth = live[:5].tolist()
    kept, bad = places.clone(), places.clone()
    kept[[first, second, third, fifth]] = -1
    bad[first, 1], bad[second, 0], bad[third, 1] = dense.num_slots(0, sender), dense.num_ranks, -7
    bad[fifth] = bad[fourth]  # either of them is moved: their rows are alike
    source = {each: rows.clone() for each, rows in sender.source.items()}
    for rows in source.values():
        entries = rows.view(len(places), points, -1)
        entries[fifth] = entries[fourth]
    shape = sender.inputs[name].shape
    right = replace(sender, source=source, inputs={name: kept.view(shape)})
    batch = dense.batch([right, *data[0][1:]])
    given = replace(batch, inputs={name: bad.view(shape).to(device)})
    before = dense.troubles()
    dense.wipe()
    torch.cuda.synchronize()
    dist.barrier()
    handle = dense.dispatch(given if dense.rank == 0 else batch)
    torch.cuda.synchronize()
    if count := int(dense.wrong_rows(batch, handle)):
        wrong.append(f"{count} rows beside mistakes")
    wanted = {"DestinationError": 3 * points} if dense.rank == 0 else {}
    if dense.rank == int(bad[fourth, 0]):
        wanted["SlotClashError"] = points
    if dense.errors(before) != wanted:
        wrong.append(f"mistakes are told as {dense.errors(before)}, not {wanted}")
    if dense.rank == 0 and int(handle.dropped) != 3 * points:
        wrong.append(f"{int(handle.dropped)} points were dropped, not {3 * points}")
    return wrong


def ragged_mistakes(folder: Path, device: torch.device) -> list[str]:
    """More segments than there is room for, and sizes that are none."""
    path, wrong = folder / "vit_patches", []
    data = ranks_of(path, CASES["vit_patches"].tokens, range(1))
    few = Dense(path, data, device, spare=-2)
    batch = few.batch(data[0])
    few.dispatch(batch)
    torch.cuda.synchronize()
    excess = max(0, batch.num_sources - few.node.limits.max_sources)
    if few.errors(Trouble()) != ({"ExcessError": excess} if excess else {}):
        wrong.append(f"an excess of {excess} is told as {few.errors(Trouble())}")
    for change in ("height", "width"):
        before = few.troubles()
        odd = {**batch.inputs, change: batch.inputs[change] + 1}
        handle = few.dispatch(replace(batch, inputs=odd))
        torch.cuda.synchronize()
        there = len(odd[change]) > 0
        if few.errors(before) != ({"SizesError": 1} if there else {}):
            wrong.append(f"an odd {change} is told as {few.errors(before)}")
        if bool(handle.filled.any()) or (handle.codes >= 0).any():
            wrong.append(f"something was moved in spite of an odd {change}")
    return wrong


def tables(folder: Path, device: torch.device) -> list[str]:
    """The last rank gives another table by which keys are placed: that is told on every rank,
    nothing is moved, and the call behind it is whole."""
    path, name, wrong = folder / "packed_turned", "owner", list[str]()
    dense = Dense(path, ranks_of(path, CASES["packed_turned"].tokens, range(2)), device)
    for number, data in enumerate(ranks_of(path, CASES["packed_turned"].tokens, range(2))):
        batch = dense.batch(data, number)
        owner = batch.inputs[name].clone()
        if dense.rank == dense.num_ranks - 1:
            owner[0] = (owner[0] + 1) % dense.num_ranks
        for differs in (True, False):
            before = dense.troubles()
            dense.wipe()
            torch.cuda.synchronize()
            dist.barrier()
            given = replace(batch, inputs={**batch.inputs, name: owner}) if differs else batch
            handle = dense.dispatch(given)
            result = dense.combine(batch, handle)
            torch.cuda.synchronize()
            if dense.errors(before) != ({"TablesDifferError": 1} if differs else {}):
                wrong.append(f"tables are told as {dense.errors(before)}")
            wanted = batch
            if differs:
                nothing = {each: torch.zeros_like(rows) for each, rows in batch.result.items()}
                counts = (0,) * len(batch.key_counts)
                filled = torch.zeros_like(batch.filled)
                wanted = replace(batch, filled=filled, key_counts=counts, result=nothing)
            if count := int(dense.wrong_rows(wanted, handle)):
                wrong.append(f"{count} rows")
            if count := int(dense.wrong_result(wanted, result)):
                wrong.append(f"{count} elements of the result")
    return wrong


MISTAKES = {
    "mistakes": mistakes,
    "mistakes of pieces": piece_mistakes,
    "pages that are shared": shared_pages,
    "pieces that are shared": shared_pieces,
    "mistakes of entries": entry_mistakes,
    "ragged mistakes": ragged_mistakes,
}
"""What is wrong in a folder's cases on a device, by what is done there."""
