"""What the tests of exact sizes let processes do whose last rank, or only one, lacks memory."""

from __future__ import annotations

import errno
import mmap
import os
import time
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuscoc_runtime.comm import device_memory
from fuscoc_runtime.comm.shared_memory import SharedAllocator
from fuscoc_runtime.engine.node import exact, exact_rails
from tests.node_exact.rank_work import TIMEOUT, by_slot, close, data_of, open_shuffle, summed
from tests.node_triton.rank_work import batch, run, said_by


def out_of_memory(group: Any, artifact: str, fits: bool) -> list[str]:
    """Windows larger than the first one, or any, cannot be mapped by the last rank: what is said of
    two calls that need them. Calls as large as before, along routings so far too, and larger
    windows later are whole."""
    shuffle = open_shuffle(group, artifact)
    last = shuffle.rank == shuffle.topology.num_ranks - 1
    given = data_of(shuffle.rank, 20)
    rows, handle = shuffle.dispatch(**given)
    held, map_file = by_slot(rows, handle), SharedAllocator._map
    pages = -(-shuffle.engine.node.window_bytes // mmap.PAGESIZE)
    most_bytes = pages * mmap.PAGESIZE * shuffle.topology.num_ranks * fits
    large = partial(shuffle.dispatch, **data_of(shuffle.rank, 200))

    def scarce(self: SharedAllocator, file: str, nbytes: int) -> Any:
        if last and nbytes > most_bytes:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return map_file(self, file, nbytes)

    with mock.patch.object(SharedAllocator, "_map", scarce):
        said = [said_by(large)]
        if fits:  # else there is no window at all
            close(shuffle.combine(held, handle), summed(given))
            assert torch.equal(by_slot(*shuffle.dispatch(given["x"], handle=handle)), held)
            run(shuffle, batch(shuffle.spec, [1] * shuffle.topology.num_ranks, 1), combines=1)
        said.append(said_by(large))
    if fits:
        rows, new = large()
        close(shuffle.combine(by_slot(rows, new), new), summed(data_of(shuffle.rank, 200)))
        shuffle.check()
    else:
        said += [said_by(call) for call in (large, partial(shuffle.combine, held, handle))]
        assert shuffle.memory().window_bytes == 0
        assert said_by(shuffle.check) == said[0]
    shuffle.close()
    return said


def out_of_scratch(group: Any, artifact: str, **options: Any) -> str:
    """What is said of a call for which the last rank has no memory; the next is whole."""
    shuffle = open_shuffle(group, artifact, **options)
    none = torch.OutOfMemoryError("no memory")
    last = shuffle.rank == shuffle.topology.num_ranks - 1
    between = shuffle.topology.num_nodes > 1
    module, name = (exact_rails, "new_work") if between else (exact, "new_scratch")
    with mock.patch.object(module, name, side_effect=none if last else getattr(module, name)):
        said = said_by(partial(shuffle.dispatch, **data_of(shuffle.rank, 3)))
    run(shuffle, batch(shuffle.spec, [1] * shuffle.topology.num_ranks, 1), combines=1)
    shuffle.check()
    shuffle.close()
    return said


def out_of_memory_amid_a_call(group: Any, artifact: str, **options: Any) -> tuple[list[str], bool]:
    """The last rank has no memory for what a handle keeps of a call that the others make; what is
    said of it and of the next one, and whether that took long."""
    shuffle = open_shuffle(group, artifact, **options)
    if shuffle.rank == shuffle.topology.num_ranks - 1:
        shuffle.engine.node._kept = mock.Mock(side_effect=torch.OutOfMemoryError("no memory"))
    said = []
    for _ in range(2):
        started = time.monotonic()
        try:
            said.append(said_by(partial(shuffle.dispatch, **data_of(shuffle.rank, 3))))
        except torch.OutOfMemoryError as error:
            said.append(str(error))
    return said, time.monotonic() - started > TIMEOUT / 2


def refused_amid_a_call(group: Any, artifact: str) -> tuple[list[str], bool]:
    """The last rank refuses a combine, and cannot even say so; what is said of it and of the next
    call, and whether that took long."""
    shuffle = open_shuffle(group, artifact)
    rows, handle = shuffle.dispatch(**data_of(shuffle.rank, 3))
    rows = rows.clone()
    started = time.monotonic()
    if shuffle.rank == shuffle.topology.num_ranks - 1:
        node, none = shuffle.engine.node, torch.OutOfMemoryError("no memory")
        with mock.patch.object(node, "refuse_combine", side_effect=none):
            try:
                shuffle.combine(rows.double(), handle)
            except torch.OutOfMemoryError as error:
                said = [str(error)]
    else:
        said = [said_by(partial(shuffle.combine, rows, handle))]
    said.append(said_by(partial(shuffle.combine, rows, handle)))
    return said, time.monotonic() - started > TIMEOUT / 2


def out_of_memory_alone(group: Any, artifact: str, fits: bool) -> list[str]:
    """What a rank without peers says of two calls, if but the window so far fits, or none."""
    shuffle = open_shuffle(group, artifact)
    node, given = shuffle.engine.node, data_of(0, 12)
    most_bytes = node.window_bytes * fits

    def scarce(nbytes: int) -> Any:
        return torch.empty(1 << 62) if nbytes > most_bytes else allocate(nbytes)

    allocate, node._allocate = node._allocate, scarce
    said = [said_by(lambda: shuffle.dispatch(**given)) for _ in range(2)]
    node._allocate = allocate
    if fits:
        rows, handle = shuffle.dispatch(**given)
        close(shuffle.combine(by_slot(rows, handle), handle), summed(given))
    shuffle.close()
    return said


def gpus_out_of_memory(group: Any) -> list[str]:
    """What is said of a window of GPU memory that rank 1 has no room for, of one that both have,
    and of two of which rank 1 has no room for the former, or for the table of the latter; memory,
    its mapping and the GPU are replaced."""
    rank, torch_empty = torch.distributed.get_rank(group), torch.empty
    taken: list[int] = []

    def empty(size: tuple[int], *_: Any) -> Tensor:
        if rank == 1 and size[0] > 64:
            raise torch.OutOfMemoryError("out of memory")
        taken.append(size[0])
        return torch_empty(size, dtype=torch.uint8)

    def small(*size: Any, **options: Any) -> Tensor:
        if rank == 1 and taken[-1:] == [40]:
            raise torch.OutOfMemoryError("out of memory")
        return torch_empty(*size, **options)

    def rendezvous(local: Tensor, _: Any) -> Any:
        return mock.Mock(buffer_ptrs=[local.data_ptr()] * 2)

    with (
        mock.patch.object(device_memory._SymmetricMemory, "empty_strided_p2p", empty),
        mock.patch.object(device_memory.symmetric_memory, "rendezvous", rendezvous),
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch, "empty", small),
    ):
        return [
            said_by(partial(device_memory.allocate_symmetric, nbytes, group, torch.device("cpu")))
            for nbytes in (128, 32, 96, 40)
        ]
