"""The program inside one node -> ``fsc.node``, where kernels can plan by themselves.

Which kernels can is what the tables of ``fuscoc.capabilities`` say; the shuffle carries their
answer until here. Slots of a packed target are counted and assigned, those of a dense one are
given by the relation; the rest is the same.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.dtypes import to_mlir
from fuscoc.dialect.fused import (
    Made,
    NodeAssign,
    NodeCopy,
    NodeCount,
    NodeExchange,
    NodeExpand,
    NodeGiven,
    NodeJoin,
    NodePoints,
    NodeReduce,
    NodeSignal,
    NodeWait,
)
from fuscoc.dialect.l0 import LEAVING, DefPacked, Shuffle
from fuscoc.dialect.l2 import Descriptors, Reduce
from fuscoc.dialect.l3_values import Cast, Merge, Normalise, Scale, cast_to, vector_type
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.node import Node
from fuscoc.dialect.path import Path
from fuscoc.dialect.row_fields import Dequantise, LoadField, Quantise, StoreField


def run(module: Any) -> None:
    for shuffle in ops_of(module, Shuffle):
        printers = shuffle.read("node")
        if printers:
            del shuffle.attributes["node"]
            _fuse(module, shuffle, printers)


def _fuse(module: Any, shuffle: Any, printers: tuple[str, ...]) -> None:
    paths = {path.read("direction"): path for path in ops_of(module, Path)}
    for descriptors in ops_of(paths["dispatch"], Descriptors):
        if descriptors.read("sym_name") == "direct" and descriptors.read("per") != "rank":
            raise PassError(descriptors, "must bring a segment to a rank of its node once")
    target = shuffle.follow("target")
    compact = isinstance(target, DefPacked) and target.read("compact")
    with ir.InsertionPoint(module.body), paths["dispatch"].location:
        block = Node.build(printers=printers).body.blocks.append()
    with ir.InsertionPoint(block), paths["dispatch"].location:
        slots = _slots(shuffle, target)
        told = NodeSignal.build(_copied(shuffle, slots), per="rank" if compact else "group").done
        come = NodeWait.build(told, per="rank" if compact else "group").done
        if not compact:
            NodeExpand.build(come)
    if "combine" in paths:
        with ir.InsertionPoint(block), paths["combine"].location:
            made = _reduced(shuffle, slots, paths["combine"])
            NodeJoin.build(
                NodeWait.build(NodeSignal.build(made, per="group").done, per="group").done
            )


def _slots(shuffle: Any, target: Any) -> Any:
    """The slot of every point: by counting, or as the relation says."""
    with shuffle.location:
        points = NodePoints.build(**{name: shuffle.read(name) for name in LEAVING})
    copy = shuffle.operation.clone()
    for region, ours in zip(copy.regions, points.operation.regions, strict=True):
        region.blocks[0].append_to(ours)
    copy.erase()
    if not isinstance(target, DefPacked):
        return NodeGiven.build(points.points, NodeExchange.build([]).counts).slots
    counts = NodeCount.build(points.points, placement=target.read("placement")).counts
    everyone = NodeExchange.build([counts]).counts
    sizes = {name: target.read(name) for name in NodeAssign.attrs}
    return NodeAssign.build(points.points, everyone, **sizes).slots


def _copied(shuffle: Any, slots: Any) -> Any:
    """Rows at their slots: those of the source, or what casts make of them."""
    copy = NodeCopy.build(slots)
    casts = {cast["field"]: cast for cast in shuffle.read("casts")}
    fields = {each["name"]: each["type"] for each in shuffle.follow("segment").read("fields")}
    values: dict[str, Any] = {}
    with ir.InsertionPoint(copy.rows.blocks.append()):
        for runs in shuffle.read("runs"):
            name, size = runs["name"], runs["seg_elems"]
            lies = {n: each for n, each in runs.items() if n != "name"}
            loaded = LoadField.build(vector_type(runs["dtype"], size), field=name, **lies)
            values[name] = loaded.value
        for name in [name for name in fields if name in casts]:
            values[name] = _cast(casts[name], values[name], fields, values)
        for name in fields:
            StoreField.build(values[name], field=name)
    return copy.done


def _cast(cast: Any, value: Any, fields: Any, values: dict[str, Any]) -> Any:
    """A field as it arrives; the scales that are made with it are put among ``values``."""
    dtype, shape = fields[cast["field"]]
    wanted = vector_type(dtype, prod(shape))
    if cast["factors"] or cast["channels"]:
        wide = vector_type("f32", prod(shape))
        numbers = {name: cast[name] or None for name in Normalise.attrs}
        value = Normalise.build(cast_to(value, wide), [], wide, **numbers).result
        return cast_to(value, wanted)
    if cast["scales"] is None:
        return Cast.build(value, wanted).result
    if cast["scales"] in values:
        scales = values[cast["scales"]]
        return Dequantise.build(value, scales, wanted, block=cast["block"]).value
    scales = vector_type("f32", prod(fields[cast["scales"]][1]))
    made = Quantise.build(value, wanted, scales, block=cast["block"], dtype=dtype)
    values[cast["scales"]] = made.scales
    return made.small


def _reduced(shuffle: Any, slots: Any, path: Any) -> Any:
    """One row of a segment's rows here, as the first step of the path back makes it."""
    (step,) = (each for each in ops_of(path, Reduce) if each.read("list") == "reduce_direct")
    rows, kind, weight = step.read("rows"), step.read("kind"), step.follow("weight")
    sizes = [runs["seg_elems"] for runs in shuffle.read("runs")]
    ends = ["src"] if kind == "copy" else ["acc", "src"]
    arguments = [
        vector_type(row[end], size) for end in ends for row, size in zip(rows, sizes, strict=True)
    ]
    if weight is not None:
        arguments.append(to_mlir(weight.read("type")[0]))
    made = NodeReduce.build(slots, weight=step.read("weight"))
    block = made.term.blocks.append(*arguments)
    before, values = (list(block.arguments)[i * len(rows) :][: len(rows)] for i in (0, 1))
    factor = list(block.arguments)[2 * len(rows) :]
    with ir.InsertionPoint(block):
        for position, row in enumerate(rows):
            value = before[position]
            if kind != "copy":
                value = _merged(kind, value, values[position], *factor)
            Made.build(value, field=row["name"])
    return made.done


def _merged(kind: str, before: Any, value: Any, *factor: Any) -> Any:
    """A row, times its weight if it has one, and what has been made before."""
    value = cast_to(value, before.type)
    if factor:
        weight = cast_to(factor[0], before.type.element_type)
        value = Scale.build(value, weight, before.type).result
    return Merge.build(before, value, before.type, kind=kind).result
