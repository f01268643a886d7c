"""What the tests let processes do; every function runs on one rank."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal

import pytest
import torch
from torch.utils._pytree import tree_map_only

from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import FuscoRuntimeError, InputError
from fuscoc_runtime.face.shuffle import Shuffle
from tests.into.models import differences, draw
from tests.node_exact.rank_work import on_the_device
from tests.waits import host_waits

Kind = Literal["general", "exact", "fixed"]
ENGINES = {"general": ProcessEngine, "exact": ExactEngine, "fixed": NodeEngine}
TABLES = ("block_table", "entry_idx", "tile_idx", "heads")
WAITS = {"exact": 1, "fixed": 0}
"""Of the host, in a dispatch."""
FIXED = {"max_sources": 16, "capacity": 64}


def open_shuffle(group: Any, artifact: str, kind: Kind, topology: str | None) -> Shuffle:
    with on_the_device() if kind == "exact" else nullcontext():
        options = FIXED if kind == "fixed" else {}
        shuffle = Shuffle(artifact, group=group, topology=topology, timeout=60.0, **options)
    assert isinstance(shuffle.engine, ENGINES[kind])
    return shuffle


def calls(
    group: Any, artifact: str, name: str, kind: Kind, topology: str | None = None
) -> list[str]:
    """What is wrong with some calls, the last of them along the routing of the one before."""
    wrong = []
    with open_shuffle(group, artifact, kind, topology) as shuffle:
        for seed in range(3):
            call = draw(name, shuffle.topology.num_ranks, seed)
            given = call.given[shuffle.rank]
            before = tree_map_only(torch.Tensor, torch.clone, given)
            memory, handle = shuffle.dispatch(**given)
            wrong += differences(call.wanted[shuffle.rank], memory)
            wrong += differences(call.wanted[shuffle.rank], given[call.memory])
            shuffle.check()
            stats, num_parts = shuffle.stats(), call.num_parts[shuffle.rank]
            assert stats is not None
            assert stats.into is not None
            assert stats.into.rows == num_parts
            assert f"into memory of the caller's {num_parts} rows" in str(stats)
        of_the_handle = ("destination", "source_page")
        again = {name: each for name, each in before.items() if name not in of_the_handle}
        memory, _ = shuffle.dispatch(**again, handle=handle)
        wrong += differences(call.wanted[shuffle.rank], memory)
        wrong += differences(call.wanted[shuffle.rank], again[call.memory])
        assert memory is not given[call.memory]
        with host_waits() as waits:
            shuffle.dispatch(**before)
        wrong += [f"waits: {waits}"] if len(waits) > WAITS.get(kind, len(waits)) else []
        table = next(n for n in TABLES if n in again)
        again[table] = again[table][:-1]
        with pytest.raises(InputError, match=r"`handle` on rank \d is of a dispatch with"):
            shuffle.dispatch(**again, handle=handle)
    return wrong


def mistakes(
    group: Any, artifact: str, kind: Kind, topology: str | None = None
) -> list[tuple[str, bool]]:
    """What rank 1 is told of tables that are wrong there alone, and whether its cache changed."""
    found = []
    with open_shuffle(group, artifact, kind, topology) as shuffle:
        for table in ([0, 7, 1], [2, 1, 2]):
            pages = torch.arange(4.0).view(1, 4, 1).expand(1, 4, 8).bfloat16().contiguous() + 1
            cache = torch.zeros(1, 4, 8, dtype=torch.bfloat16)
            destination = torch.tensor([[1 - shuffle.rank, slot] for slot in range(3)])
            blocks = torch.tensor(table if shuffle.rank else [0, 1, 2])
            given = {"x": pages.view(1, 4, 1, 2, 1, 4), "cache": cache.view(1, 4, 1, 2, 1, 4)}
            said = "no error"
            try:
                shuffle.dispatch(
                    **given,
                    source_page=torch.arange(3),
                    destination=destination,
                    block_table=blocks,
                )
                shuffle.check()
            except FuscoRuntimeError as error:
                said = str(error)
            found.append((said, cache[0, :, 0].tolist()))
    return found
