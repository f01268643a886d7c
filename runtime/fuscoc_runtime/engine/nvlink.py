"""The node-local engine: dispatch and combine by persistent CUDA kernels over NVLink.

A rank's window in symmetric memory holds everything peers write: counts, flags, slot codes, the
rows of the target and the partial rows of combine. Which call a flag belongs to is told by epochs
that live on the device, so nothing is ever cleared, no call synchronises the host, and a captured
CUDA graph can be replayed. Rows of the target stay valid until the next dispatch, a handle until
``num_handles`` later ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from fuscoc_runtime.comm.windows import node_allocator
from fuscoc_runtime.kernels.cuda import cubin, load_kernels

MAX_RANKS = 8
MAX_FIELDS = 8
MAX_INPUTS = 8
SLOT_BITS = 27
PLAN_POINTS = 1024  # points of one CTA of the plan kernel
ALIGNMENT = 1024
CLOCK_HZ = 2e9  # no GPU runs much faster, so a wait is at least as long as asked for
STAGES = (
    "counts of this rank",
    "counts",
    "rows of group",
    "partial rows of group",
    "entering combine",
)


class Call(ctypes.Structure):
    """``Call`` of kernels/include/call.cuh: same order, same types."""

    _fields_ = [
        ("window", ctypes.c_uint64 * MAX_RANKS),
        ("source", ctypes.c_uint64 * MAX_FIELDS),
        ("inputs", ctypes.c_uint64 * MAX_INPUTS),
        ("extents", ctypes.c_int64 * MAX_INPUTS),
        ("rows_at", ctypes.c_int64 * MAX_FIELDS),
        ("counts_at", ctypes.c_int64),
        ("dispatch_flags_at", ctypes.c_int64),
        ("combine_flags_at", ctypes.c_int64),
        ("barrier_at", ctypes.c_int64),
        ("points_at", ctypes.c_int64),
        ("staging_at", ctypes.c_int64),
        ("state", ctypes.c_uint64),
        ("cta_counts", ctypes.c_uint64),
        ("codes", ctypes.c_uint64),
        ("key_counts", ctypes.c_uint64),
        ("key_starts", ctypes.c_uint64),
        ("num_sources_of", ctypes.c_uint64),
        ("weights", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
        ("num_sources", ctypes.c_int64),
        ("max_sources", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("timeout_cycles", ctypes.c_int64),
        ("rank", ctypes.c_int),
        ("num_ranks", ctypes.c_int),
        ("send_ctas", ctypes.c_int),
        ("send_warps", ctypes.c_int),
        ("reduce_teams", ctypes.c_int),
        ("dispatch_group", ctypes.c_int),
        ("combine_group", ctypes.c_int),
    ]


STATE_WORDS = 16
TIMED_OUT, BAD_KEYS, OVERFLOWED = 8, 9, 10  # positions in call.cuh's State


@dataclass(frozen=True)
class NodeProgram:
    """What the artifact says of a shuffle's CUDA kernels.

    ``launches`` maps ``<name>_plan``, ``<name>_dispatch`` and, when it sums, ``<name>_combine`` to
    (threads, dynamic shared bytes); ``fields`` are (dtype, elements of a row); ``cubins`` is
    machine code of ``text`` by GPU, for those that need not compile it.
    """

    name: str
    text: str
    launches: dict[str, tuple[int, int]]
    fields: tuple[tuple[torch.dtype, int], ...]
    fanout: int
    num_keys: int
    weighted: bool
    teams: int
    cubins: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Fixed sizes of the windows, equal on every rank.

    ``max_sources`` bounds the source segments of any rank, ``capacity`` the slots of a rank.
    """

    max_sources: int
    capacity: int
    num_handles: int = 2


@dataclass(frozen=True)
class Schedule:
    """How a call uses the GPU; a zero takes the value of `model_schedule`.

    At most ``num_sms`` SMs run CTAs. In dispatch ``send_ctas`` of them hold ``send_warps`` sending
    warps each; in combine ``reduce_teams`` teams of a CTA prefer reducing to finalising. Up to
    ``dispatch_group`` and ``combine_group`` source segments share a flag: equal on all ranks.
    """

    num_sms: int = 0
    send_ctas: int = 0
    send_warps: int = 0
    reduce_teams: int = 0
    dispatch_group: int = 0
    combine_group: int = 0


@dataclass(frozen=True, eq=False)
class Handle:
    """What combine needs of its dispatch. ``key_counts[i]`` rows of this rank's i-th key start at
    slot ``key_starts[i]``; both int32 [num_keys], ``codes`` int32 [max_sources, fanout]."""

    number: int
    num_sources: int
    codes: torch.Tensor
    key_counts: torch.Tensor
    key_starts: torch.Tensor
    num_sources_of: torch.Tensor
    weights: torch.Tensor | None


