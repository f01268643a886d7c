"""``ElasticBuffer``: the expert-parallel calls of DeepEP's second version."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.comm.gather import gather_json
from fuscoc_runtime.comm.group import MEETING, group_timeout
from fuscoc_runtime.comm.nodes import Place, find_nodes, this_place
from fuscoc_runtime.deep_ep.back import Bias, biases_of
from fuscoc_runtime.deep_ep.elastic_calls import Call, combine, dispatch
from fuscoc_runtime.deep_ep.ep_handle import EPHandle
from fuscoc_runtime.deep_ep.events import Beside, EventHandle, EventOverlap
from fuscoc_runtime.deep_ep.refusals import refusal, refuse
from fuscoc_runtime.deep_ep.rows import Tokens
from fuscoc_runtime.deep_ep.specs import Shuffles
from fuscoc_runtime.defaults import on_the_cpu_by_default
from fuscoc_runtime.face.open import sms_to_use
from fuscoc_runtime.face.options import as_topology
from fuscoc_runtime.topology import Topology

Previous = EventHandle | EventOverlap | None
REFUSED = (
    *("engram_write", "engram_fetch", "get_engram_storage_size_hint"),
    *("pp_set_config", "pp_send", "pp_recv", "get_pp_buffer_size_hint"),
    *("create_agrs_session", "destroy_agrs_session", "agrs_new_session", "agrs_set_config"),
    *("agrs_get_inplace_tensor", "all_gather", "get_agrs_buffer_size_hint"),
)
"""What is no dispatch or combine."""


class ElasticBuffer:
    """Moves tokens to the ranks of their experts, or with ``do_expand`` to the experts, and back.

    Arguments and results are DeepEP's; ``docs/integrations.md`` has what differs. Sizes, queue
    pairs, modes and time-outs of the constructor are hints without effect, but for
    ``num_max_tokens_per_rank`` and ``prefer_overlap_with_compute``. ``topology`` is fuscoc's own.

    Raises:
        AdapterError: what is asked for is not here; names it.
        Whatever ``Shuffle`` raises.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        topology: Topology | str | None = None,
    ) -> None:
        refuse(
            num_cpu_bytes=(num_cpu_bytes, 0, "all memory is the GPU's"),
            allow_multiple_reduction=(
                allow_multiple_reduction, True, "a rank adds up the rows of a token before it sends"
            ),
        )  # fmt: skip
        self.group, self.rank_idx, self.num_ranks = group, group.rank(), group.size()
        self.num_bytes, self.num_allocated_qps = num_bytes or 0, num_allocated_qps
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.explicitly_destroy = explicitly_destroy
        self._shuffles, self._beside = Shuffles(group, topology), Beside()
        self._topology = as_topology(topology) or self._found()

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED:
            return partial(_is_refused, name)
        raise AttributeError(f"ElasticBuffer has no attribute {name!r}")

    def _found(self) -> Topology:
        """The nodes, as shuffles of this group find them."""
        cpu = torch.device("cpu")
        has_gpu = torch.cuda.is_available()  # tokens are there, even if ranks meet on CPUs
        device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else cpu
        where = device if "nccl" in dist.get_backend(self.group) else cpu
        with on_the_cpu_by_default():
            timeout, said = group_timeout(self.group, where), this_place(device).to_json()
            heard = gather_json(said, self.group, where, timeout, MEETING)
            return find_nodes([Place.from_json(each) for each in heard]).topology

    def destroy(self) -> None:
        """Free the memory; collective."""
        assert self.explicitly_destroy, "`explicitly_destroy` flag must be set"
        with on_the_cpu_by_default():
            self._shuffles.close()

    @staticmethod
    def get_buffer_size_hint(*arguments: object, **named: object) -> int:
        """0: windows are allocated as they are needed."""
        return 0

    @staticmethod
    def capture() -> EventHandle:
        """What the current stream has been given so far."""
        return EventHandle()

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of calls with ``async_with_compute_stream``."""
        return self._beside.stream

    def get_physical_domain_size(self) -> tuple[int, int]:
        """Nodes, and ranks of a node."""
        return self._topology.num_nodes, self._topology.ranks_per_node

    def get_logical_domain_size(self) -> tuple[int, int]:
        """As ``get_physical_domain_size``."""
        return self.get_physical_domain_size()

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, *_: object) -> int:
        """SMs that calls use by default; 0 is all, and those of a CPU."""
        on_gpu = torch.cuda.is_available() and self.prefer_overlap_with_compute
        return sms_to_use(torch.device("cuda"), "overlap") if on_gpu else 0

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """What was given: there are no queue pairs."""
        return self.num_allocated_qps

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Wait until all ranks are here."""
        dist.barrier(self.group)
        if with_cpu_sync and "nccl" in dist.get_backend(self.group):
            torch.cuda.synchronize()

    def dispatch(
        self,
        x: Tokens,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Previous = None,
        previous_event_before_epilogue: Previous = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Tokens, Tensor | None, Tensor | None, EPHandle, EventOverlap]:
        """``recv_x, recv_topk_idx, recv_topk_weights, handle, event``: rows by source rank, then
        token, or with ``do_expand`` by expert, source rank, then token."""
        refuse(
            previous_event_before_epilogue=(
                previous_event_before_epilogue, None, "a call waits for one event, where it begins"
            ),
        )  # fmt: skip
        if (topk_idx is None) == (handle is None):
            raise refusal("dispatch takes topk_idx, or the handle of an earlier one")
        if do_zero_padding and not do_expand:
            raise refusal("do_zero_padding=True is given with do_expand=True")
        if handle is not None and (do_cpu_sync or do_expand != handle.do_expand):
            raise refusal("do_cpu_sync and do_expand are those of the handle")
        if handle is None and num_experts is None:
            raise refusal("num_experts is given with topk_idx")
        call = Call(
            self._shuffles,
            num_experts=num_experts or 0,
            num_max_tokens=num_max_tokens_per_rank or self.num_max_tokens_per_rank,
            alignment=expert_alignment or 1,
            num_sms=num_sms or self.get_theoretical_num_sms(num_experts or 0, 0),
            copies=bool(do_handle_copy),
            syncs=do_cpu_sync is None or bool(do_cpu_sync),
            expands=bool(do_expand),
            by_column=bool(use_tma_aligned_col_major_sf),
        )
        stats = cumulative_local_expert_recv_stats

        def work() -> tuple[Tokens, Tensor | None, Tensor | None, EPHandle]:
            found = dispatch(call, x, topk_idx, topk_weights, handle)
            if stats is not None:
                stats.add_(found[3].num_unaligned_recv_tokens_per_expert)
            return found

        def made(found: tuple[Tokens, Tensor | None, Tensor | None, EPHandle]) -> list[Any]:
            recv, idx, weights, new = found
            kept = (*vars(new).values(), *vars(new.found).values())
            tensors = [each for each in kept if isinstance(each, Tensor)]
            return [*(recv if isinstance(recv, tuple) else (recv,)), idx, weights, *tensors]

        given = [*(x if isinstance(x, tuple) else (x,)), topk_idx, topk_weights, stats]
        found, event = self._beside.run(
            work, previous_event, bool(async_with_compute_stream), given, made
        )
        return *found, event

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Bias = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Previous = None,
        previous_event_before_epilogue: Previous = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """``combined_x, combined_topk_weights, event``, as ``Buffer.combine``; of expanded rows
        weights are [num_rows], and come back [num_tokens, topk]."""
        refuse(
            previous_event_before_epilogue=(
                previous_event_before_epilogue, None, "a call waits for one event, where it begins"
            ),
        )  # fmt: skip
        biases = biases_of(bias)
        (result, weights), event = self._beside.run(
            partial(combine, x, handle, topk_weights, biases),
            previous_event,
            bool(async_with_compute_stream),
            [x, topk_weights, *biases],
            lambda made: made,
        )
        return result, weights, event


def _is_refused(name: str, *_: object, **__: object) -> NoReturn:
    raise refusal(f"ElasticBuffer.{name} is not supported: only dispatch and combine are")
