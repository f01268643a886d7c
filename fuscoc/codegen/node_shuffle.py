"""What the kernels of one node need to know of a shuffle, read off its ``fsc.node``."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from fuscoc.codegen.cuda_types import CudaCast, CudaField, CudaInput, CudaLoop, CudaShuffle
from fuscoc.dialect.affine import NotAffine, Relation
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.boxes import WAYS_APART
from fuscoc.dialect.expressions import expression
from fuscoc.dialect.fused import NodeAssign, NodeCopy, NodeCount, NodePoints, NodeReduce
from fuscoc.dialect.l0 import Shuffle, relation_extents, relation_inputs
from fuscoc.dialect.l3_values import vector_of
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.node import Node
from fuscoc.dialect.polynomials import Polynomial
from fuscoc.dialect.relation import Domain, Point, must_be_apart, segment_divisor
from fuscoc.dialect.row_fields import LoadField, StoreField
from fuscoc.lang.dtypes import ITEM_BYTES
from fuscoc.lang.padding import DEFAULT_PADDING
from fuscoc.lang.scope import BUILTINS


def node_shuffle(module: Any) -> CudaShuffle:
    """The shuffle of a module that fuse-node has left an ``fsc.node``."""
    (shuffle,), (node,) = ops_of(module, Shuffle), ops_of(module, Node)
    (points,), (copy,) = ops_of(node, NodePoints), ops_of(node, NodeCopy)
    counts, assigns = ops_of(node, NodeCount), ops_of(node, NodeAssign)
    divisor = segment_divisor(points)
    leaving = tuple(_leaving(load.runs, divisor) for load in ops_of(copy, LoadField))
    names = {field.name for field in leaving}
    casts = tuple(CudaCast(**cast, applied=cast["scales"] in names) for cast in copy.casts())
    changes = bool(casts) or any(field.loops for field in leaving)
    back = next(iter(ops_of(node, NodeReduce)), None)
    return CudaShuffle(
        name=shuffle.read("sym_name"),
        fields=tuple(map(_arriving, ops_of(copy, StoreField))) if changes else leaving,
        extents=tuple(name for name in relation_extents(module) if name not in BUILTINS),
        inputs=tuple(
            CudaInput(each.read("sym_name"), each.read("type")[0])
            for each in relation_inputs(module)
        ),
        fanout=points.read("fanout"),
        num_keys=counts[0].follow("placement").read("num_keys") if counts else 0,
        align=assigns[0].read("align") if assigns else 1,
        combine=back.kind if back is not None else None,
        weighted=back is not None and back.read("weight") is not None,
        casts=casts,
        source_fields=leaving if changes else (),
        compact=bool(assigns) and assigns[0].read("compact"),
        given_slots=not assigns,
        ragged=bool(points.read("ragged")),
        every_rank=bool(points.read("every_rank")),
        everywhere=_goes_everywhere(points),
        padding=assigns[0].read("padding") if assigns else DEFAULT_PADDING,
        by_table=bool(counts) and counts[0].follow("placement").read("table") is not None,
        apart=must_be_apart(terminator(points, 1, Point)),
        in_order=_is_in_order(points, ops_of(copy, LoadField)[0]),
    )


def _goes_everywhere(points: Any) -> bool:
    """Whether the rank of a point is an index, which then runs over all ranks."""
    rank = terminator(points, 1, Point).rank
    return bool(points.read("every_rank")) and isinstance(rank.owner, ir.Block)


def _is_in_order(points: Any, load: Any) -> bool:
    """Whether segments are seen to lie one behind the other, from the first cell on."""
    if points.read("ragged") or load.read("run_dims"):
        return False
    domain, point = terminator(points, 0, Domain), terminator(points, 1, Point)
    try:
        relation = Relation([expression(each) for each in domain.extents], frozenset())
        box = relation.whole()
        first = relation.polynomial(expression(point.src_offset), box.indices, box)
        sizes = [relation.polynomial(each, {}) for each in relation.extents]
    except (NotAffine, *WAYS_APART):
        return False
    place = Polynomial(())
    step = Polynomial.constant(load.read("seg_elems") // load.read("cell_elems"))
    for index in reversed(range(points.read("num_source_dims"))):
        place += box.indices[index] * step
        step *= sizes[index]
    return first == place


def _leaving(runs: Mapping[str, Any], divisor: int) -> CudaField:
    """A field as it lies in the source."""
    loops = tuple(CudaLoop(dim["count"], dim["src_stride"]) for dim in runs["run_dims"])
    cells = gcd(divisor, *(loop.stride for loop in loops if isinstance(loop.stride, int)))
    multiple = cells * runs["cell_elems"] * ITEM_BYTES[runs["dtype"]]
    run_elems = runs["run_elems"] if loops else 0
    size, cell = runs["seg_elems"], runs["cell_elems"]
    return CudaField(runs["name"], runs["dtype"], size, cell, run_elems, loops, multiple)


def _arriving(store: Any) -> CudaField:
    """A field as it lies in a slot."""
    dtype, size = vector_of(store.value)
    return CudaField(store.read("field"), dtype, size, size)
