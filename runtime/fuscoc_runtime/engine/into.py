"""Memory of the caller's that rows go into: what a call is given, and where in it every row goes.

Ranks do this alone: a table that says where rows go is the receiver's own, and nobody else reads
it. Rows have landed in the target's window, whichever engine has brought them, and one kernel puts
them where they belong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.engine.arguments import Checker, Shape, materialised
from fuscoc_runtime.engine.row_kernels import claim_places, settle_places
from fuscoc_runtime.errors import FuscoRuntimeError, PlaceOverlapError, PlaceRangeError
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.kernels.stored import kernel_of
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.kernels.traced import traced
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import IntoSpec, ShuffleSpec
from fuscoc_runtime.plan.explain import coordinates, explain_place
from fuscoc_runtime.scalar import Load, Scope, evaluate, render, subexpressions

NOWHERE, OUT_OF_RANGE, TAKEN = -1, -2, -3
"""What a part of a row has instead of a place: none was given, it does not exist, or a part of an
earlier slot has it."""


@dataclass(frozen=True, eq=False)
class Given:
    """What one call brings: ``memory`` by field, contiguous tensors that may require grad, and
    ``places``, int64 [num_parts], where in it each part of a row goes, below 0 for none.

    ``lost`` are the rows of which a part has no place, int64 [1]; where rows are put, int64 [2],
    with those behind of which an earlier row has it. ``inputs`` and ``extents`` say why.
    """

    memory: Mapping[str, Tensor]
    places: Tensor
    lost: Tensor
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]


class Into:
    """One rank's side of an ``into``.

    Attributes:
        latest: [num_parts], where the latest call has put the parts of its rows, below 0: nowhere.

    Args:
        raises: whether mistakes of a call's tables are raised by the call, before anything moves;
            else rows without a place of their own are counted, for ``check``.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        rank: int,
        num_ranks: int,
        device: torch.device,
        *,
        raises: bool,
        tracer: Tracer | None = None,
    ) -> None:
        assert shuffle.into is not None
        self.spec: IntoSpec = shuffle.into
        self._shuffle, self.raises = shuffle, raises
        # Gradients flow if they do through the shuffle.
        declared = replace(
            self.spec.declared, combine=shuffle.declared.combine, casts=shuffle.declared.casts
        )
        self._checker = Checker(replace(shuffle, declared=declared), rank, num_ranks, device)
        kernel = kernel_of(artifact, self.spec.kernel, interpreted=device.type == "cpu")
        self._kernel = traced(kernel, tracer)
        self.latest: Tensor | None = None
        self._lost = torch.zeros(2, dtype=torch.int64, device=device)

    @property
    def part_bytes(self) -> int:
        """Bytes of a part of a row, all fields."""
        return sum(each.num_bytes for each in self.spec.parts)

    @property
    def parts_of_row(self) -> int:
        """Parts that a row is cut into."""
        whole = self._shuffle.program.buffers["target"][0].num_elems
        return whole // self.spec.parts[0].num_elems

    def split(self, named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of a call by name: those that this takes, and those that dispatch does."""
        spec, declared = self.spec, self.spec.declared
        takes = {spec.argument, *declared.extents, *(item.name for item in declared.inputs)}
        alone = {spec.argument, *spec.extents, *spec.inputs}
        own = {name: value for name, value in named.items() if name in takes}
        return own, {name: value for name, value in named.items() if name not in alone}

    def told(self, named: Mapping[str, Any], given: Given) -> dict[str, Any]:
        """A dispatch's arguments by name, with the extents that ``given`` has told."""
        extents = self._shuffle.declared.extents
        return {**named, **{name: given.extents[name] for name in extents if name in given.extents}}

    def prepare(
        self, own: Mapping[str, Any], sources: Iterable[Any], num_slots: int | None = None
    ) -> Given:
        """Check what a call is given, without waiting for the device; ``sources`` are the tensors
        that it reads, and ``num_slots`` the slots that it has, if a handle tells.

        Raises:
            InputError: a tensor of another form, one that is not contiguous, that shares memory
                with a source, or that autograd lets nobody change; tables for other slots.
        """
        memory = self._memory(own)
        declared, argument = self.spec.declared, self.spec.argument
        given = {name: value for name, value in own.items() if name != argument}
        shapes: dict[str, Shape] = {
            self._called(field.name): (*self.spec.dims, *field.shape) for field in self.spec.fields
        }
        dtypes = {self._called(field.name): field.dtype for field in self.spec.fields}
        tensors = {self._called(name): tensor for name, tensor in memory.items()}
        extents = self._checker.of_memory(
            {**given, **tensors},
            {**shapes, **{item.name: item.shape for item in declared.inputs}},
            {**dtypes, **{item.name: item.dtype for item in declared.inputs}},
        )
        for name, tensor in tensors.items():
            if not tensor.is_contiguous() or tensor.is_neg():
                kind = "negated lazily" if tensor.is_neg() else "not contiguous"
                raise self._checker.problem(name, f"is {kind}: rows are put where it lies")
            if torch.is_grad_enabled() and tensor.requires_grad and tensor.is_leaf:
                problem = "is a leaf that requires grad, which nothing may change in place"
                raise self._checker.problem(name, f"{problem}: call this without grad")
            if any(_share(tensor, each) for each in sources if isinstance(each, Tensor)):
                raise self._checker.problem(name, "shares memory with a source of this call")
        for (name, tensor), (other, another) in combinations(tensors.items(), 2):
            if _share(tensor, another):
                raise self._checker.problem(name, f"shares memory with `{other}`")
        inputs = {item.name: materialised(given[item.name]) for item in declared.inputs}
        places = self._places(inputs, extents)
        lost = self._faults(places)
        slots = len(places) // self.parts_of_row
        if num_slots is not None and num_slots != slots:
            problem = f"is of a dispatch with {num_slots} slots; this call has {slots}"
            raise self._checker.problem("handle", problem)
        return Given(memory, places, lost, inputs, extents)

    def fault(self, given: Given) -> FuscoRuntimeError | None:
        """What is wrong with the tables of a call, if that is not only counted; then this waits.

        An IndexOutOfRangeError, PlaceRangeError or PlaceOverlapError: rows without a place of their
        own.
        """
        if not self.raises:
            self._lost[: len(given.lost)] += given.lost
            return None
        outside, *overlapping = given.lost.tolist()
        if outside:
            point = int((given.places == OUT_OF_RANGE).nonzero()[0])
            scope = Scope(given.extents, given.inputs)
            here = scope.at(coordinates(self.spec.declared.domain, scope, point))
            missing = explain_place(self.spec.declared, self._checker.rank, here)
            return missing or self._fault(PlaceRangeError, outside)
        return self._fault(PlaceOverlapError, *overlapping) if any(overlapping) else None

    def settle(
        self, places: Tensor, num_places: int, filling: tuple[Tensor, Tensor | None]
    ) -> Tensor:
        """What `latest` is of a call with these ``places`` among so many; ``filling`` tells which
        slots have a row. Rows without a place of their own are counted."""
        by_slot, lost = places.view(-1, self.parts_of_row), None
        if self.spec.kind == "copy":
            claim_places(places, self.parts_of_row, (OUT_OF_RANGE, TAKEN), self._lost)
        else:
            lost = self._lost
        return settle_places(by_slot, *filling, lost, num_places, OUT_OF_RANGE)

    def check(self) -> None:
        """Raise what was counted since the last time; waits for it."""
        if self.raises:
            return
        outside, taken = self._lost.tolist()
        self._lost.zero_()
        if outside:
            raise self._fault(PlaceRangeError, outside)
        if taken:
            raise self._fault(PlaceOverlapError, taken)

    def _memory(self, own: Mapping[str, Any]) -> dict[str, Tensor]:
        argument, fields = self.spec.argument, self.spec.fields
        if argument not in own:
            raise self._checker.problem(argument, "is missing")
        given = own[argument]
        by_field = given if isinstance(given, Mapping) else {fields[0].name: given}
        names = [field.name for field in fields]
        if sorted(by_field) != sorted(names):
            listed = ", ".join(f"`{name}`" for name in names)
            raise self._checker.problem(argument, f"must be a dict of {listed}")
        return {name: by_field[name] for name in names}

    def _called(self, field: str) -> str:
        """How messages call a tensor."""
        single = len(self.spec.fields) == 1
        return self.spec.argument if single else f"{self.spec.argument}.{field}"

    def _places(self, inputs: Mapping[str, Tensor], extents: Mapping[str, int]) -> Tensor:
        numbers = self.numbers(extents)
        places = torch.empty(numbers["num_points"], dtype=torch.int64, device=self._lost.device)
        # A place that does not exist is looked up at 0: of an empty input that is any memory.
        read = {name: each if each.numel() else places for name, each in inputs.items()}
        self.look_up(numbers, {name: address(each) for name, each in read.items()}, places)
        return places

    def numbers(self, extents: Mapping[str, int]) -> dict[str, int]:
        """What the kernel that looks places up is told of calls with these extents, by name; among
        it ``num_points``, parts of rows, and ``num_places``, parts of the memory."""
        declared, scope = self.spec.declared, Scope(extents)
        assert declared.target.kind == "dense"
        sizes = [evaluate(index.extent, scope) for index in declared.domain]
        return {
            "num_points": math.prod(sizes),
            "num_ranks": extents["ranks"],
            "num_places": evaluate(declared.target.length, scope),
            **{f"extent.{name}": value for name, value in extents.items()},
        }

    def look_up(
        self, numbers: Mapping[str, int], inputs: Mapping[str, int], places: Tensor
    ) -> None:
        """Make the ``places``, int64 [num_points], from inputs at these addresses."""
        if not len(places):
            return
        values = {
            **numbers,
            "place": address(places),
            **{f"input.{name}": each for name, each in inputs.items()},
        }
        self._kernel.launch(values, -(-len(places) // self.spec.block))

    def _faults(self, places: Tensor) -> Tensor:
        """`Given.lost` of these places. If rows are put, those that a part of an earlier slot has,
        too, are marked as taken."""
        if self.spec.kind == "copy":
            lost = torch.zeros_like(self._lost)
            claim_places(places, self.parts_of_row, (OUT_OF_RANGE, TAKEN), lost)
            return lost
        return (places.view(-1, self.parts_of_row) == OUT_OF_RANGE).any(1).sum(0, keepdim=True)

    def _fault(
        self, kind: type[PlaceRangeError | PlaceOverlapError], count: int
    ) -> FuscoRuntimeError:
        target = self.spec.declared.target
        assert target.kind == "dense"
        read = [part for part in subexpressions(target.slot) if isinstance(part, Load)]
        place = ", ".join(map(render, dict.fromkeys(read))) or render(target.slot)
        return kind(self._checker.rank, self.spec.argument, place, count)


def _share(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have memory in common, as far as their ends tell."""
    if not first.numel() or not second.numel() or first.device != second.device:
        return False
    ranges = [_addresses(each) for each in (first, second)]
    return max(each.start for each in ranges) < min(each.stop for each in ranges)


def _addresses(tensor: Tensor) -> range:
    steps: Sequence[tuple[int, int]] = list(zip(tensor.shape, tensor.stride(), strict=True))
    last = sum((size - 1) * stride for size, stride in steps)
    start = tensor.data_ptr()
    return range(start, start + (last + 1) * tensor.element_size())
