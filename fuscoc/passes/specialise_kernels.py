"""Steps over descriptor lists -> one specialised kernel each, and launches of them.

The regions of every shuffle become kernels as well. What a kernel does follows from its list's
columns and from the shuffle's copy shape alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuscoc.codegen.points import build_extents, build_relation
from fuscoc.codegen.rows import RowKernel, build_row_kernel
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l0 import Shuffle
from fuscoc.dialect.l1 import Path
from fuscoc.dialect.l2 import Descriptors, GatherSend, Reduce, ScatterRecv
from fuscoc.dialect.l3 import Launch
from fuscoc.dialect.mlir import PassManager, ir

# Kernels and buffers by the ends of a step: (kernel, buffer read, buffer written).
_COPIES = {
    ("source", "slice"): ("pack", "source", "slices"),
    ("source", "carrier"): ("carry", "source", "peers.carried"),
    ("carrier", "slice"): ("pack_carried", "carried", "slices"),
    ("source", "target"): ("send", "source", "peers.target"),
    ("landing", "target"): ("forward", "landing", "peers.target"),
    ("target", "target"): ("duplicate", "target", "target"),
    ("returned", "staging"): ("hand_back", "returned", "peers.staging"),
}
_REDUCTIONS = {
    ("target", "staging"): ("reduce_direct", "rows", "peers.staging"),
    ("target", "forward_staging"): ("reduce_forward", "rows", "peers.forward_staging"),
    ("forward_staging", "slice"): ("reduce_node", "forward_staging", "return_slices"),
    ("staging", "source"): ("reduce_source", "staging", "result"),
}


def run(module: Any) -> None:
    for shuffle in ops_of(module, Shuffle):
        with ir.InsertionPoint(module.body), shuffle.location:
            if shuffle.read("ragged"):
                build_extents(shuffle)
            build_relation(shuffle)
    for path in ops_of(module, Path):
        for step in ops_of(path, GatherSend, ScatterRecv, Reduce):
            with step.location:
                _specialise(module, path.follow("shuffle"), step)
            step.operation.erase()
    PassManager.parse("builtin.module(cse)").run(module.operation)


def _specialise(module: Any, shuffle: Any, step: Any) -> None:
    """Replace a step by a launch of its kernel."""
    reduces = isinstance(step, Reduce)
    ends = step.read("src"), step.read("dst")
    suffix, read, written = (_REDUCTIONS if reduces else _COPIES)[ends]
    descriptors: Descriptors = step.follow("list")
    signal = _given(step, "signal")
    weight = step.follow("weight") if reduces else None
    wanted = RowKernel(
        name=f"{shuffle.read('sym_name')}_{suffix}",
        columns=descriptors.read("columns"),
        terms=descriptors.read("terms"),
        rows=step.read("rows") if reduces and step.read("kind") != "copy" else (),
        takes_max=reduces and step.read("kind") == "max",
        weight=weight.read("type")[0] if weight is not None else None,
        signals=signal is not None,
        wait=_given(step, "wait") or (),
        moves=_given(step, "moves"),
        partials=_partials(step),
    )
    with ir.InsertionPoint(module.body):
        build_row_kernel(wanted, shuffle)
    loaded, stored = _dtypes(shuffle, wanted)
    bind = [
        {"arg": f"{field}_{side}", "buffer": f"{buffer}.{field}", "dtype": dtypes[field]}
        for field in dict.fromkeys([*loaded, *stored])
        for side, buffer, dtypes in (("src", read, loaded), ("dst", written, stored))
        if field in dtypes
    ]
    if wanted.weight is not None:
        bind.append({"arg": "weights", "buffer": "weights", "dtype": wanted.weight})
    with ir.InsertionPoint(step):
        Launch.build(
            kernel=wanted.name,
            list=step.read("list"),
            bind=bind,
            signal=signal,
            wait=wanted.wait,
        )


def _given(step: Any, name: str) -> Any:
    """The value of an attribute that only some kinds of steps have."""
    return step.read(name) if name in step.attrs else None


def _dtypes(shuffle: Any, wanted: RowKernel) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The dtypes of the fields that a step reads, and of those that it writes."""
    if wanted.partials is not None:
        return wanted.partials, wanted.partials
    if wanted.rows:
        loaded, stored = ({row["name"]: row[end] for row in wanted.rows} for end in ("src", "dst"))
        return loaded, stored
    leaving = {run["name"]: run["dtype"] for run in shuffle.read("runs")}
    arriving = {
        field["name"]: field["type"][0] for field in shuffle.follow("segment").read("fields")
    }
    if wanted.moves == "target":
        return arriving, arriving
    return leaving, arriving if wanted.moves == "cast" else leaving


def _partials(step: Any) -> dict[str, str] | None:
    """The dtypes of partial results that are copied, by field."""
    if not isinstance(step, GatherSend) or not step.read("rows"):
        return None
    return {row["name"]: row["dtype"] for row in step.read("rows")}
