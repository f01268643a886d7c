"""What the kernels of one node need to know of a shuffle, read off its module."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from fuscoc.codegen.cuda_types import CudaCast, CudaField, CudaInput, CudaLoop, CudaShuffle
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l0 import DefExtent, DefInput, DefPacked, Shuffle
from fuscoc.dialect.node import Node
from fuscoc.lang.scope import BUILTINS


def node_shuffle(module: Any) -> CudaShuffle:
    """The shuffle of a module that fuse-node has left an ``fsc.node``."""
    (shuffle,), (node,) = ops_of(module, Shuffle), ops_of(module, Node)
    target, casts = shuffle.follow("target"), shuffle.read("casts")
    leaving = tuple(map(_leaving, shuffle.read("runs")))
    counts, changes = isinstance(target, DefPacked), bool(casts) or any(f.loops for f in leaving)
    arriving = tuple(
        CudaField(field["name"], field["type"][0], size, size)
        for field in shuffle.follow("segment").read("fields")
        for size in [prod(field["type"][1])]
    )
    inputs = [each for each in ops_of(module, DefInput) if each.read("role") != "weight"]
    extents = (each.read("sym_name") for each in ops_of(module, DefExtent))
    return CudaShuffle(
        name=shuffle.read("sym_name"),
        fields=arriving if changes else leaving,
        extents=tuple(name for name in extents if name not in BUILTINS),
        inputs=tuple(CudaInput(each.read("sym_name"), each.read("type")[0]) for each in inputs),
        fanout=shuffle.read("fanout"),
        num_keys=target.follow("placement").read("num_keys") if counts else 0,
        align=target.read("align") if counts else 1,
        combine=node.read("combine"),
        weighted=node.read("weight") is not None,
        casts=tuple(CudaCast(**cast) for cast in casts),
        source_fields=leaving if changes else (),
        compact=counts and target.read("compact"),
        given_slots=not counts,
        ragged=bool(shuffle.read("ragged")),
    )


def _leaving(runs: Mapping[str, Any]) -> CudaField:
    """A field as it lies in the source."""
    loops = tuple(CudaLoop(dim["count"], dim["src_stride"]) for dim in runs["run_dims"])
    scattered = (runs["run_elems"], loops, runs["unit_bytes"]) if loops else ()
    return CudaField(runs["name"], runs["dtype"], runs["seg_elems"], runs["cell_elems"], *scattered)
