"""The functor ``Relation`` of a shuffle with given slots: where points go, and where segments lie.

``destination`` evaluates the relation region at a point. Where the domain is ragged, a call brings
the outermost index of every point.
"""

from __future__ import annotations

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
