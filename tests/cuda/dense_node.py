"""A case on one rank's GPU: its kernels, its calls, and what must come of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime import reference
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.packing import domain_points
from fuscoc_runtime.demo.verify import tolerance
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.arguments import Arguments, Checker
from fuscoc_runtime.engine.node import pieces
from fuscoc_runtime.engine.node.cuda import new_node, node_program
from fuscoc_runtime.engine.node.pieces import PiecesNode
from fuscoc_runtime.engine.node.ragged import ragged_evaluator
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Limits, Trouble, parse_state
from fuscoc_runtime.engine.node.watch import find_errors
from fuscoc_runtime.kernels.cuda import ARCH_VARIABLE
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Extent, Scope, builtin_extents, evaluate
from fuscoc_runtime.topology import Topology

UNTOUCHED = 0xA5  # in every byte of a row before a call
SPARE = 3  # of segments and slots
FEW_SMS = 16  # on which results are lent


@dataclass(frozen=True, eq=False)
class Batch:
    """What one rank passes to a call, on its device, and what must come of it.

    ``rows`` are uint8 [num_slots, bytes] by field, ``filled`` says which of them there are.
    Of a packed target every key of this rank has as many rows as ``key_counts`` says. ``worked``
    are the rows that combine takes; a result that is a sum may be off by ``allowed``.
    """

    source: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]
    num_sources: int
    num_slots: int
    rows: tuple[Tensor, ...]
    filled: Tensor
    key_counts: tuple[int, ...] = ()
    worked: Mapping[str, Tensor] | None = None
    result: Mapping[str, Tensor] = field(default_factory=dict)
    allowed: Mapping[str, Tensor] = field(default_factory=dict)


class Dense:
    """The kernels of an artifact on this rank, with room for the calls that ``data`` are and
    ``spare`` segments. They may lend results, on few SMs."""

    def __init__(
        self,
        path: Path,
        data: list[list[RankData]],
        device: torch.device,
        spare: int = SPARE,
        lends: bool = False,
    ) -> None:
        self.artifact, self.device = load_artifact(path), device
        self.shuffle = self.artifact.shuffle(None)
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        num_points = max(len(self._points(r, each)) for d in data for r, each in enumerate(d))
        self.points_each = self.shuffle.program.num_points_each(self.num_ranks)
        most = num_points // self.points_each + spare
        if lends:
            most += self.segments_of(data)
        layouts = [each for d in data for each in reference.route(self.shuffle, d)[1]]
        capacity = max(each.num_slots for each in layouts) + SPARE
        assert self.shuffle.cuda is not None
        named = os.environ.get(ARCH_VARIABLE, "sm_{}{}".format(*torch.cuda.get_device_capability()))
        variant = next(v for v in self.shuffle.cuda.variants if int(v.arch[3:]) <= int(named[3:]))
        shuffle = self.shuffle.among(self.num_ranks)
        program = node_program(self.artifact, shuffle, variant)
        with mock.patch.object(pieces, "LENT_BYTES", 0):
            self.node = new_node(
                program,
                Limits(most, capacity),
                dist.group.WORLD,
                device,
                Schedule(num_sms=FEW_SMS * lends),
            )
        self._ragged = ragged_evaluator(self.artifact, self.shuffle, self.node)
        self._checker = Checker(self.shuffle, self.rank, self.num_ranks, device)

    def _scope(self, rank: int, data: RankData) -> Scope:
        extents = {**data.extents, **builtin_extents(rank, self.num_ranks)}
        return Scope(extents, data.inputs)

    def _points(self, rank: int, data: RankData) -> list[Scope]:
        return list(domain_points(self.shuffle.declared.domain, self._scope(rank, data)))

    def num_slots(self, rank: int, data: RankData) -> int:
        target = self.shuffle.declared.target
        assert target.kind == "dense"
        return evaluate(target.length, self._scope(rank, data))

    def batch(self, ranks: list[RankData], seed: int = 0) -> Batch:
        """This rank's part of a call that has no mistakes, and what the reference makes of it."""
        expected = reference.dispatch(self.shuffle, ranks)
        mine, data = expected[self.rank], ranks[self.rank]
        batch = Batch(
            {name: each.to(self.device) for name, each in data.source.items()},
            {name: each.to(self.device) for name, each in data.inputs.items()},
            {**data.extents, **builtin_extents(self.rank, self.num_ranks)},
            len(self._points(self.rank, data))
            // self.shuffle.program.num_points_each(self.num_ranks),
            len(mine.written),
            tuple(in_bytes(each).to(self.device) for each in mine.fields.values()),
            mine.written.to(self.device),
            mine.key_counts,
        )
        combine = self.shuffle.declared.combine
        if combine is None:
            return batch
        worked = []
        for rank, rows in enumerate(expected):
            random, made = torch.Generator().manual_seed(1000 * seed + rank), dict[str, Tensor]()
            for each in self.shuffle.program.buffers["source"]:  # what comes back was never cast
                dtype, shape = TORCH_DTYPES[each.dtype], (len(rows.written), *each.shape)
                if combine.kind == "copy":
                    nbytes = torch.Size(shape).numel() * dtype.itemsize
                    values = torch.randint(1, 256, (nbytes,), generator=random).to(torch.uint8)
                    made[each.name] = values.view(dtype).view(shape)
                else:
                    made[each.name] = torch.randn(shape, generator=random).to(dtype)
            worked.append(made)
        result = reference.combine(self.shuffle, ranks, worked)[self.rank]
        allowed = {
            name: tolerance(data.source[name].dtype, each).to(self.device)
            for name, each in result.magnitude.items()
        }
        return replace(
            batch,
            worked={name: each.to(self.device) for name, each in worked[self.rank].items()},
            result={name: each.to(self.device) for name, each in result.fields.items()},
            allowed=allowed,
        )

    def mixed(self, batch: Batch, byte: int) -> Batch:
        """The same call of other bytes, in each the bits of ``byte`` turned, where they are only
        moved. Those of a result that are 0 are no row's: rows that come back have none."""
        declared = self.shuffle.declared
        if not declared.casts:
            source = {name: turned(each, byte) for name, each in batch.source.items()}
            batch = replace(batch, source=source, rows=tuple(each ^ byte for each in batch.rows))
        if batch.worked is not None and declared.combine and declared.combine.kind == "copy":
            worked = {name: turned(each, byte) for name, each in batch.worked.items()}
            result = {
                name: torch.where(in_bytes(each) != 0, in_bytes(each) ^ byte, 0)
                for name, each in batch.result.items()
            }
            batch = replace(batch, worked=worked, result=result)
        return batch

    def dispatch(self, batch: Batch) -> Launched:
        arguments = Arguments(batch.source, batch.inputs, batch.extents)
        program, num_sources, ragged = self.shuffle.program, batch.num_sources, None
        if self._ragged is not None:
            ragged = self._ragged.evaluate(self._checker, arguments)
            num_sources = 0 if ragged is None else self.node.limits.max_sources
        weight = program.weight
        return self.node.dispatch(
            list(batch.source.values()),
            [batch.inputs[name] for name in program.inputs],
            [batch.extents[name] for name in program.extents],
            num_sources,
            None if weight is None else batch.inputs[weight.name].to(torch.float32),
            num_slots=batch.num_slots if self.node.program.given_slots else 0,
            ragged=ragged,
        )

    def segments_of(self, data: list[list[RankData]]) -> int:
        """How many the largest source has, moved or not: room for them lends a whole result."""
        return max(
            each.source[field.name].numel() // field.num_elems
            for field in self.shuffle.program.buffers["source"]
            for ranks in data
            for each in ranks
        )

    def combine(self, batch: Batch, handle: Launched) -> dict[str, Tensor]:
        assert batch.worked is not None
        before, make = 0 if self.node.zeroes_results else 77, torch.empty
        if isinstance(self.node, PiecesNode) and self.node.results is not None:
            make = self.node.results.empty
        results = {
            name: make(each.shape, dtype=each.dtype, device=each.device)
            for name, each in batch.source.items()
        }
        for each in results.values():
            each.fill_(before)
        self.node.combine(list(batch.worked.values()), handle, list(results.values()))
        return results

    def are_lent(self, results: Mapping[str, Tensor]) -> bool:
        """Whether peers store into them, or do so if all ranks lend theirs."""
        if not isinstance(self.node, PiecesNode) or self.node.results is None:
            return False
        return all(self.node.results.offset(each) >= 0 for each in results.values())

    def wipe(self) -> None:
        """Make every row of the window one that nobody has written."""
        for rows in self.node.rows:
            rows.view(torch.uint8).fill_(UNTOUCHED)

    def wrong_rows(self, batch: Batch, handle: Launched) -> Tensor:
        """int64 [], how many rows are not what they must be; on the device."""
        if handle.has_given_slots:
            wrong = (handle.filled != batch.filled).sum()
        else:
            counts = torch.tensor(batch.key_counts, dtype=torch.int32, device=self.device)
            wrong = (handle.key_counts[: len(counts)] != counts).sum()
        for held, wanted in zip(self.node.rows, batch.rows, strict=True):
            found = in_bytes(held)
            if handle.row_index is not None:  # what slots refer to
                index, count = handle.row_index, batch.num_slots
                wrong = wrong + ((index[:count] >= 0) != batch.filled).sum()
                found = found[index.clamp(min=0)]
                found = torch.where((index >= 0)[:, None], found, UNTOUCHED)
            filled = torch.zeros(len(found), dtype=torch.bool, device=self.device)
            filled[: batch.num_slots] = batch.filled
            right = torch.full_like(found, UNTOUCHED)
            right[: batch.num_slots] = wanted
            right = torch.where(filled[:, None], right, UNTOUCHED)
            wrong = wrong + (found != right).any(1).sum()
        return wrong

    def wrong_result(self, batch: Batch, results: Mapping[str, Tensor]) -> Tensor:
        """int64 [], how many elements of a combine are not what they must be; on the device."""
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for name, wanted in batch.result.items():
            found, allowed = results[name], batch.allowed.get(name)
            if allowed is None:
                wrong += (in_bytes(found) != in_bytes(wanted)).sum()
            else:
                wrong += (~((found.double() - wanted).abs() <= allowed)).sum()
        return wrong

    def troubles(self) -> Trouble:
        return parse_state(self.node.state.tolist())

    def errors(self, before: Trouble) -> dict[str, int]:
        """Names of the errors that ``check`` would raise of what is new, with their counts."""
        found = find_errors(self.shuffle, self.rank, self.node.limits, before, self.troubles())
        return {type(error).__name__: vars(error)["count"] for error, _ in found}


