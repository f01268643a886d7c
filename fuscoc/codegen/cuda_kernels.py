"""``fsc.node`` and the regions of its shuffle -> CUDA kernels, one text for each kind of GPU."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fuscoc.codegen.cuda import CudaSource, print_cuda
from fuscoc.codegen.cuda_destination import print_destinations
from fuscoc.codegen.cuda_pieces import PieceLayout, print_pieces
from fuscoc.codegen.cuda_relation import print_relation
from fuscoc.codegen.cuda_tiles import (
    TARGETS,
    CudaSizes,
    CudaTarget,
    FieldSizes,
    PieceSizes,
    WordSizes,
)
from fuscoc.codegen.cuda_types import CudaShuffle
from fuscoc.codegen.node_shuffle import node_shuffle
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.node import Node
from fuscoc.dialect.node_tiles import CudaTile
from fuscoc.dialect.piece_tiles import CudaPieceTile


@dataclass(frozen=True)
class CudaVariant:
    """The kernels for the GPUs from ``target`` on, and their file in an artifact."""

    target: CudaTarget
    file: str
    source: CudaSource


@dataclass(frozen=True)
class CudaKernels:
    """A shuffle's CUDA kernels; ``inputs`` are the relation's, in the order of the call.

    Where slots follow from pieces, they need memory as ``pieces`` says.
    """

    inputs: tuple[str, ...]
    weighted: bool
    places_results: bool
    variants: tuple[CudaVariant, ...]
    pieces: PieceLayout | None = None

    def variant(self, arch: str) -> CudaVariant | None:
        """The kernels that serve a GPU such as ``sm_90``; None for one that is too old."""
        number = int(arch.removeprefix("sm_"))
        fitting = (v for v in self.variants if int(v.target.arch.removeprefix("sm_")) <= number)
        return next(fitting, None)


def cuda_kernels(module: Any, header: tuple[str, ...]) -> CudaKernels | None:
    """The CUDA kernels of a module, if choose-tiles has chosen sizes for some; ``header`` is
    comment lines to begin with."""
    tiles = [
        tile for node in ops_of(module, Node) for tile in ops_of(node, CudaTile, CudaPieceTile)
    ]
    if not tiles:
        return None
    shuffle = node_shuffle(module)
    if isinstance(tiles[0], CudaPieceTile):
        return _of_pieces(module, shuffle, tiles, header)
    print_functor = print_destinations if shuffle.given_slots else print_relation
    relation = print_functor(module, shuffle)
    variants = []
    for number, op in enumerate(tiles):
        target = _target(op)
        sizes = {size.name: op.read(size.name) for size in fields(CudaSizes)}
        for end in ("arriving", "leaving"):
            sizes[end] = tuple(FieldSizes(**each) for each in sizes[end])
        source = print_cuda(shuffle, relation, CudaSizes(**sizes), target, header)
        variants.append(_variant(shuffle, op, number, source))
    names = tuple(given.name for given in shuffle.inputs)
    return CudaKernels(names, shuffle.weighted, shuffle.is_placed, tuple(variants))


def _of_pieces(
    module: Any, shuffle: CudaShuffle, tiles: list[Any], header: tuple[str, ...]
) -> CudaKernels:
    variants, layout = [], None
    for number, op in enumerate(tiles):
        words = tuple(WordSizes(**each) for each in op.read("words"))
        others = (size.name for size in fields(PieceSizes) if size.name != "words")
        sizes = PieceSizes(**{name: op.read(name) for name in others}, words=words)
        source, layout = print_pieces(module, shuffle, sizes, header)
        variants.append(_variant(shuffle, op, number, source))
    names = tuple(given.name for given in shuffle.inputs)
    return CudaKernels(names, shuffle.weighted, shuffle.is_placed, tuple(variants), layout)


def _target(op: Any) -> CudaTarget:
    (target,) = (each for each in TARGETS if each.arch == op.read("arch"))
    return target


def _variant(shuffle: CudaShuffle, op: Any, number: int, source: CudaSource) -> CudaVariant:
    """The kernels of the tile with that number."""
    target = _target(op)
    suffix = f".{target.arch}" if number else ""
    return CudaVariant(target, f"kernels/{shuffle.name}{suffix}.cu", source)
