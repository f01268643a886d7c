"""What the tests of results that are lent let processes do; every function runs on one rank."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.windows import allocator
from fuscoc_runtime.engine.node import pieces, triton_pieces
from fuscoc_runtime.face import open as opening
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.kernels.device import load
from fuscoc_runtime.kernels.loader import launching
from tests.engine.lent_memory import Results
from tests.node_triton.given_work import run
from tests.node_triton.rank_work import batch, open_shuffle, said_by

FEW_SMS = 16
UNTOUCHED = 77  # in every byte of a result before a call


class Unwritten(Results):
    """Results of bytes that nobody has written."""

    def empty(self, *given: Any, **named: Any) -> Tensor:
        result = super().empty(*given, **named)
        result.view(-1).view(torch.uint8).fill_(UNTOUCHED)
        return result


def results_of(nbytes: int, members: Membership, device: torch.device) -> Results:
    beside = replace(members, store=PrefixStore("results", members.store))
    return Unwritten(allocator(beside), members.rank, nbytes)


def opened(group: Any, artifact: str, **options: Any) -> tuple[Shuffle, list[bool]]:
    """A shuffle whose results are lent, as on few SMs, and whether those of its combines were."""
    patches = [
        mock.patch.object(opening, "sms_to_use", return_value=FEW_SMS),
        mock.patch.object(pieces, "LENT_BYTES", 0),
        mock.patch.object(triton_pieces, "node_group", lambda members: members),
        mock.patch.object(triton_pieces, "result_memory", results_of),
    ]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        shuffle = open_shuffle(group, artifact, **options)
    node, found = shuffle.engine.node, list[bool]()
    assert isinstance(node.results, Results)
    assert shuffle.engine.results is node.results
    combine, rank, num_ranks = node.combine, shuffle.rank, shuffle.topology.num_ranks
    arrived = node._memory.part("arrived", torch.int64, num_ranks)

    def noted(*given: Any) -> Any:
        before = arrived.clone()
        results = combine(*given)
        changed = (arrived != before).tolist()
        found.append(all(changed[:rank] + changed[rank + 1 :]))
        assert found[-1] == any(changed)
        return results

    node.combine = noted
    return shuffle, found


def dispatches_by(group: Any, artifact: str, options: Mapping[str, Any], sms: int | None) -> str:
    """The kernel that dispatches of a shuffle on so many SMs launch, by its role."""
    with mock.patch.object(opening, "sms_to_use", return_value=sms):
        node = open_shuffle(group, artifact, **options).engine.node
    launched = node._program.kernels["dispatch"].spec.name
    return next(role for role, name in node.spec.kernels.items() if name == launched)


def calls(
    group: Any, artifact: str, batches: Sequence[Sequence[int]], options: Mapping[str, Any]
) -> list[list[bool]]:
    """Which results are lent where all ranks lend theirs, where some by turns do not, and then;
    each is compared with the reference."""
    shuffle, found = opened(group, artifact, **options)
    spec, results, seen = shuffle.spec, shuffle.engine.results, list[list[bool]]()
    for elsewhere in (0, shuffle.topology.num_ranks + 1, 0):
        results.elsewhere = elsewhere
        for number, sizes in enumerate(batches):
            run(shuffle, batch(spec, sizes, number), combines=2)
        seen.append(found.copy())
        found.clear()
    shuffle.check()
    return seen


def one_does_not_join(
    group: Any, artifact: str, options: Mapping[str, Any]
) -> tuple[list[bool], list[bool], list[str]]:
    """The last rank refuses a combine, and leaves another one for its next dispatch: whether
    results of this rank lack rows then, which are lent, and what it says."""
    shuffle, found = opened(group, artifact, **options)
    spec, rank, num_ranks = shuffle.spec, shuffle.rank, shuffle.topology.num_ranks
    ranks, lacks, said = batch(spec, [1] * num_ranks, 5), list[bool](), list[str]()
    run(shuffle, ranks, combines=1)
    for leaves in (False, True):
        rows, handle = shuffle.dispatch(**ranks[rank].source, **ranks[rank].extents)
        worked = rows.clone()
        if rank < num_ranks - 1:
            lacks.append(bool(shuffle.combine(worked, handle).isnan().any()))
        elif leaves:
            assert "`handle` on rank" in said_by(
                lambda worked=worked: shuffle.combine(worked, None)
            )
        else:
            refuses = partial(shuffle.combine, worked.double(), handle)
            assert "InputError" in said_by(refuses)
        said.append(said_by(shuffle.check))
        run(shuffle, ranks, combines=2)
    return lacks, found, said


def one_looks_late(group: Any, artifact: str, options: Mapping[str, Any]) -> list[bool]:
    """Two combines of a source of rank 0's alone. Rank 1, which gets nothing, keeps its first
    result, and lends the second one before rank 0 looks whether it has lent the first."""
    shuffle, found = opened(group, artifact, **options)
    results, rank = shuffle.engine.results, shuffle.rank
    ranks, keeps = batch(shuffle.spec, [3, 0], 5), [True] * (rank == 1)
    with launching(interpreted=True):
        lend = load("lend")
    offset, look = results.offset, lend.peers_lend

    def offset_of(result: Tensor) -> int:
        return -1 if keeps and keeps.pop() else int(offset(result))

    def look_late(*given: Any) -> Any:
        time.sleep(0.5 if rank == 0 else 0)
        return look(*given)

    with (
        mock.patch.object(results, "offset", offset_of),
        mock.patch.object(lend, "peers_lend", look_late),
    ):
        run(shuffle, ranks, combines=2)
    shuffle.check()
    return found


def one_stores_late(group: Any, artifact: str, options: Mapping[str, Any]) -> list[bool]:
    """Rank 1 stores so much later than the others have met."""
    shuffle, found = opened(group, artifact, **options)
    ranks = batch(shuffle.spec, [1] * shuffle.topology.num_ranks, 5)
    with launching(interpreted=True):
        lend = load("lend")
    look = lend.peers_lend

    def look_late(*given: Any) -> Any:
        time.sleep(0.5 if shuffle.rank == 1 else 0)
        return look(*given)

    with mock.patch.object(lend, "peers_lend", look_late):
        run(shuffle, ranks, combines=2)
    shuffle.check()
    return found


def one_is_lost(
    group: Any, artifact: str, options: Mapping[str, Any], comes: bool
) -> tuple[bool, str, str]:
    """Rank 1 does not come to a combine, or ``comes``, and never tells that all is there that it
    stores. Whether what rank 0 gets lacks rows, and what it and its next call say."""
    shuffle, _ = opened(group, artifact, timeout=4.0, **options)
    spec, rank = shuffle.spec, shuffle.rank
    ranks = batch(spec, [1, 1], 5)
    run(shuffle, ranks, combines=1)
    rows, handle = shuffle.dispatch(**ranks[rank].source, **ranks[rank].extents)
    worked = rows.clone()
    if rank == 0:
        result = shuffle.combine(worked, handle)
        said = [said_by(shuffle.check), said_by(lambda: shuffle.combine(worked, handle))]
        return bool(result.isnan().all()), *said
    if comes:
        with launching(interpreted=True):
            lend = load("lend")
        with mock.patch.object(lend, "meet", return_value=None):
            shuffle.combine(worked, handle)
    return False, "", ""


def captured(group: Any, artifact: str, options: Mapping[str, Any]) -> list[bool]:
    """Of handles as a graph has them: their results are staged, between others."""
    shuffle, found = opened(group, artifact, **options)
    node, ranks = shuffle.engine.node, batch(shuffle.spec, [1] * shuffle.topology.num_ranks, 5)
    following = node.rings.next
    for is_captured in (False, True, True, False):
        with mock.patch.object(
            node.rings, "next", lambda _, is_captured=is_captured: following(is_captured)
        ):
            run(shuffle, ranks, combines=1)
    shuffle.check()
    return found
