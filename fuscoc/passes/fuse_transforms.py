"""fsc.shuffle's casts -> ``moves`` on every copy: casts are folded into copies that run anyway.

What crosses the network is the shorter of the two kinds of rows. Where that is the target's, the
copies that gather from the source cast, and all others move bits. Where it is the source's, it
travels as it is until it is scattered into the target. NVLink carries final rows either way,
because they go straight into their slots. What computes with numbers of a call does so where the
source is: they are those of the rank that sends, and nobody else knows them.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.dtypes import num_bytes
from fuscoc.dialect.l0 import shuffle_of
from fuscoc.dialect.l2 import GatherSend, ScatterRecv
from fuscoc.dialect.path import Path


def run(module: Any) -> None:
    for path in ops_of(module, Path):
        shuffle = shuffle_of(path)
        if not shuffle.read("casts"):
            continue
        if path.read("direction") == "combine":  # its rows are those of the source's segment
            continue
        carried = "source" if carries_source(shuffle) else "target"
        ends = {"source": "source", "target": "target"}
        ends |= dict.fromkeys(("carried", "slices", "landing"), carried)
        for copy in ops_of(path, GatherSend, ScatterRecv):
            read, written = (ends[buffer] for buffer in (copy.reads, *copy.writes))
            moves = read if read == written else "cast"
            copy.attributes["moves"] = copy.attrs["moves"].encode(moves)


def carries_source(shuffle: Any) -> bool:
    """Whether rows cross the network as the source holds them: where those are shorter, and no
    numbers of the sender's are needed to cast them."""
    if any(cast["channels"] for cast in shuffle.read("casts")):
        return False
    source = sum(num_bytes(run["dtype"]) * run["seg_elems"] for run in shuffle.read("runs"))
    fields = (field["type"] for field in shuffle.follow("segment").read("fields"))
    return bool(source < sum(num_bytes(dtype) * prod(shape) for dtype, shape in fields))
