"""One rank's part of a verified run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.memory import memory_arguments
from fuscoc_runtime.demo.packing import NoDataError
from fuscoc_runtime.demo.verify import (
    MismatchError,
    by_slot,
    check_memory,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.engine.handle import Handle, HopStats
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.face.complexes import as_complex
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.kernels.trace import Span
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.reference import RankData, RankResult, RankRows
from fuscoc_runtime.scalar import Scope, evaluate

T = TypeVar("T")

Progress = Callable[[str], None]
PHASES = STARTED, COMPUTED, DISPATCHED, COMBINED = (
    "rank processes started",
    "reference computed",
    "dispatch verified",
    "combine verified",
)


HOPS = ("network", "carried", "nvlink", "local")


@dataclass(frozen=True)
class RankReport:
    """What one rank of a run did and measured.

    Attributes:
        tokens: extent of the rank's outermost index.
        slots: rows of its target, padding included.
        network, carried, nvlink, local: rows by hop; see ``DispatchStats``.
        planning_ms, dispatch_ms, combine_ms: host time of a second call; planning is a part of
            dispatch. Without a combine, ``combine_ms`` is ``None``.
        problem: how a result differs from the reference; ``None`` if none does.
        spans: what the rank did when, if that was asked for.
    """

    rank: int
    node: int
    device: str
    tokens: int
    slots: int
    network: HopStats
    carried: HopStats
    nvlink: HopStats
    local: HopStats
    planning_ms: float
    dispatch_ms: float
    combine_ms: float | None
    problem: str | None
    spans: tuple[Span, ...] = ()

    @property
    def verified(self) -> bool:
        return self.problem is None

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RankReport:
        """The report that ``dataclasses.asdict`` made ``values`` of."""
        hops = {name: HopStats(**values[name]) for name in HOPS}
        spans = tuple(Span(**each) for each in values["spans"])
        return cls(**{**values, **hops, "spans": spans})


def run_rank(
    artifact: Artifact,
    name: str | None,
    tokens: int,
    seed: int,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> RankReport:
    """Dispatch and combine made-up data on this rank, verify both, and time them once more.

    ``progress`` is told each of ``PHASES`` that this rank has got through. ``options`` are those of
    ``Shuffle``. Collective over all ranks.
    """
    tell = progress if progress is not None else _ignore
    shuffle = Shuffle(artifact, name, **options)
    tell(STARTED)
    spec, device = shuffle.spec, shuffle.device
    try:
        data = generate(spec, shuffle.topology, tokens, seed)
    except NoDataError as error:
        raise OptionError(
            "shuffle", f"is `{spec.name}`, for which no data is made up: {error}"
        ) from error
    mine, wanted, reference, memory = _expected(shuffle, data)
    tell(COMPUTED)

    def dispatch() -> tuple[dict[str, Tensor], Handle | ExactHandle]:
        rows, handle = shuffle.dispatch(**_dispatch_arguments(shuffle, mine))
        return _by_field(spec.declared.fields, rows), handle

    def work(rows: Mapping[str, Tensor], handle: Handle | ExactHandle) -> dict[str, Tensor]:
        held = by_slot(rows, handle)
        if memory is not None:  # which dispatch has returned
            held = {name: each.to(device) for name, each in wanted.fields.items()}
        return work_on(spec, held, wanted.written, slot_keys(wanted))

    rows, handle = dispatch()

    def check() -> None:
        check_rows(wanted, rows, handle) if memory is None else check_memory(memory, rows)

    problem = _problem(check)
    if problem is None:
        tell(DISPATCHED)
    weights = _weights(shuffle, mine)

    def combine(rows: Mapping[str, Tensor], handle: Handle | ExactHandle) -> dict[str, Tensor]:
        return _by_field(spec.back.declared.fields, shuffle.combine(rows, handle, **weights))

    if reference is not None:
        result = combine(work(rows, handle), handle)
        problem = problem or _problem(lambda: check_result(reference, result))
        if problem is None:
            tell(COMBINED)

    (rows, handle), dispatch_ms = _timed(dispatch, device)
    combine_ms = None
    if reference is not None:
        worked = work(rows, handle)
        _, combine_ms = _timed(lambda: combine(worked, handle), device)
    stats = shuffle.stats()
    assert stats is not None
    return RankReport(
        rank=shuffle.rank,
        node=shuffle.topology.node(shuffle.rank),
        device=str(device),
        tokens=evaluate(spec.declared.domain[0].extent, Scope(handle.extents, mine.inputs)),
        slots=handle.num_slots,
        network=stats.network,
        carried=stats.carried,
        nvlink=stats.nvlink,
        local=stats.local,
        planning_ms=stats.planning_ms,
        dispatch_ms=dispatch_ms,
        combine_ms=combine_ms,
        problem=problem,
        spans=tuple(shuffle.spans),
    )


def _expected(
    shuffle: Shuffle, ranks: Sequence[RankData]
) -> tuple[RankData, RankRows, RankResult | None, dict[str, Tensor] | None]:
    """This rank's data, rows, result and memory; those of the other ranks are let go."""
    expected = expect(shuffle.spec, ranks, shuffle.rank)
    result = expected.results[shuffle.rank] if expected.results is not None else None
    memory = expected.memory[shuffle.rank] if expected.memory is not None else None
    return ranks[shuffle.rank], expected.rows[shuffle.rank], result, memory


def _dispatch_arguments(shuffle: Shuffle, data: RankData) -> dict[str, Any]:
    tensors = {
        **as_complex(shuffle.spec.declared.source.fields, data.source),
        **{s.name: data.inputs[s.name] for s in shuffle.spec.declared.inputs if s.role != "weight"},
    }
    given: dict[str, Any] = tree_map_only(
        Tensor,
        lambda tensor: tensor.to(shuffle.device),
        {**tensors, **data.extents, **memory_arguments(shuffle.spec, data)},
    )
    return given


def _weights(shuffle: Shuffle, data: RankData) -> dict[str, Any]:
    combine = shuffle.spec.back.declared.combine
    weight = combine.weight if combine is not None else None
    return {} if weight is None else {weight.input: data.inputs[weight.input].to(shuffle.device)}


def _by_field(
    specs: Sequence[FieldSpec], fields: Tensor | Mapping[str, Tensor]
) -> dict[str, Tensor]:
    if isinstance(fields, Tensor):
        return {specs[0].name: fields}
    return dict(fields)


def _ignore(phase: str) -> None:
    pass


def _problem(check: Callable[[], None]) -> str | None:
    try:
        check()
    except MismatchError as error:
        return str(error)
    return None


def _timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - started) * 1e3