class NodeShuffle:
    """A shuffle among the ranks of one NVLink node (``node_group``); construction is collective."""

    def __init__(
        self,
        program: NodeProgram,
        limits: Limits,
        node_group: dist.ProcessGroup,
        device: torch.device,
        schedule: Schedule | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.program, self.limits = program, limits
        rank, num_ranks = dist.get_rank(node_group), dist.get_world_size(node_group)
        if num_ranks > MAX_RANKS:
            raise ValueError(f"{num_ranks} ranks in a node, more than {MAX_RANKS}")
        if limits.capacity >= 1 << SLOT_BITS:
            raise ValueError(f"a capacity of {limits.capacity} is beyond {(1 << SLOT_BITS) - 1}")
        properties = torch.cuda.get_device_properties(device)
        self.num_sms = properties.multi_processor_count
        arch = f"sm_{properties.major}{properties.minor}"
        code = program.cubins.get(arch) or cubin(program.text, arch)
        kernels = load_kernels(code, program.launches)
        self._plan = kernels[f"{program.name}_plan"]
        self._dispatch = kernels[f"{program.name}_dispatch"]
        self._combine = kernels.get(f"{program.name}_combine")

        self._row_bytes = [dtype.itemsize * elems for dtype, elems in program.fields]
        sections, nbytes = self._sections(num_ranks)
        self._window = node_allocator(node_group, device)(nbytes)
        self._state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)
        self._cta_counts = torch.zeros(
            self.num_sms * program.num_keys, dtype=torch.int64, device=device
        )
        self.rows = tuple(
            self._window.local[at : at + limits.capacity * size].view(dtype).view(-1, elems)
            for at, size, (dtype, elems) in zip(
                sections["rows"], self._row_bytes, program.fields, strict=True
            )
        )
        self._dispatches = 0
        self._handles = [
            (
                torch.full(
                    (limits.max_sources, program.fanout), -1, dtype=torch.int32, device=device
                ),
                torch.zeros(program.num_keys, dtype=torch.int32, device=device),
                torch.zeros(program.num_keys, dtype=torch.int32, device=device),
                torch.zeros(MAX_RANKS + 1, dtype=torch.int32, device=device),
            )
            for _ in range(limits.num_handles)
        ]
        self._points_at = sections["points"]
        self._call = Call(
            counts_at=sections["counts"][0],
            dispatch_flags_at=sections["dispatch_flags"][0],
            combine_flags_at=sections["combine_flags"][0],
            barrier_at=sections["barrier"][0],
            staging_at=sections["staging"][0],
            state=self._state.data_ptr(),
            cta_counts=self._cta_counts.data_ptr(),
            max_sources=limits.max_sources,
            capacity=limits.capacity,
            timeout_cycles=int(timeout_s * CLOCK_HZ),
            rank=rank,
            num_ranks=num_ranks,
        )
        self._call.window[:num_ranks] = self._window.peer_bases.tolist()
        for position, at in enumerate(sections["rows"]):
            self._call.rows_at[position] = at
        self.configure(schedule or Schedule())
        dist.barrier(node_group)

    def _sections(self, num_ranks: int) -> tuple[dict[str, list[int]], int]:
        """Offsets of the parts of a window, and its bytes."""
        program, limits = self.program, self.limits
        sources = num_ranks * limits.max_sources
        sizes = {
            "counts": [2 * num_ranks * (program.num_keys + 1) * 8],
            "dispatch_flags": [sources * 4],
            "combine_flags": [sources * 4],
            "barrier": [num_ranks * 4],
            "points": [sources * program.fanout * 8] * limits.num_handles,
            "staging": [sources * self._row_bytes[0] if self._combine else 0],
            "rows": [limits.capacity * size for size in self._row_bytes],
        }
        sections: dict[str, list[int]] = {}
        end = 0
        for name, parts in sizes.items():
            sections[name] = []
            for nbytes in parts:
                sections[name].append(end)
                end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return sections, end

    def configure(self, schedule: Schedule) -> None:
        """Use ``schedule`` from the next call on; every rank must set the same groups."""
        program, call = self.program, self._call
        warps = program.launches[f"{program.name}_dispatch"][0] // 32
        self._ctas = min(schedule.num_sms or self.num_sms, self.num_sms)
        model = model_schedule(self._ctas, warps, program.teams)
        largest = 32 // program.fanout  # a warp looks at a whole group, a lane a point
        call.send_ctas = schedule.send_ctas or model.send_ctas
        call.send_warps = schedule.send_warps or model.send_warps
        call.reduce_teams = min(schedule.reduce_teams or model.reduce_teams, program.teams)
        call.dispatch_group = min(schedule.dispatch_group or model.dispatch_group, largest)
        call.combine_group = min(schedule.combine_group or model.combine_group, largest)

    def dispatch(
        self,
        source: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: torch.Tensor | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> Handle:
        """Move every segment to its slots; the target's fields are ``self.rows`` afterwards.

        ``source`` are the contiguous tensors of the fields, ``inputs`` those of the relation and
        ``weights`` f32 [num_sources, fanout] for a weighted combine.

        Raises:
            ValueError: more source segments than ``max_sources``, or weights are missing.
        """
        program, call = self.program, self._call
        if num_sources > self.limits.max_sources:
            raise ValueError(f"{num_sources} segments, more than {self.limits.max_sources}")
        if program.weighted and weights is None:
            raise ValueError(f"{program.name} needs weights")
        number = self._dispatches
        self._dispatches += 1
        codes, key_counts, key_starts, num_sources_of = self._handles[number % len(self._handles)]
        handle = Handle(number, num_sources, codes, key_counts, key_starts, num_sources_of, weights)
        for position, tensor in enumerate(source):
            call.source[position] = tensor.data_ptr()
        for position, tensor in enumerate(inputs):
            call.inputs[position] = tensor.data_ptr()
        for position, extent in enumerate(extents):
            call.extents[position] = extent
        self._bind(handle)
        address = (stream or torch.cuda.current_stream()).cuda_stream
        tiles = -(-num_sources * program.fanout // PLAN_POINTS)
        self._plan.launch(max(1, min(tiles, self._ctas)), call, address)
        self._dispatch.launch(self._ctas, call, address)
        return handle

    def combine(
        self,
        rows: torch.Tensor,
        handle: Handle,
        result: torch.Tensor,
        stream: torch.cuda.Stream | None = None,
    ) -> torch.Tensor:
        """Sum each segment's rows [capacity, elements], weighted, into ``result`` [num_sources, …].

        Raises:
            ValueError: the handle's buffers have been reused by later dispatches.
        """
        if self._combine is None:
            raise ValueError(f"{self.program.name} declares no combine")
        if not self.is_live(handle):
            raise ValueError(
                f"the handle is {self._dispatches - handle.number - 1} dispatches old; "
                f"num_handles keeps {len(self._handles)}"
            )
        self._bind(handle)
        self._call.rows = rows.data_ptr()
        self._call.result = result.data_ptr()
        address = (stream or torch.cuda.current_stream()).cuda_stream
        self._combine.launch(self._ctas, self._call, address)
        return result

    def is_live(self, handle: Handle) -> bool:
        """Whether later dispatches have left the handle's buffers alone."""
        return self._dispatches - handle.number <= len(self._handles)

    @property
    def state(self) -> torch.Tensor:
        """The device's words that `parse_state` reads: int32 [STATE_WORDS]."""
        return self._state

    def _bind(self, handle: Handle) -> None:
        call = self._call
        call.points_at = self._points_at[handle.number % len(self._handles)]
        call.codes = handle.codes.data_ptr()
        call.key_counts = handle.key_counts.data_ptr()
        call.key_starts = handle.key_starts.data_ptr()
        call.num_sources_of = handle.num_sources_of.data_ptr()
        call.weights = 0 if handle.weights is None else handle.weights.data_ptr()
        call.num_sources = handle.num_sources

    def errors(self) -> list[str]:
        """What went wrong on this rank so far; synchronises with the device."""
        trouble = parse_state(self._state.tolist())
        found = []
        if trouble.late is not None:
            found.append("timed out waiting for rank {}: {}".format(*trouble.late))
        if trouble.bad_keys:
            found.append(f"{trouble.bad_keys} points have a key out of range")
        if trouble.overflowed:
            found.append(f"{trouble.overflowed} points are beyond the capacity")
        return found


@dataclass(frozen=True)
class Trouble:
    """What went wrong on one rank since the start: the peer and stage of the wait that ran out, and
    how many points had no key or no slot."""

    late: tuple[int, str] | None
    bad_keys: int
    overflowed: int


def parse_state(words: Sequence[int]) -> Trouble:
    """Read a copy of `NodeShuffle.state`."""
    late = None
    if timed_out := words[TIMED_OUT] & 0xFFFFFFFF:
        stage, peer, item = timed_out >> 24 & 0x7F, timed_out >> 20 & 0xF, timed_out & 0xFFFFF
        late = (peer, f"{STAGES[stage]} {item}")
    return Trouble(late, words[BAD_KEYS], words[OVERFLOWED])


def model_schedule(num_ctas: int, warps: int, teams: int) -> Schedule:
    """The split of ``num_ctas`` CTAs, of ``warps`` warps in dispatch and ``teams`` in combine.

    About 260 sending warps keep NVLink full. Gathered in a third of the CTAs they leave the others
    wholly to HBM work. On few SMs three warps of each CTA send: that is slower, but expanding is
    what runs short. Teams that have nothing to finalise reduce, so few need to prefer it; on few
    SMs most must, in larger groups, since every peer waits for what is reduced.
    """
    few, very_few = num_ctas <= 64, num_ctas <= 32
    quarters = 3 if very_few else 2 if few else 1
    return Schedule(
        num_sms=num_ctas,
        send_ctas=num_ctas if few else -(-num_ctas // 3),
        send_warps=max(1, min(warps // 2, 3 if few else 6)),
        reduce_teams=max(1, teams * quarters // 4),
        dispatch_group=2,
        combine_group=4 if very_few else 2,
    )
