"""Groups inside a group: a node's ranks, and all ranks once more, for GPUs or for every lane of the
network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from fuscoc_runtime.comm.communicators import is_aborted
from fuscoc_runtime.comm.gather import gather_json
from fuscoc_runtime.comm.group import Membership, group_timeout
from fuscoc_runtime.errors import TopologyError


def node_group(members: Membership) -> dist.ProcessGroup:
    """The ranks of this rank's node, in order of their local rank; collective over all ranks.

    Only of a job: ``members.group`` is not None.
    """
    topology, group = members.topology, members.group
    assert group is not None
    if topology.num_nodes == 1:
        return group
    ranks = dist.get_process_group_ranks(group)
    nodes = [[ranks[peer] for peer in topology.node_ranks(n)] for n in range(topology.num_nodes)]

    def make() -> list[dist.ProcessGroup]:
        if group is dist.group.WORLD:
            mine, _ = dist.new_subgroups_by_enumeration(nodes)  # type: ignore[no-untyped-call]
            return [mine]
        return [_new_group(nodes[topology.node(members.rank)], members)]

    [found] = _made_once(group, str(topology), make)
    return found


def network_groups(
    members: Membership, num_lanes: int
) -> list[ReferenceType[dist.ProcessGroup] | None]:
    """All ranks again, for every lane of the network; collective over them.

    NCCL works off a group's operations one after the other, and lanes are to overlap. gloo works on
    all at once, so there it is the group itself. The first lane also carries what the hosts agree
    on.

    Raises:
        HopTimeoutError, NetworkError: a rank has not come in time.
    """
    group = members.group
    if group is None or members.device.type != "cuda" or members.topology.num_nodes == 1:
        return [members.known_group] * num_lanes
    ranks = dist.get_process_group_ranks(group)

    def make() -> list[dist.ProcessGroup]:
        lane = _new_group(ranks, members)
        # NCCL connects a group in its first operation, for which all ranks have to come, and some
        # may have no rows in a round: without this, the others would wait for them.
        replace(members, known_group=ref(lane)).meet("connection")
        return [lane]

    def agree(is_lost: bool) -> bool:
        """One rank may have given up waiting for another that was only slow."""
        return 1 in members.meet("connection", int(is_lost))

    lanes = (_made_once(group, f"lane {number}", make, agree) for number in range(num_lanes))
    return [ref(lane) for [lane] in lanes]


def group_on(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    """The ranks of ``group``, which may be one for CPUs, as a group that takes tensors of a device;
    collective over them.

    Raises:
        TopologyError: the ranks would not find each other.
    """
    if device.type == "cpu" or "nccl" in dist.get_backend(group):
        return group
    ranks = dist.get_process_group_ranks(group)

    def make() -> list[dist.ProcessGroup]:
        is_part = len(ranks) < dist.get_world_size()
        if is_part:
            cpu = torch.device("cpu")
            given = group, cpu, group_timeout(group, cpu), "connection"
            _check_numbers(gather_json(len(_world.pg_names), *given))
        made: Any = dist.new_group(ranks, backend="nccl", use_local_synchronization=is_part)
        return [made]

    [found] = _made_once(group, "gpus", make)
    return found


def _new_group(ranks: list[int], members: Membership) -> Any:
    """A new group; collective over ``members``. Unless they are all of the job, the job's other
    ranks do not come here.

    Raises:
        TopologyError: the ranks would not find each other.
        HopTimeoutError, NetworkError: one of them has ended.
    """
    group = members.group
    assert group is not None
    # That of the library, which torch does not pass on to new groups: that of ``members`` is of one
    # shuffle, and others use the group, too.
    timeout = timedelta(seconds=group_timeout(group, members.device))
    is_part = group is not dist.group.WORLD
    if is_part:
        _check_numbers(members.meet("connection", len(_world.pg_names)))
    return members.in_time(
        "connection",
        lambda: dist.new_group(ranks, timeout=timeout, use_local_synchronization=is_part),
    )


def _check_numbers(known: Sequence[int]) -> None:
    """Whether ranks can make a group without the rest of the job, by how many every one is in:
    torch makes the name of such a group from that number."""
    for rank, num_groups in enumerate(known):
        if num_groups != known[0]:
            raise TopologyError(
                f"rank {rank} is in {num_groups} process groups where rank 0 is in {known[0]}: "
                "torch needs equal numbers to create another one among a part of the job"
            )


_made: WeakKeyDictionary[dist.ProcessGroup, dict[str, list[ReferenceType[dist.ProcessGroup]]]]
_made = WeakKeyDictionary()


def _made_once(
    group: dist.ProcessGroup,
    use: str,
    make: Callable[[], list[dist.ProcessGroup]],
    agree: Callable[[bool], bool] | None = None,
) -> list[dist.ProcessGroup]:
    """The groups for a use among the ranks of ``group``; all shuffles of a job have the same ones,
    until all ranks ``agree`` that one was aborted.

    A group has connections and memory of its own for as long as the job lasts: to destroy it is
    collective, and when ``group`` is destroyed nobody says so.
    """
    known = _made.setdefault(group, {})
    found = [each() for each in known.get(use, ())]
    alive = [each for each in found if each is not None]
    if alive and agree is not None and agree(any(map(is_aborted, alive))):
        alive = []
    if not alive or len(alive) < len(found):
        alive = make()
        known[use] = [ref(each) for each in alive]
    return alive
