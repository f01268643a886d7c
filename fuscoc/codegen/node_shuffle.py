"""What the kernels of one node need to know of a shuffle, read off its module."""

from __future__ import annotations

from math import prod
from typing import Any

from fuscoc.codegen.cuda_types import CudaCast, CudaField, CudaInput, CudaShuffle
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l0 import DefExtent, DefInput, Shuffle
from fuscoc.dialect.node import Node
from fuscoc.lang.scope import BUILTINS


def node_shuffle(module: Any) -> CudaShuffle:
    """The shuffle of a module that fuse-node has left an ``fsc.node``."""
    (shuffle,), (node,) = ops_of(module, Shuffle), ops_of(module, Node)
    target, casts = shuffle.follow("target"), shuffle.read("casts")
    leaving = tuple(
        CudaField(runs["name"], runs["dtype"], runs["seg_elems"], runs["cell_elems"])
        for runs in shuffle.read("runs")
    )
    arriving = tuple(
        CudaField(field["name"], field["type"][0], size, size)
        for field in shuffle.follow("segment").read("fields")
        for size in [prod(field["type"][1])]
    )
    inputs = [each for each in ops_of(module, DefInput) if each.read("role") != "weight"]
    extents = (each.read("sym_name") for each in ops_of(module, DefExtent))
    return CudaShuffle(
        name=shuffle.read("sym_name"),
        fields=arriving if casts else leaving,
        extents=tuple(name for name in extents if name not in BUILTINS),
        inputs=tuple(CudaInput(each.read("sym_name"), each.read("type")[0]) for each in inputs),
        fanout=shuffle.read("fanout"),
        num_keys=target.follow("placement").read("num_keys"),
        align=target.read("align"),
        combine=node.read("combine"),
        weighted=node.read("weight") is not None,
        casts=tuple(CudaCast(**cast) for cast in casts),
        source_fields=leaving if casts else (),
        compact=target.read("compact"),
    )
