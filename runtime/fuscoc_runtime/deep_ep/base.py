"""What both kinds of calls of a ``Buffer`` share: its ranks, its shuffles, and its hints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from fuscoc_runtime.deep_ep.events import Beside, EventHandle, EventOverlap
from fuscoc_runtime.deep_ep.refusals import refusal, refuse
from fuscoc_runtime.deep_ep.specs import Shuffles
from fuscoc_runtime.defaults import on_the_cpu_by_default
from fuscoc_runtime.topology import Topology


@dataclass(frozen=True)
class Config:
    """DeepEP's tuning of its normal kernels: hints, of which none changes anything here."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: windows are allocated as they are needed."""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0, as ``get_nvl_buffer_size_hint``."""
        return 0


class BufferBase:
    """The ranks of a group and the shuffles that they open when calls need them.

    Numbers of bytes and of queue pairs, ``allow_*``, ``use_fabric``, which is of the branch that
    SGLang builds, and any ``config`` are hints without effect.
    ``topology`` is fuscoc's own: see ``Shuffle``.

    Attributes:
        num_sms: SMs of the kernels of shuffles that are opened from now on; see ``set_num_sms``.

    Raises:
        AdapterError: what is asked for is not here; names it.
        Whatever ``Shuffle`` raises.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool = False,
        topology: Topology | str | None = None,
    ) -> None:
        refuse(
            comm=(comm, None, "ranks meet in a torch process group"),
            enable_shrink=(enable_shrink, False, "a rank that is lost ends the job"),
        )
        if group is None:
            raise refusal("group=None is not supported: ranks meet in a torch process group")
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self._shuffles, self._beside = Shuffles(group, topology), Beside()

    def destroy(self) -> None:
        """Free the memory; collective."""
        assert self.explicitly_destroy, "`explicitly_destroy` flag must be set"
        with on_the_cpu_by_default():
            self._shuffles.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: rows may be 8-bit floats."""
        return True

    @classmethod
    def set_num_sms(cls, new_num_sms: int) -> None:
        """SMs that kernels may use, an even number; of dispatches to come and their combines."""
        assert new_num_sms % 2 == 0, "The SM count must be even"
        cls.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """What the current stream has been given so far."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes of the windows of two low-latency dispatches in bf16, about."""
        slots = num_max_dispatch_tokens_per_rank * num_experts
        return 2 * 2 * hidden * (slots + num_ranks * num_max_dispatch_tokens_per_rank)

    @classmethod
    def get_dispatch_config(cls, num_ranks: int) -> Config:
        """A ``Config``, which has no effect."""
        return Config(cls.num_sms)

    @classmethod
    def get_combine_config(cls, num_ranks: int) -> Config:
        """A ``Config``, which has no effect."""
        return Config(cls.num_sms)

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of calls with ``async_finish``."""
        return self._beside.stream

    def get_local_buffer_tensor(self, *arguments: object, **named: object) -> NoReturn:
        """Refused: there is no one buffer."""
        raise refusal("get_local_buffer_tensor is not supported: every shuffle has its own windows")
