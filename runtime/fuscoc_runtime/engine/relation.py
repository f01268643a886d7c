"""Run the kernels that evaluate a relation: arguments -> domain points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.engine import sizes
from fuscoc_runtime.engine.arguments import Arguments, Checker
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.plan import Points, key_to_rank
from fuscoc_runtime.plan.explain import explain_extents

MAX_PROGRAMS = 2**16
"""Of a relation kernel, which counts the first point of a program, and its stride, in 32 bits."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Where every outer index begins.

    ``outer``: int64 [num_points], the outer index of a point. ``point_offset``, ``cell_offset``:
    int64 [num_outer + 1], points and source cells before an outer index.
    """

    outer: Tensor
    point_offset: Tensor
    cell_offset: Tensor

    @property
    def num_points(self) -> int:
        """All of them."""
        return len(self.outer)

    @property
    def addresses(self) -> dict[str, int]:
        """What the relation is given, by value name."""
        return {name: address(table) for name, table in vars(self).items()}


def evaluate_relation(machine: Machine, arguments: Arguments) -> Points:
    """Every domain point's source, destination rank and key or slot, from the relation kernel.

    Out-of-range destinations are marked in the result, not raised.

    Raises:
        InputError, InexactDivisionError: sizes that contradict each other or the source.
    """
    shuffle = machine.shuffle
    values = _input_values(arguments)
    if shuffle.program.relation.extents_kernel is not None:
        kernel = shuffle.program.relation.extents_kernel

        def launch(values: Mapping[str, int]) -> None:
            _launch(machine, kernel, values, machine.num_programs)

        ragged = add_up(machine.checker, arguments, launch)
        num_points, values = ragged.num_points, values | ragged.addresses
    else:
        num_points = sizes.num_points(machine.checker, arguments)
    owners = None
    if shuffle.program.target.kind == "packed":
        owners = _owners(machine, shuffle.program.target, arguments)
        values["key_to_rank"] = address(owners)
    outputs = shuffle.program.relation.outputs
    # A place that does not exist is looked up at 0: of an empty input that is any memory.
    empty = {name: given for name, given in arguments.inputs.items() if not given.numel()}
    spare = max((math.prod(given.shape[1:]) for given in empty.values()), default=0)
    *memory, anywhere = _allocate([*[num_points] * len(outputs), spare], machine.device)
    columns = dict(zip(outputs, memory, strict=True))
    values |= {name: address(column) for name, column in columns.items()}
    values |= {f"input.{name}": address(anywhere) for name in empty}
    values |= {"num_points": num_points, "num_ranks": machine.context.topology.num_ranks}
    if num_points:
        num_programs = min(-(-num_points // shuffle.program.relation.block), MAX_PROGRAMS)
        _launch(machine, shuffle.program.relation.kernel, values, num_programs)
    length = sizes.target_length(machine.checker, arguments)
    return Points(columns, owners, length, arguments.inputs, arguments.extents)


def _owners(machine: Machine, target: PackedSlots, arguments: Arguments) -> Tensor:
    """The rank of every key. Only a table, which is an input, changes from call to call."""
    if machine.owners is not None:
        return machine.owners
    context = machine.context
    owners = key_to_rank(target, context.topology, context.rank, arguments.inputs, machine.device)
    if target.placement.kind != "table":
        machine.owners = owners
    return owners


def _launch(machine: Machine, kernel: str, values: Mapping[str, int], num_programs: int) -> None:
    machine.launch(kernel, machine.kernel(kernel).arguments(values), num_programs)


def _input_values(arguments: Arguments) -> dict[str, int]:
    return {
        **{f"extent.{name}": value for name, value in arguments.extents.items()},
        **{f"input.{name}": address(tensor) for name, tensor in arguments.inputs.items()},
    }


def add_up(
    checker: Checker,
    arguments: Arguments,
    launch: Callable[[Mapping[str, int]], None],
) -> Ragged:
    """The sizes of a ragged domain, for which the host waits. ``launch`` is given the numbers of
    the kernel of extents.

    Raises:
        InputError, InexactDivisionError: sizes that contradict each other or the source.
    """
    num_outer, device = sizes.num_outer(checker, arguments), checker.device
    names = "points", "cells", "status"
    tables = dict(zip(names, _allocate([num_outer] * 3, device), strict=True))
    values = {**_input_values(arguments), "num_outer": num_outer}
    values |= {name: address(table) for name, table in tables.items()}
    if num_outer:
        launch(values)
    sums = torch.stack([tables[name].sum() for name in ("status", "points", "cells")])
    bad, num_points, num_cells = sums.tolist()  # the only wait
    if bad:
        outer = int(torch.nonzero(tables["status"])[0])
        raise explain_extents(
            checker.shuffle, checker.rank, arguments.inputs, arguments.extents, outer
        )
    sizes.check_cells(checker, arguments, num_cells)
    indices = torch.arange(num_outer, dtype=torch.int64, device=device)
    return Ragged(
        torch.repeat_interleave(indices, tables["points"], output_size=num_points),
        _offsets(tables["points"]),
        _offsets(tables["cells"]),
    )


def _allocate(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, ...]:
    """int64 arrays of so many elements, in one piece of memory."""
    memory = torch.empty(sum(sizes), dtype=torch.int64, device=device)
    return torch.split_with_sizes(memory, sizes)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
