"""The functor ``Relation`` of a shuffle with given slots: where points go, and where segments lie.

``destination`` evaluates the relation region at a point. Where the domain is ragged, ``extents``
evaluates the domain region at an outer index, for the prefix sums by which a point's is found.
"""

from __future__ import annotations

from typing import Any

from fuscoc.codegen.cuda_relation import CudaText
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.regions import Region, divisors, regions_of
from fuscoc.dialect.relation import Domain


def print_destinations(module: Any, shuffle: CudaShuffle) -> str:
    """The functor of a module, from coalesce-segments on; ``shuffle`` says in which order a call
    has inputs and extents."""
    with module.context:
        op, domain, _ = regions_of(module)
        return "\n".join(
            [
                "struct Relation {",
                "  const Call& call;",
                f"  static constexpr bool ragged = {str(shuffle.ragged).lower()};",
                *(_extents(shuffle, op, domain) if shuffle.ragged else []),
                *_destination(shuffle, module),
                "};",
            ]
        )


def _destination(shuffle: CudaShuffle, module: Any) -> list[str]:
    op, _, point = regions_of(module)
    text = CudaText(shuffle)
    arguments = op.relation.blocks[0].arguments
    region = Region(text, dict(zip(arguments, _indices(shuffle, op, text), strict=True)))
    place = ", ".join(region.value(value) for value in (point.src_offset, *point.src_strides))
    rank, slot = region.destination(point, "i64(call.num_ranks)", packed=False)
    result = f"{{{rank}, {slot}, {{{place}}}}}"
    return [
        "  __device__ __forceinline__ Destination<Shape::Source> destination(i64 point) const {",
        *text.declarations(result),
        f"    return {result};",
        "  }",
    ]


def _indices(shuffle: CudaShuffle, op: Any, text: CudaText) -> list[str]:
    """The domain's indices at ``point``, which counts the domain row by row."""
    names = op.read("indices")
    if not shuffle.ragged:
        sizes = Region(text, {})
        return sizes.row_major("point", names, sizes.extents(names[1:], divisors(op)))
    with text.named(names[0]):
        outer = text.called("outer_of", "point")
    (argument,) = op.domain.blocks[0].arguments
    sizes = Region(text, {argument: outer})
    extents = sizes.extents(names[2:], divisors(op))
    with text.named("first"):
        first = text.called("points_before", outer)
    with text.named("inner"):
        inner = text.arithmetic("subi", "point", first)
    return [outer, *sizes.row_major(inner, names[1:], extents)]


def _extents(shuffle: CudaShuffle, op: Any, domain: Domain) -> list[str]:
    """The number of outer indices; points and cells of one, and whether its sizes are wrong."""
    counted = CudaText(shuffle)
    num_outer = Region(counted, {}).value(list(domain.extents)[0])
    text = _Sizes(shuffle)
    (argument,) = op.domain.blocks[0].arguments
    region = Region(text, {argument: "outer"})
    sizes = region.extents(op.read("indices")[1:], list(domain.extents)[1:])
    cells, zero = region.value(domain.cells, "cells"), text.constant(0)
    wrong = [text.compare("ne", text.arithmetic("remsi", *pair), zero) for pair in region.exact]
    wrong += [text.compare("slt", size, zero) for size in (*sizes, cells)]
    points = text.fold("muli", sizes or [text.constant(1)])
    result = f"{{{points}, {cells}, {text.fold('ori', wrong)}}}"
    return [
        "  __device__ __forceinline__ i64 num_outer() const {",
        *counted.declarations(num_outer),
        f"    return {num_outer};",
        "  }",
        "  __device__ __forceinline__ Extents extents(i64 outer) const {",
        *text.declarations(result),
        f"    return {result};",
        "  }",
    ]


class _Sizes(CudaText):
    """Products of sizes, which inputs give, do not wrap around."""

    def arithmetic(self, op: str, lhs: str, rhs: str) -> str:
        return self.made(f"times({lhs}, {rhs})") if op == "muli" else super().arithmetic(op, lhs, rhs)
