"""Steps over descriptor lists -> one specialised kernel each, and launches of them.

The regions of every shuffle become kernels as well, and are gone then. What a kernel does follows
from its list's columns and from the shuffle's copy shape alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuscoc.codegen.points import build_extents, build_places, build_relation
from fuscoc.codegen.row_casts import numbers_of
from fuscoc.codegen.rows import RowKernel, build_row_kernel
from fuscoc.dialect.base import PassError, direction_of, ops_of
from fuscoc.dialect.into import Into
from fuscoc.dialect.l0 import Shuffle, shuffle_of
from fuscoc.dialect.l2 import Descriptors, GatherSend, Reduce, ScatterRecv
from fuscoc.dialect.l3 import Launch
from fuscoc.dialect.mlir import ir, run_upstream
from fuscoc.dialect.path import Path

# How kernels are called, by the ends of a step.
_SUFFIXES = {
    ("source", "slices"): "pack",
    ("source", "carried"): "carry",
    ("carried", "slices"): "pack_carried",
    ("source", "target"): "send",
    ("landing", "target"): "forward",
    ("target", "target"): "duplicate",
    ("returned", "staging"): "hand_back",
    ("rows", "staging"): "reduce_direct",
    ("rows", "forward_staging"): "reduce_forward",
    ("forward_staging", "return_slices"): "reduce_node",
    ("staging", "result"): "reduce_source",
}


def run(module: Any) -> None:
    for shuffle in ops_of(module, Shuffle):
        with ir.InsertionPoint(module.body), shuffle.location:
            kernels = {"extents_kernel": build_extents(shuffle)} if shuffle.read("ragged") else {}
            kernels["relation_kernel"] = build_relation(shuffle)
        for name, kernel in kernels.items():
            shuffle.attributes[name] = shuffle.attrs[name].encode(kernel)
    for into in ops_of(module, Into):
        with ir.InsertionPoint(module.body), into.location:
            kernel = build_places(into, shuffle_of(into).read("sym_name"))
        into.attributes["kernel"] = into.attrs["kernel"].encode(kernel)
    for path in ops_of(module, Path):
        shuffle = shuffle_of(path)
        for step in ops_of(path, GatherSend, ScatterRecv, Reduce):
            with step.location:
                launch = _specialise(module, shuffle, step)
            step.done.replace_all_uses_with(launch.done)
            step.operation.erase()
    for relation in ops_of(module, Shuffle, Into):
        _without_regions(relation)
    run_upstream("cse", module)


def _without_regions(op: Any) -> None:
    """Leave an operation what says of it that its kernels do not."""
    attributes = dict(op.attributes.items())
    with ir.InsertionPoint(op), op.location:
        ir.Operation.create(
            op.operation.name, attributes=attributes, regions=len(op.regions), loc=op.location
        )
    op.operation.erase()


def _specialise(module: Any, shuffle: Any, step: Any) -> Any:
    """The launch of the kernel of a step, before it."""
    reduces = isinstance(step, Reduce)
    src, dst = ends = (step.reads, *step.writes)
    moves = _given(step, "moves")
    if moves is None and shuffle.read("casts") and direction_of(step) == "dispatch":
        raise PassError(step, "must say which rows it moves, as its shuffle casts them")
    descriptors: Descriptors = step.follow("list")
    written = f"peers.{dst}" if "dst_peer" in descriptors.read("columns") else dst
    weight = step.follow("weight") if reduces else None
    wanted = RowKernel(
        name=f"{shuffle.read('sym_name')}_{_SUFFIXES[ends]}",
        columns=descriptors.read("columns"),
        terms=descriptors.read("terms"),
        rows=step.read("rows") if reduces and step.read("kind") != "copy" else (),
        kind=step.read("kind") if reduces else "copy",
        weight=weight.read("type")[0] if weight is not None else None,
        signals=step.signals is not None,
        wait=step.waits,
        moves=moves,
        partials=_partials(step),
    )
    with ir.InsertionPoint(module.body):
        build_row_kernel(wanted, shuffle)
    loaded, stored = _dtypes(shuffle, wanted)
    bind = [
        {"arg": f"{field}_{side}", "buffer": f"{buffer}.{field}", "dtype": dtypes[field]}
        for field in dict.fromkeys([*loaded, *stored])
        for side, buffer, dtypes in (("src", src, loaded), ("dst", written, stored))
        if field in dtypes
    ]
    if wanted.moves == "cast":
        bind += [
            {"arg": numbers_of(name), "buffer": f"numbers.{name}", "dtype": "f32"}
            for name in (cast["field"] for cast in shuffle.read("casts") if cast["channels"])
        ]
    if weight is not None:
        name = weight.read("sym_name")
        bind.append(
            {"arg": "weights", "buffer": f"weights.{name}", "dtype": weight.read("type")[0]}
        )
    with ir.InsertionPoint(step):
        return Launch.build(
            [before.opview for before in step.preceding],
            kernel=wanted.name,
            list=step.read("list"),
            src=src,
            dst=dst,
            bind=bind,
            signal=step.signals,
            wait=step.waits,
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
