"""``fsc.node`` for some printers -> with the sizes of their kernels, for every kind of GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fuscoc.codegen.cuda_entries import alike_entries, entry_group
from fuscoc.codegen.cuda_tiles import TARGETS, choose_piece_sizes, choose_sizes
from fuscoc.codegen.node_shuffle import node_shuffle
from fuscoc.codegen.triton_tiles import choose_triton_piece_sizes, choose_triton_sizes
from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.fused import NodePieces
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.node import Node
from fuscoc.dialect.node_tiles import CudaTile, TritonTile
from fuscoc.dialect.piece_tiles import CudaPieceTile, TritonPieceTile


def run(module: Any) -> None:
    for node in ops_of(module, Node):
        printers = node.read("printers")
        del node.attributes["printers"]
        shuffle, pieces = node_shuffle(module), ops_of(node, NodePieces)
        with ir.InsertionPoint(node.body.blocks[0]), node.location:
            checks = shuffle.apart  # which entries that are alike do not
            alike = None if checks else alike_entries(node, shuffle)
            if "cuda" in printers and (pieces or alike):
                group = None if alike is None else entry_group(alike, shuffle)
                for target, chosen in choose_piece_sizes(shuffle, group):
                    CudaPieceTile.build(arch=target.arch, **asdict(chosen))
            elif "cuda" in printers:
                if shuffle.every_rank:
                    raise PassError(node, "sends rows to every rank by kernels that count them")
                for target in TARGETS:
                    CudaTile.build(arch=target.arch, **asdict(choose_sizes(shuffle, target)))
            if "triton" in printers and pieces:
                sizes = choose_triton_piece_sizes(
                    shuffle, are_alike=alike is not None, looks_up=pieces[0].looks_up()
                )
                TritonPieceTile.build(**asdict(sizes))
            if "triton" in printers:  # of pieces, for rows that cross nodes
                TritonTile.build(**asdict(choose_triton_sizes(shuffle, one_by_one=bool(pieces))))
