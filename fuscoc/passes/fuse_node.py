"""The program inside one node -> ``fsc.node``, where kernels can plan by themselves.

Which kernels can is what the tables of ``fuscoc.capabilities`` say; the shuffle carries their
answer until here.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.l0 import Shuffle
from fuscoc.dialect.l2 import Descriptors, Reduce
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.node import Node
from fuscoc.dialect.path import Path


def run(module: Any) -> None:
    for shuffle in ops_of(module, Shuffle):
        printers = shuffle.read("node")
        if printers:
            del shuffle.attributes["node"]
            _fuse(module, printers)


def _fuse(module: Any, printers: tuple[str, ...]) -> None:
    paths = {path.read("direction"): path for path in ops_of(module, Path)}
    for descriptors in ops_of(paths["dispatch"], Descriptors):
        if descriptors.read("sym_name") == "direct" and descriptors.read("per") != "rank":
            raise PassError(descriptors, "must bring a segment to a rank of its node once")
    combine: dict[str, Any] = {}
    if "combine" in paths:
        (reduce,) = (
            each
            for each in ops_of(paths["combine"], Reduce)
            if each.read("list") == "reduce_direct"
        )
        combine = {"combine": reduce.read("kind"), "weight": reduce.read("weight")}
    with ir.InsertionPoint(module.body), paths["dispatch"].location:
        Node.build(printers=printers, **combine).body.blocks.append()
