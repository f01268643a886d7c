"""Run the kernels that evaluate a relation: arguments -> domain points."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.engine.arguments import Arguments, is_ragged
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan import Points, key_to_rank
from fuscoc_runtime.plan.explain import explain_division
from fuscoc_runtime.scalar import Scalar, Scope, evaluate


@dataclass(frozen=True, eq=False)
class Ragged:
    """Where every outer index begins.

    ``outer``: int64 [num_points], the outer index of a point. ``point_offset``, ``cell_offset``:
    int64 [num_outer + 1], points and source cells before an outer index.
    """

    outer: Tensor
    point_offset: Tensor
    cell_offset: Tensor


def evaluate_relation(machine: Machine, arguments: Arguments) -> Points:
    """Every domain point's source, destination rank and key or slot, from the relation kernel.

    Out-of-range destinations are marked in the result, not raised.

    Raises:
        InputError, InexactDivisionError: sizes that contradict each other or the source.
    """
    shuffle = machine.shuffle
    values = _input_values(machine, arguments)
    if shuffle.extents_kernel is not None:
        ragged = _ragged(machine, arguments, shuffle.extents_kernel, values)
        _check_cells(machine, arguments, int(ragged.cell_offset[-1]))
        num_points = len(ragged.outer)
        values |= {name: address(table) for name, table in vars(ragged).items()}
    else:
        num_points = _num_points(machine, arguments)
    owners = None
    if shuffle.target.kind == "packed":
        context = machine.context
        owners = key_to_rank(
            shuffle.target, context.topology, context.rank, arguments.inputs, machine.device
        )
        values["key_to_rank"] = address(owners)
    columns = {name: _column(machine, num_points) for name in shuffle.relation.outputs}
    values |= {name: address(column) for name, column in columns.items()}
    values |= {"num_points": num_points, "num_ranks": machine.context.topology.num_ranks}
    if num_points:
        num_programs = -(-num_points // shuffle.relation.block)
        machine.launch(shuffle.relation.kernel, values, num_programs)
    length = None
    if shuffle.target.kind == "dense":
        length = _evaluate(shuffle.target.length, arguments)
    return Points(columns, owners, length, arguments.inputs, arguments.extents)


def _input_values(machine: Machine, arguments: Arguments) -> dict[str, int]:
    return {
        **{f"extent.{name}": value for name, value in arguments.extents.items()},
        **{f"input.{name}": address(tensor) for name, tensor in arguments.inputs.items()},
    }


def _ragged(
    machine: Machine, arguments: Arguments, kernel: str, input_values: dict[str, int]
) -> Ragged:
    for spec in machine.shuffle.inputs:
        if spec.role == "extent" and bool((arguments.inputs[spec.name] < 0).any()):
            raise machine.checker.problem(spec.name, "has a negative size")
    num_outer = _evaluate(machine.shuffle.domain[0].extent, arguments)
    tables = {name: _column(machine, num_outer) for name in ("points", "cells", "status")}
    values = {**input_values, "num_outer": num_outer}
    values |= {name: address(table) for name, table in tables.items()}
    if num_outer:
        machine.launch(kernel, values, machine.num_programs)
    inexact = torch.nonzero(tables["status"])
    if len(inexact):
        outer, rank = int(inexact[0]), machine.context.rank
        raise explain_division(machine.shuffle, rank, arguments.inputs, arguments.extents, outer)
    indices = torch.arange(num_outer, dtype=torch.int64, device=machine.device)
    return Ragged(
        torch.repeat_interleave(indices, tables["points"]),
        _offsets(tables["points"]),
        _offsets(tables["cells"]),
    )


def _check_cells(machine: Machine, arguments: Arguments, num_cells: int) -> None:
    """A source whose outer entries are concatenated holds as many cells as its sizes say."""
    if not is_ragged(machine.shuffle.source.dims):
        return
    for name, tensor in arguments.fields.items():
        if len(tensor) != num_cells:
            raise machine.checker.problem(
                name, f"has {len(tensor)} cells; its sizes add up to {num_cells}"
            )


def _num_points(machine: Machine, arguments: Arguments) -> int:
    extents = [index.extent for index in machine.shuffle.domain]
    return math.prod(_evaluate(extent, arguments) for extent in extents)


def _evaluate(scalar: Scalar, arguments: Arguments) -> int:
    """A size that is the same at every index."""
    return evaluate(scalar, Scope(arguments.extents, arguments.inputs))


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _column(machine: Machine, length: int) -> Tensor:
    return torch.empty(length, dtype=torch.int64, device=machine.device)
