"""What the tests of static shuffles without `max_sources` let processes do; every function runs on
one rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_triton.rank_work import batch, said_by
from tests.rails.exact_pieces_work import given_of
from tests.rails.exact_work import open_shuffle

DISPATCHES = 6
"""More than there is memory of handles for."""


def many_handles(group: Any, artifact: str, topology: str) -> list[str]:
    """Combines by the handles of many dispatches, the oldest first and the newest last, of rows
    that were kept; what is said of rows that a later dispatch has replaced, and of a tensor that
    another library has made of these."""
    shuffle = open_shuffle(group, artifact, topology)
    num_ranks, held = shuffle.topology.num_ranks, []
    for number in range(DISPATCHES):
        data = batch(shuffle.spec, [1] * num_ranks, number)[shuffle.rank]
        [source] = data.source.values()
        rows, handle = shuffle.dispatch(**given_of(shuffle, data))
        held.append((source, rows, rows.clone(), handle))
    assert len({handle.launched.entry.index for *_, handle in held}) < DISPATCHES
    for source, _, kept, handle in held:
        assert torch.equal(shuffle.combine(kept, handle), source)
    source, lent, _, handle = held[0]
    alias = torch.from_dlpack(lent.detach())
    said = [said_by(partial(shuffle.combine, rows, handle)) for rows in (lent, alias)]
    source, lent, _, handle = held[-1]  # calls go on
    assert torch.equal(shuffle.combine(lent, handle), source)
    return said


def said(group: Any, artifact: str, topology: str, ours: bool) -> list[str]:
    """What two dispatches of rows say, by these kernels if they are ``ours``."""
    make = open_shuffle if ours else partial(Shuffle, group=group)
    shuffle = make(group, artifact, topology) if ours else make(artifact, topology=topology)
    x = torch.ones(8, 4)
    found = [said_by(partial(shuffle.dispatch, x)) for _ in range(2)]
    shuffle.close()
    return found
