"""The sizes that the arguments of a call give, and whether there can be such."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fuscoc_runtime.engine.arguments import MAX_SIZE, Arguments, Checker, is_ragged
from fuscoc_runtime.scalar import (
    BinaryOp,
    Extent,
    Index,
    Inside,
    Load,
    Scalar,
    Scope,
    evaluate,
    render,
    render_product,
)


def num_sources(checker: Checker, arguments: Arguments) -> int:
    """Source segments of a shuffle that is not ragged."""
    spec = checker.shuffle.declared
    sizes = spec.domain[: spec.num_source_dims]
    return math.prod(evaluate(index.extent, Scope(arguments.extents)) for index in sizes)


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
    """Outermost indices of a ragged domain.

    Raises:
        InputError: no size, or sizes inside that kernels may not be able to count.
    """
    found = _size(checker, checker.shuffle.declared.domain[0].extent, arguments)
    _check_magnitude(checker, arguments, found)
    return found


def target_length(checker: Checker, arguments: Arguments) -> int | None:
    """Slots of a dense target; None for another."""
    target = checker.shuffle.declared.target
    return _size(checker, target.length, arguments) if target.kind == "dense" else None


def check_cells(checker: Checker, arguments: Arguments, num_cells: int) -> None:
    """A source whose outer entries are concatenated holds as many cells as its sizes say."""
    if not is_ragged(checker.shuffle.declared.source.dims):
        return
    for name, tensor in arguments.fields.items():
        if len(tensor) != num_cells:
            raise checker.problem(name, f"has {len(tensor)} cells; its sizes add up to {num_cells}")


def _check_magnitude(checker: Checker, arguments: Arguments, num_outer: int) -> None:
    """Points and cells must be countable: the kernel's integers would wrap unseen."""
    highest = {}
    for spec in checker.shuffle.declared.inputs:
        tensor = arguments.inputs.get(spec.name)
        if spec.role != "extent" or tensor is None or not tensor.numel():
            continue
        low, high = torch.stack(tensor.aminmax()).tolist()
        if low < 0:
            raise checker.problem(spec.name, "has a negative size")
        highest[spec.name] = high
    inner = [index.extent for index in checker.shuffle.declared.domain[1:]]
    for sizes in (inner, checker.shuffle.declared.source.dims[1:]):
        known = {**arguments.extents, checker.shuffle.declared.domain[0].name: num_outer}
        most = math.prod(_magnitude(size, known, highest) for size in sizes)
        if most * max(num_outer, 1) > MAX_SIZE:
            names = render_product(sizes)
            raise checker.problem(names, f"is up to {most}: more than kernels can count")


def _magnitude(scalar: Scalar, known: Mapping[str, int], highest: Mapping[str, int]) -> int:
    """At least the absolute value of ``scalar`` and of everything inside it, at every index.

    ``known``: bounds of extents and indices; ``highest``: of the inputs that are not empty.
    """
    match scalar:
        case int():
            return abs(scalar)
        case Index(name) | Extent(name):
            return known[name]
        case Load(name):
            return highest.get(name, 0)
        case BinaryOp(op, lhs, rhs):
            left, right = _magnitude(lhs, known, highest), _magnitude(rhs, known, highest)
            return left * right if op == "*" else left + right
        case Inside(value):
            return _magnitude(value, known, highest)


def _size(checker: Checker, scalar: Scalar, arguments: Arguments) -> int:
    """A size that is the same at every index."""
    size = evaluate(scalar, Scope(arguments.extents, arguments.inputs))
    if not 0 <= size <= MAX_SIZE:
        raise checker.problem(render(scalar), f"is {size}: no size")
    return size
