"""What all Triton files of one node's kernels have in common: their header, and kernels that bind
device functions of the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import fuscoc
from fuscoc.codegen.triton_expressions import wrapped

HEADER = '''"""Kernels of shuffle ``{shuffle}`` in {spec} {where}, by fuscoc {version}.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import {made}

{modules}
'''

DESTINATIONS = ("FANOUT", "LANES", "SEGMENTS")
"""Constants of a text whose segments go to every rank: points of one, lanes of a vector of these,
and segments of a tile."""


@dataclass(frozen=True)
class NodeKernel:
    """A printed kernel.

    ``parameters`` maps each parameter, in order, to what a launch passes (``docs/abi.md``);
    ``num_warps`` are those of a program.
    """

    name: str
    parameters: Mapping[str, str]
    num_warps: int


def print_header(
    shuffle: str,
    spec: str,
    modules: Iterable[str],
    where: str,
    every_rank: tuple[int, int] | None = None,
) -> str:
    """What a file begins with; ``modules`` are those of the runtime that it loads. Where segments
    go to ``every_rank`` it asks for ``DESTINATIONS``: a segment has so many points for each, and a
    tile so many in all."""
    lines = [f'{name} = load("{name}")' for name in modules]
    if every_rank is not None:
        fanout, points = every_rank
        lines.append(f"{', '.join(DESTINATIONS)} = destinations({fanout}, {points})")
    return HEADER.format(
        shuffle=shuffle,
        spec=spec,
        where=where,
        version=fuscoc.__version__,
        made="load" if every_rank is None else "destinations, load",
        modules="\n".join(lines),
    )


def print_kernel(
    name: str,
    parameters: Iterable[str],
    pointers: Mapping[str, str],
    body: Iterable[str],
    words: Sequence[str] = (),
) -> str:
    """A kernel of int64 parameters, some of which are ``pointers`` to a type; ``words`` are comment
    lines above it."""
    every = list(parameters)
    head = ", ".join(f"{each}: tl.int64" for each in every)
    lines = [
        *words,
        f"@triton.jit(do_not_specialize=range({len(every)}))",
        *(line[1:] for line in wrapped(" ", f"def {name}({head})")),  # a colon follows
    ]
    lines[-1] += ":"
    for each in every:
        pointer = f".to(tl.pointer_type(tl.{pointers[each]}))" if each in pointers else ""
        lines.append(f"    {each} = {each}.to(tl.int64){pointer}")
    lines += [part for line in body for part in wrapped("    ", line)]
    return "\n".join(lines) + "\n"
