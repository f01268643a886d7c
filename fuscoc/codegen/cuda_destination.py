"""The functor ``Relation`` of a shuffle with given slots: where points go, and where segments lie.

``destination`` evaluates the relation region at a point. Where the domain is ragged, a call brings
the outermost index of every point. Of short rows each is a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuscoc.codegen.cuda_relation import CudaText, fused_relation, point_indices
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.regions import Region


def print_destinations(module: Any, shuffle: CudaShuffle) -> str:
    """The functor of a module, from fuse-node on; ``shuffle`` says in which order a call has inputs
    and extents."""
    with module.context:
        _, op, point = fused_relation(module)
        text = CudaText(shuffle)
        arguments = op.relation.blocks[0].arguments
        region = Region(text, dict(zip(arguments, point_indices(shuffle, op, text), strict=True)))
        place = ", ".join(region.value(each) for each in (point.src_offset, *point.src_strides))
        rank, slot = region.destination(point, "i64(call.num_ranks)", packed=False)
        result = f"{{{rank}, {slot}, {{{place}}}}}"
        return "\n".join(
            [
                "struct Relation {",
                "  const Call& call;",
                "  using To = Destination<Shape::Source>;",
                "  __device__ __forceinline__ To destination(i64 point) const {",
                *text.declarations(result),
                f"    return {result};",
                "  }",
                "};",
            ]
        )


def row_relation(module: Any, shuffle: CudaShuffle) -> Iterator[str]:
    """The same of rows that are pieces; of those that go to every rank it is one for each."""
    _, op, point = fused_relation(module)
    text = CudaText(shuffle)
    arguments = op.relation.blocks[0].arguments
    region = Region(text, dict(zip(arguments, point_indices(shuffle, op, text), strict=True)))
    src = region.value(point.src_offset)
    rank, slot = region.destination(point, "i64(call.num_ranks)", packed=False)
    yield "struct Relation {"
    yield "  const Call& call;"
    yield "  static constexpr int num_pieces = 1;"
    yield "  __device__ __forceinline__ i64 num_entries() const { return call.num_sources; }"
    yield "  template <int kPiece>"
    yield "  __device__ __forceinline__ void piece(i64 point, PieceOf<Shape>& piece) const {"
    yield from text.declarations(f"{src} {rank} {slot}")
    for name, value in (("src", src), ("rank", rank), ("slot", slot), ("num_loops", "0")):
        yield f"    piece.{name} = {value};"
    yield "  }"
    yield "};"
