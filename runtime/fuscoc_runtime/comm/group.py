"""Who takes part: joining a job, finding the nodes, and the groups that talk."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store

from fuscoc_runtime.comm.gather import gather_in_time, gather_json
from fuscoc_runtime.comm.greeting import Greeting, first_difference
from fuscoc_runtime.comm.liveness import Liveness, this_process
from fuscoc_runtime.comm.nodes import Nodes, check_memory, find_nodes, this_place
from fuscoc_runtime.errors import (
    ClosedError,
    HopTimeoutError,
    NetworkError,
    OptionError,
    ProtocolError,
    TopologyError,
)
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.topology import Topology

# The communication library's own limit is only a backstop: waits end earlier, with a better error.
BACKSTOP = timedelta(seconds=30)

MEETING = "meeting the other ranks"

_log = logging.getLogger("fuscoc.runtime")

GIVEN, ALONE = "as given", "of no job"
"""How nodes were found that a user has named, and the node of one rank."""

T = TypeVar("T")

Group: TypeAlias = dist.ProcessGroup | DeviceMesh | tuple[DeviceMesh, str | int]
"""How a user names the ranks that take part; a mesh of several dimensions together with one."""


@dataclass(frozen=True, eq=False)
class Membership:
    """This rank's place among the ranks.

    Attributes:
        rank: index in ``group``; ranks are numbered node by node.
        known_group: all ranks; None for a process that belongs to no job. Not kept alive: what is
            left of a gloo group after ``destroy_process_group`` may abort the process at its end.
        device: where this rank computes.
        store: a key-value store of these ranks and this membership alone.
        liveness: which of them are alive.
        timeout: seconds that a wait for another rank may take.
        is_one_host: whether all ranks have one host id, however many nodes they are told to be.
        nodes: how the nodes were found.
        opening: the same on all ranks, and another one for each membership.
        tracer: what this rank tells when it does what, if anybody asks.
    """

    rank: int
    topology: Topology
    known_group: ReferenceType[dist.ProcessGroup] | None
    device: torch.device
    store: Store
    liveness: Liveness
    timeout: float
    is_one_host: bool = False
    nodes: str = GIVEN
    opening: str = ""
    tracer: Tracer | None = None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """All ranks; None for a process that belongs to no job.

        Raises:
            ClosedError: the group has been destroyed.
        """
        if self.known_group is None:
            return None
        group = self.known_group()
        if group is None or not dist.is_initialized():
            raise ClosedError("the process group")
        return group

    def gather(self, occasion: str, said: Any) -> list[Any]:
        """What each of the ranks says, in JSON; of this one alone where there is no job.

        Raises:
            HopTimeoutError, NetworkError: as ``meet``.
            ClosedError: the group has been destroyed.
        """
        group = self.group
        if group is None:
            return [said]
        given = said, group, self.device, self.timeout, occasion, self.liveness.someone_ended
        return self.in_time(occasion, lambda: gather_json(*given))

    def meet(self, occasion: str, word: int = 0) -> list[int]:
        """Wait until all ranks are here. Returns what each of them says; nothing where there is no
        job (any more).

        Raises:
            HopTimeoutError: a rank has ended, or not come in time; ``occasion`` is its hop.
            NetworkError: the communication library failed.
        """
        group = self.known_group() if self.known_group is not None else None
        if group is None or not dist.is_initialized():
            return []
        said = torch.tensor([word], device=self.device)
        given = said, group, self.timeout, occasion, self.liveness.someone_ended
        heard = self.in_time(occasion, lambda: gather_in_time(*given))
        return [int(each) for each in heard]

    def in_time(self, occasion: str, exchange: Callable[[], T]) -> T:
        """What ``exchange`` returns, a collective of the communication library.

        Raises:
            HopTimeoutError, NetworkError: it has failed; as ``meet``.
        """
        started = time.monotonic()
        try:
            return exchange()
        except (ProtocolError, torch.OutOfMemoryError):
            raise  # all ranks came, or it is this one that lacks memory
        except (RuntimeError, TimeoutError) as error:
            seconds = time.monotonic() - started
            raise self.liveness.explain(occasion, seconds, error) from error


def join(timeout: float | None, device: torch.device | None = None) -> torch.device:
    """Join the job that torchrun's variables describe, unless this process has joined one.

    ``timeout`` is in seconds; ``None`` is torch's own for the backend. Returns the device of this
    rank: ``device``, or the CUDA device LOCAL_RANK, or on a machine without any the CPU.

    Raises:
        OptionError: the machine has fewer CUDA devices: some ranks would join by NCCL, and others
            wait for them in gloo.
    """
    if device is None:
        local_rank, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if 0 < num_gpus <= local_rank:
            raise OptionError(
                "LOCAL_RANK",
                f"is {local_rank}, and this machine has {num_gpus} CUDA devices: start as many "
                "ranks, or ask for the device cpu",
            )
        device = torch.device("cuda", local_rank) if num_gpus else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        limit = None if timeout is None else timedelta(seconds=timeout) + BACKSTOP
        dist.init_process_group(backend, timeout=limit)
    return device


def group_timeout(group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Seconds that the communication library itself waits for a rank of ``group``; ``None`` is all
    of the job. Without a job, torch's default."""
    if not dist.is_initialized():
        return float(dist.default_pg_timeout.total_seconds())
    chosen = group if group is not None else dist.group.WORLD
    assert chosen is not None
    limit: timedelta = chosen._get_backend(device).options._timeout
    return limit.total_seconds()