def ranks_of(dense_path: Path, tokens: int, seeds: range) -> list[list[RankData]]:
    """Arguments of all ranks, for as many calls as there are seeds; targets are equally long."""
    shuffle = load_artifact(dense_path).shuffle(None)
    topology = Topology(1, dist.get_world_size())
    calls = [generate(shuffle, topology, tokens, seed) for seed in seeds]
    target = shuffle.declared.target
    if target.kind == "packed" or not isinstance(target.length, Extent):
        return calls
    name = target.length.name
    longest = max(each.extents[name] for call in calls for each in call)
    return [
        [replace(each, extents={**each.extents, name: longest}) for each in call] for call in calls
    ]


def in_bytes(tensor: Tensor) -> Tensor:
    """uint8 [entries, bytes]."""
    width = tensor.shape[1:].numel() * tensor.element_size()
    return tensor.contiguous().view(-1).view(torch.uint8).view(len(tensor), width)


def turned(tensor: Tensor, byte: int) -> Tensor:
    return (in_bytes(tensor) ^ byte).view(-1).view(tensor.dtype).view(tensor.shape)


SCHEDULES = (
    Schedule(),
    Schedule(num_sms=16, dispatch_group=3, combine_group=2),
    Schedule(num_sms=2, send_ctas=1, send_warps=2, dispatch_group=4, combine_group=4),
    Schedule(num_sms=1, dispatch_group=1, combine_group=1),
)
