"""What printed CUDA text says of every point of a dense target, against the reference.

The text is compiled for the host: that is all of it but the kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuscoc_runtime import reference
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.packing import domain_points
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node.call import Call
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, scope_of
from fuscoc_runtime.scalar import Scope, builtin_extents, evaluate
from fuscoc_runtime.topology import Topology
from tests.cuda.dense_cases import CASES, GIVEN
from tests.cuda.host import host_library

NUM_RANKS = 4


@pytest.mark.parametrize("name", GIVEN)
def test_points_and_places(name: str, dense: Callable[..., Path], tmp_path: Path) -> None:
    artifact = load_artifact(dense(name) / name)
    shuffle = artifact.shuffle(None)
    assert shuffle.cuda is not None
    library = host_library(artifact.code[shuffle.cuda.variants[0].file].decode(), tmp_path)
    ranks = generate(shuffle, Topology(1, NUM_RANKS), CASES[name].tokens, seed=3)
    deliveries, _ = reference.route(shuffle, ranks)
    assert deliveries
    for rank, data in enumerate(ranks):
        points = domain_points_of(shuffle, data, rank)
        call, kept = call_of(shuffle, data, rank, points)
        if shuffle.cuda.pieces is not None:
            check_pieces(library, shuffle, call, rank, deliveries, len(points))
            continue
        found = np.empty((len(points), 2 + library.num_words()), dtype=np.int64)
        library.destinations(ctypes.byref(call), ctypes.c_longlong(len(points)), address(found))
        mine = {each.origin.point: each for each in deliveries if each.origin.rank == rank}
        for point in range(len(points)):
            if point not in mine:
                assert found[point, 0] == -1
                continue
            to = mine[point]
            assert tuple(found[point, :2]) == (to.rank, to.slot)
            place = np.ascontiguousarray(found[point, 2:])
            call.places = place.ctypes.data
            if point > 40:  # the rest is slow, and the same
                continue
            for number, field in enumerate(shuffle.declared.source.fields):
                cell = TORCH_DTYPES[field.dtype].itemsize * field.num_elems
                wanted = to.origin.cells.numpy()[:, None] * cell + np.arange(cell)
                offsets = np.empty(wanted.size, dtype=np.int64)
                library.offsets(
                    ctypes.byref(call), ctypes.c_longlong(0), ctypes.c_int(number), address(offsets)
                )
                assert (offsets == wanted.ravel()).all()
        del kept


def check_pieces(
    library: ctypes.CDLL,
    shuffle: ShuffleSpec,
    call: Call,
    rank: int,
    deliveries: list[reference.Delivery],
    num_points: int,
) -> None:
    """Points of pieces are in no order, but slots tell them apart."""
    words = 2 + library.num_words()
    found = np.empty(num_points * words, dtype=np.int64)
    library.destinations.restype = ctypes.c_longlong
    assert library.destinations(ctypes.byref(call), address(found)) == found.size
    there = found.reshape(-1, words)
    there = there[(there[:, 0] >= 0) & (there[:, 0] < NUM_RANKS)]
    places = {(int(to), int(slot)): place for to, slot, *place in there}
    mine = [each for each in deliveries if each.origin.rank == rank]
    assert len(places) == len(there) == len(mine)
    for each in mine:
        place = np.array(places[each.rank, each.slot], dtype=np.int64)
        for number, field in enumerate(shuffle.declared.source.fields):
            cell = TORCH_DTYPES[field.dtype].itemsize * field.num_elems
            wanted = each.origin.cells.numpy()[:, None] * cell + np.arange(cell)
            offsets = np.empty(wanted.size, dtype=np.int64)
            library.offsets(address(place), ctypes.c_int(number), address(offsets))
            assert (offsets == wanted.ravel()).all()


def domain_points_of(shuffle: ShuffleSpec, data: RankData, rank: int) -> list[Scope]:
    extents = {**data.extents, **builtin_extents(rank, NUM_RANKS)}
    here = scope_of(replace(data, extents=extents))
    return list(domain_points(shuffle.declared.domain, here))


def call_of(
    shuffle: ShuffleSpec, data: RankData, rank: int, points: list[Scope]
) -> tuple[Call, list[object]]:
    """The arguments of a call, and what must outlive it."""
    num_sources = len(points) // shuffle.program.num_points_each(NUM_RANKS)
    call = Call(rank=rank, num_ranks=NUM_RANKS, num_sources=num_sources)
    kept = list[object]()
    for number, name in enumerate(shuffle.program.inputs):
        tensor = data.inputs[name].contiguous()
        kept.append(tensor)
        call.inputs[number] = tensor.data_ptr()
    for number, name in enumerate(shuffle.program.extents):
        call.extents[number] = data.extents[name]
    if shuffle.program.relation.extents_kernel is not None:
        outer_name = shuffle.declared.domain[0].name
        outer = np.array([each.indices[outer_name] for each in points], dtype=np.int64)
        scope = Scope(data.extents, data.inputs)
        num_outer = evaluate(shuffle.declared.domain[0].extent, scope)
        cells = [
            np.prod(
                [
                    evaluate(dim, scope.at({outer_name: n}))
                    for dim in shuffle.declared.source.dims[1:]
                ]
            )
            for n in range(num_outer)
        ]
        tables = (
            outer,
            np.searchsorted(outer, np.arange(num_outer + 1)).astype(np.int64),
            np.concatenate([[0], np.cumsum(cells)]).astype(np.int64),
        )
        kept += tables
        call.outer, call.points_before, call.cells_before = (each.ctypes.data for each in tables)
    return call, kept


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