def patience(group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Seconds that a wait for a rank of ``group`` may take by default: somewhat less than those of
    the communication library, which may end the process without saying who is missing."""
    limit = group_timeout(group, device)
    return max(limit - BACKSTOP.total_seconds(), 3 / 4 * limit)


def process_group(group: Group | None) -> dist.ProcessGroup | None:
    """The process group that ``group`` names; ``None`` is all of the job.

    Raises:
        TopologyError: a mesh of several dimensions, or without the one that is named, or this rank
            is not in the group.
    """
    mesh, dim = group if isinstance(group, tuple) else (group, None)
    if isinstance(mesh, DeviceMesh):
        names = mesh.mesh_dim_names or ()
        if (dim is None and mesh.ndim != 1) or (isinstance(dim, str) and dim not in names):
            raise TopologyError(
                f"the mesh has the dimensions {', '.join(names or map(str, range(mesh.ndim)))}: "
                "pass one of them, as `mesh[name]` or `(mesh, name)`"
            )
        return mesh.get_group(dim)
    if mesh is None or isinstance(mesh, dist.ProcessGroup):
        return mesh
    if mesh == dist.GroupMember.NON_GROUP_MEMBER:
        raise TopologyError("this rank is not in the group: only its ranks open the shuffle")
    raise TopologyError(f"a {type(mesh).__name__} is no process group or device mesh")


def alone(topology: Topology | None, device: torch.device, timeout: float) -> Membership:
    """The membership of a process that belongs to no job: rank 0 of 1.

    Raises:
        TopologyError: ``topology`` is for several ranks.
    """
    if topology is not None and topology.num_ranks != 1:
        raise TopologyError(
            f"the topology {topology} is not for 1 rank, and this process belongs to no job: start "
            "it with torchrun, or call torch.distributed.init_process_group first"
        )
    store = HashStore()
    liveness = Liveness(store, 0, [this_process()])
    return Membership(0, Topology(1, 1), None, device, store, liveness, timeout, nodes=ALONE)


def find_members(
    group: dist.ProcessGroup | None,
    topology: Topology | None,
    device: torch.device,
    agreed: tuple[object, ...],
    timeout: float = 60.0,
) -> Membership:
    """Find out who the ranks of ``group`` are (``None``: all of the job); collective in ``group``.

    Without a ``topology``, ranks whose GPUs are one NVLink domain form a node, or those with the
    same host id (NCCL_HOSTID, else the host's name): see ``find_nodes``. ``agreed`` are settings
    that must be the same on every rank.

    Raises:
        TopologyError: ranks are not numbered node by node, or ``topology`` has another size or is
            not the same on all of them, or ranks of a node cannot share memory.
        ProtocolError: ranks differ in ``agreed``, or one is of another version.
        HopTimeoutError: a rank has not come after ``timeout`` seconds; names the first.
        NetworkError: a rank has ended, or the communication library failed.
    """
    world = group if group is not None else dist.group.WORLD
    if world is None:
        raise TopologyError("there is no process group: call torch.distributed.init_process_group")
    rank, num_ranks = dist.get_rank(world), dist.get_world_size(world)
    mine = Greeting(this_place(device), this_process(), secrets.token_hex(8), topology, agreed)
    theirs = _greet(mine, world, device, timeout)
    settings = [each.agreed for each in theirs]
    for peer, setting in enumerate(settings):
        if setting != settings[0]:
            one, other = first_difference(setting, settings[0])
            raise ProtocolError(f"rank {peer} has {one} where rank 0 has {other}")
    nodes = _agree(theirs)
    found, places = nodes.topology, [each.place for each in theirs]
    if found.num_ranks != num_ranks:
        raise TopologyError(f"the topology {found} is not for {num_ranks} ranks")
    check_memory(found, places, [each.process for each in theirs], device.type == "cuda")
    if rank == 0:
        level = logging.WARNING if nodes.has_unused else logging.INFO
        _log.log(level, "%s nodes and ranks, %s", found, nodes.how)
    # Rank 0's token tells this membership's keys from those of any other, earlier or later.
    opening = theirs[0].token
    store = PrefixStore(f"fuscoc/{opening}", _get_default_store())
    liveness = Liveness(store, rank, [each.process for each in theirs])
    is_one_host = len({each.host for each in places}) == 1
    return Membership(
        rank, found, ref(world), device, store, liveness, timeout, is_one_host, nodes.how, opening
    )


def _agree(greetings: list[Greeting]) -> Nodes:
    """The nodes that a user has named, or those that are found where one has not.

    Raises:
        TopologyError: they are not the same on all ranks.
    """
    given = [each.topology for each in greetings]
    found = find_nodes([each.place for each in greetings]) if None in given else None
    default = found.topology if found is not None else None
    first, *others = (each or default for each in given)
    for peer, each in enumerate(others, 1):
        if each != first:
            raise TopologyError(f"rank {peer} has the topology {each} where rank 0 has {first}")
    assert first is not None
    return found or Nodes(first, GIVEN)


def _greet(
    mine: Greeting, group: dist.ProcessGroup, device: torch.device, timeout: float
) -> list[Greeting]:
    """What every rank has to say, when all are here. Errors are those of ``find_members``."""
    rank, names = dist.get_rank(group), [str(each) for each in dist.get_process_group_ranks(group)]
    # Who the others are is what they will say; until then there is a list of those who have come.
    arrivals = PrefixStore(f"fuscoc/opening/{group.group_name}", _get_default_store())
    started = time.monotonic()
    try:
        arrivals.set(names[rank], "here")
        greetings = gather_json(mine.to_json(), group, device, timeout, MEETING)
        arrivals.delete_key(names[rank])
        return [Greeting.from_json(each) for each in greetings]
    except ProtocolError:
        raise
    except (RuntimeError, TimeoutError) as error:
        seconds = time.monotonic() - started
        absent = _absent(arrivals, names) if seconds >= timeout else []
        if absent:
            raise HopTimeoutError(rank, "opening", absent[0], round(seconds, 1)) from error
        raise NetworkError(rank, MEETING, str(error)) from error


def _absent(arrivals: Store, names: list[str]) -> list[int]:
    """The ranks that are not on the list; none if it cannot be read any more."""
    try:
        return [rank for rank, name in enumerate(names) if not arrivals.check([name])]
    except RuntimeError:
        return []


def all_gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """``tensor`` of every rank of ``group``, equal shapes, on the device: [num_ranks, *shape]."""
    if group is None:
        return tensor[None]
    num_ranks = dist.get_world_size(group)
    gathered, options = tensor.new_empty(num_ranks * tensor.numel()), AllgatherOptions()
    options.asyncOp = False
    # What `torch.distributed` has for it does the same, and looks at tensors and group first.
    work = group._allgather_base(gathered, tensor.reshape(-1), options)
    if work is not None:  # libraries that have not let the stream wait
        work.wait()
    return gathered.view(num_ranks, *tensor.shape)
