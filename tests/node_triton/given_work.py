"""What the tests of given slots let processes do; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.demo.verify import check_result, check_rows, expect, work_on
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_triton.rank_work import batch, open_shuffle


def epochs(
    group: Any,
    artifact: str,
    batches: Sequence[Sequence[int]],
    seed: int,
    options: Mapping[str, Any],
) -> None:
    """Dispatches and combines in a row, whose outermost extent is ``batches[i][rank]``."""
    shuffle = open_shuffle(group, artifact, **options)
    for number, sizes in enumerate(batches):
        run(shuffle, batch(shuffle.spec, sizes, seed + number), combines=1 + number % 2)
    shuffle.check()


def run(shuffle: Shuffle, ranks: Sequence[Any], combines: int) -> None:
    """One dispatch and some combines of it, compared with the reference."""
    data, spec = ranks[shuffle.rank], shuffle.spec
    expected = expect(spec, list(ranks))
    own = expected.rows[shuffle.rank]
    before = {name: each.clone() for name, each in shuffle.engine._rows.items()}
    given, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
    rows = by_field(shuffle, given)
    assert handle.num_slots == len(own.written)
    assert all(len(each) == handle.num_slots for each in rows.values())
    check_rows(own, rows, handle)
    for name, each in rows.items():  # slots that nobody names are left as they were
        assert torch.equal(bits(each)[~own.written], bits(before[name])[: len(each)][~own.written])
    assert torch.equal(handle.launched.filled, own.written)
    if expected.results is None:
        return
    worked = work_on(spec, rows, own.written, torch.zeros(len(own.written), dtype=torch.int64))
    for _ in range(combines):
        result = by_field(shuffle, shuffle.combine(worked, handle))
        check_result(expected.results[shuffle.rank], result)


def by_field(shuffle: Shuffle, given: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(given, Mapping):
        return dict(given)
    return {shuffle.spec.declared.fields[0].name: given}


def bits(tensor: Tensor) -> Tensor:
    """uint8 [entries, bytes]."""
    return tensor.contiguous().view(len(tensor), -1).view(torch.uint8)
