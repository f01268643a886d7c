"""What a relation says of points, as a device function in Triton."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fuscoc.codegen.cuda_relation import fused_relation, point_indices
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.regions import Region
from fuscoc.codegen.triton_expressions import wrapped
from fuscoc.codegen.triton_text import TritonText

KINDS = {"i32": "int32", "i64": "int64"}


class PointRelation:
    """The function ``relation(point, given)`` of a shuffle.

    It returns the ranks, keys or given slots, and cells of points that exist, a vector: see
    ``Region.destination``.

    Attributes:
        given: what a kernel passes on as ``given``, in order, and what a launch passes as it.
        pointers: the types of those that are pointers.
        text: the function.
    """

    def __init__(self, module: Any, shuffle: CudaShuffle) -> None:
        with module.context:
            _, op, point = fused_relation(module)
            text = TritonText(shuffle)
            indices = point_indices(shuffle, op, text)
            region = Region(text, dict(zip(op.relation.blocks[0].arguments, indices, strict=False)))
            cell = region.value(point.src_offset)
            is_packed = not shuffle.given_slots
            rank, key = region.destination(point, "extent_ranks", packed=is_packed)
            found = f"{rank}, {key}, {cell}"
            body = [line.strip() for line in text.declarations(found)]
        every = {
            **{f"input_{each.name}": f"input.{each.name}" for each in shuffle.inputs},
            **{f"extent_{name}": f"extent.{name}" for name in (*shuffle.extents, "rank", "ranks")},
            "owners": "key_to_rank",
        }
        used = " ".join([found, *body])
        self.given: Mapping[str, str] = {
            name: what for name, what in every.items() if re.search(rf"\b{name}\b", used)
        }
        kinds = {f"input_{each.name}": KINDS[each.dtype] for each in shuffle.inputs}
        self.pointers = {"owners": "int64", **kinds}
        names = [f"{name} = given[{i}]" for i, name in enumerate(self.given)]
        lines = [part for line in [*names, *body] for part in wrapped("    ", line)]
        head = ["@triton.jit", "def relation(point, given):"]
        self.text = "\n".join([*head, *lines, f"    return {found}"]) + "\n"
