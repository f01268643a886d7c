"""What one rank computes with: its kernels, its device and the state of its signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.engine.arguments import Checker
from fuscoc_runtime.engine.places import Places
from fuscoc_runtime.engine.row_fields import row_fields
from fuscoc_runtime.engine.waits import Waits
from fuscoc_runtime.kernels.loader import Kernel
from fuscoc_runtime.kernels.stored import kernel_of
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Plan, PlanContext, RankPlan
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True)
class Late:
    """A wait that was stopped: ``peer`` (a local rank) did not signal after ``hop``."""

    hop: str
    peer: int


@dataclass(frozen=True)
class Held:
    """Whose rows are in the target window: the dispatch's number, and the window's addresses."""

    dispatch: int
    addresses: tuple[range, ...]


class Machine:
    """One rank of one shuffle.

    Attributes:
        identity: tells this machine's handles from those of others.
        num_dispatches: dispatches that all ranks have begun so far, the same on all of them.
        held: what the target window holds.
        owners: int64 [num_keys], the rank of every key where the placement is no table; ``None``
            until the first dispatch.
        sends_weights: whether weights travel with the next dispatch; the same on all ranks.
        plan: that of a static shuffle, which never changes: from the artifact if it was baked for
            this topology, else from the first dispatch; ``None`` until then.
        num_signal_slots: rows of the signal window, one for every step that signals.
        row_fields: what the rows of every buffer hold, by name.
        places: what the arguments of a step's kernel are, by name.
        tracer: what is told when the parts of a call begin and end.
        waits: how the waits of kernels end that are in vain.
        reply: takes the way back, where its rows are those of a reply.
        asks: whose reply this is.

    Args:
        num_programs: grid of every launch over descriptors; the same on all ranks, because a
            waiting kernel counts the programs of the kernel it waits for.
        device: a CUDA device, or the CPU, where kernels run under Triton's interpreter.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        topology: Topology,
        rank: int,
        device: torch.device,
        num_programs: int,
        *,
        model: CostModel | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.shuffle = shuffle
        self.context = PlanContext(shuffle, topology, rank, device, model)
        self.checker = Checker(shuffle, rank, topology.num_ranks, device)
        self.num_programs = num_programs
        self.num_peers = topology.ranks_per_node
        self.my_peer = topology.local_rank(rank)
        self.device = device
        self._signals = {
            step.signal: step.list.replace("_", " ")
            for step in shuffle.program.launches
            if step.signal is not None
        }
        self.num_signal_slots = 1 + max(self._signals, default=-1)
        self.row_fields = row_fields(shuffle.program)
        self.identity = object()
        self.reply: Machine | None = None
        self.asks: Machine | None = None
        self.num_dispatches = 0
        self.held = Held(0, ())
        self.sends_weights = False
        self.owners: Tensor | None = None
        self.plan = _baked(artifact, shuffle, topology, rank, device)
        self.tracer = tracer or Tracer(rank, device, enabled=False)
        self._epochs: Counter[int] = Counter()
        self._kernels = {
            name: kernel_of(artifact, name, interpreted=device.type == "cpu")
            for name in _kernel_names(shuffle.program)
        }
        self.waits = Waits([step.kernel for step in shuffle.program.launches if step.wait], device)
        self.places = {
            step.kernel: Places.of(self._kernels[step.kernel].spec, step)
            for step in shuffle.program.launches
        }

    def answered_by(self, reply: Machine) -> None:
        """Let the way back be that of ``reply``."""
        self.reply, reply.asks = reply, self

    def lends(self, rows: Tensor) -> bool:
        """Whether rows lie in the target window, where the next dispatch puts its own."""
        return any(rows.data_ptr() in addresses for addresses in self.held.addresses)

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls return before their work is done."""
        return self.device.type == "cuda"

    def kernel(self, name: str) -> Kernel:
        """A kernel of the shuffle."""
        return self._kernels[name]

    def launch(self, kernel: str, arguments: Sequence[int], num_programs: int) -> None:
        """Launch a kernel on the current stream of this rank's device, which is the current one."""
        self.waits.begin(kernel)
        self._kernels[kernel].start(arguments, num_programs)
        self.waits.end(kernel)

    def current_device(self) -> AbstractContextManager[object]:
        """Makes this rank's device the current one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def signalled(self, slot: int) -> None:
        """Count a launch that signals ``slot``: every rank of the node does the same launches."""
        self._epochs[slot] += 1

    def expected(self, slot: int) -> int:
        """What every peer's word of ``slot`` reaches when its latest launch has ended."""
        return self._epochs[slot] * self.num_programs

    def late(self) -> Late | None:
        """The first wait that was stopped, if any, as known when ``waits.tell`` was done."""
        word = self.waits.late()
        if word is None:
            return None
        slot, peer = divmod(word, self.num_peers)
        return Late(self._signals[slot], peer)


def _baked(
    artifact: Artifact, shuffle: ShuffleSpec, topology: Topology, rank: int, device: torch.device
) -> RankPlan | None:
    file = shuffle.baked.get(str(topology))
    return None if file is None else Plan.load(artifact.path / file).ranks[rank].to(device)


def _kernel_names(program: Program) -> list[str]:
    relation = program.relation
    extents = [relation.extents_kernel] if relation.extents_kernel is not None else []
    return [relation.kernel, *extents, *(step.kernel for step in program.launches)]
