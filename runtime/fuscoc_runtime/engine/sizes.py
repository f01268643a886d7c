"""The sizes that the arguments of a call give, and whether there can be such."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

import torch

from fuscoc_runtime.engine.arguments import MAX_SIZE, Arguments, Checker, is_ragged
from fuscoc_runtime.engine.divisions import check_divisors
from fuscoc_runtime.errors import DivisorError
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.padding import most_slots
from fuscoc_runtime.scalar import (
    Extent,
    Load,
    Scalar,
    Scope,
    builtin_extents,
    evaluate,
    render,
    render_product,
    subexpressions,
)

T = TypeVar("T")


def num_sources(checker: Checker, arguments: Arguments) -> int:
    """Source segments of a shuffle that is not ragged."""
    spec = checker.shuffle.declared
    sizes = spec.domain[: spec.num_source_dims]
    return math.prod(evaluate(index.extent, Scope(arguments.extents)) for index in sizes)


def result_shapes(shuffle: ShuffleSpec, extents: Mapping[str, int]) -> dict[str, torch.Size]:
    """The shape of every field of what a way back returns, where no size varies."""
    source, scope = shuffle.declared.source, Scope(extents)
    dims = [evaluate(dim, scope) for dim in source.dims]
    return {field.name: torch.Size([*dims, *field.shape]) for field in source.fields}


def num_points(checker: Checker, arguments: Arguments) -> int:
    """Points of a domain that is not ragged.

    Raises:
        InputError: no size, or more than kernels can count.
    """
    extents = [index.extent for index in checker.shuffle.declared.domain]
    found = math.prod(_size(checker, extent, arguments) for extent in extents)
    if found > MAX_SIZE:
        names = render_product(extents)
        raise checker.problem(names, f"is {found}: more than kernels can count")
    return found


def num_outer(checker: Checker, arguments: Arguments) -> int:
    """Outermost indices of a ragged domain; the sizes inside may be any.

    Raises:
        InputError: no size.
    """
    return _size(checker, checker.shuffle.declared.domain[0].extent, arguments)


def target_length(checker: Checker, arguments: Arguments) -> int | None:
    """Slots of a dense target; None for another."""
    target = checker.shuffle.declared.target
    return _size(checker, target.length, arguments) if target.kind == "dense" else None


def fixed_length(shuffle: ShuffleSpec, num_ranks: int) -> int | None:
    """Slots that the rank with the most has in a dense target; None if a call's extents decide.

    Raises:
        DivisorError: so many ranks make a divisor of the length zero.
    """
    target = shuffle.declared.target
    assert target.kind == "dense"
    lengths = _of_all_ranks([target.length], num_ranks)
    return None if lengths is None else max(lengths)


def fixed_sources(shuffle: ShuffleSpec, num_ranks: int) -> int | None:
    """Source segments of the rank with the most; None if a call decides, or so many ranks make a
    divisor of their number zero, as calls will say."""
    sizes = shuffle.declared.domain[: shuffle.declared.num_source_dims]
    try:
        found = _of_all_ranks([each.extent for each in sizes], num_ranks)
    except DivisorError:
        return None
    return None if found is None else max(found)


def _of_all_ranks(factors: Sequence[Scalar], num_ranks: int) -> list[int] | None:
    """A product of sizes by rank; None if calls decide."""
    builtins = builtin_extents(0, num_ranks).keys()
    for part in chain.from_iterable(map(subexpressions, factors)):
        if isinstance(part, Load) or (isinstance(part, Extent) and part.name not in builtins):
            return None
    products = []
    for rank in range(num_ranks):
        extents = builtin_extents(rank, num_ranks)
        check_divisors(factors, rank, extents)
        products.append(math.prod(evaluate(each, Scope(extents)) for each in factors))
    return products


def check_capacity(checker: Checker, num_slots: int, capacity: int) -> None:
    """A dense target of kernels of fixed capacity has no more slots than there is room for."""
    target = checker.shuffle.declared.target
    if target.kind == "dense" and num_slots > capacity:
        problem = f"is {num_slots}; the shuffle was loaded with a `capacity` of {capacity}"
        raise checker.problem(render(target.length), problem)


def is_concatenated(checker: Checker) -> bool:
    """Whether the source's outer entries are of several sizes, which data says."""
    return is_ragged(checker.shuffle.declared.source.dims)


def check_cells(checker: Checker, arguments: Arguments, num_cells: int) -> None:
    """A source whose outer entries are concatenated holds as many cells as its sizes say."""
    if not is_concatenated(checker):
        return
    for name, tensor in arguments.fields.items():
        if len(tensor) != num_cells:
            raise checker.problem(name, f"has {len(tensor)} cells; its sizes add up to {num_cells}")


def _size(checker: Checker, scalar: Scalar, arguments: Arguments) -> int:
    """A size that is the same at every index."""
    size = evaluate(scalar, Scope(arguments.extents, arguments.inputs))
    if not 0 <= size <= MAX_SIZE:
        raise checker.problem(render(scalar), f"is {size}: no size")
    return size


def worst_capacity(shuffle: ShuffleSpec, num_ranks: int, max_sources: int) -> int:
    """Slots of a rank that are always enough: every point of every rank, or of every segment as
    many as there are keys if these are distinct, and every padding."""
    target = shuffle.program.target
    assert isinstance(target, PackedSlots)
    segments, fanout = num_ranks * max_sources, shuffle.program.num_points_each(num_ranks)
    keys = target.num_keys
    if target.placement.kind != "table":
        keys = -(-keys // target.group // num_ranks) * target.group
    if target.distinct:
        return most_slots(target, segments * min(fanout, keys), keys, segments)
    return most_slots(target, segments * fanout, keys)
