"""The program of a lowered shuffle, as a manifest spells it (``docs/abi.md``).

It is L2 with the kernels that L3 has made for its steps: what planner and engine follow.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fuscoc.declared import declared_into_json
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.into import Into
from fuscoc.dialect.l0 import (
    DefExtent,
    DefInput,
    DefPacked,
    Shuffle,
    relation_extents,
    relation_inputs,
)
from fuscoc.dialect.l2 import Descriptors, Exchange
from fuscoc.dialect.l3 import ForEachPoint, Launch
from fuscoc.dialect.path import Path
from fuscoc.dialect.relation import Apart
from fuscoc.lang import checked
from fuscoc.lang.padding import PADDINGS
from fuscoc.lang.scope import BUILTINS

KernelName = Callable[[str], str]
"""The name in the manifest of a kernel of the module."""


def program_json(module: Any, kernel_name: KernelName) -> dict[str, Any]:
    """The section ``program`` of a shuffle's manifest."""
    (shuffle,) = ops_of(module, Shuffle)
    paths = {path.read("direction"): path for path in ops_of(module, Path)}
    return {
        "inputs": [each.read("sym_name") for each in relation_inputs(module)],
        "numbers": [
            each.read("sym_name")
            for each in ops_of(module, DefInput)
            if each.read("role") == "cast"
        ],
        "extents": [name for name in relation_extents(module) if name not in BUILTINS],
        "fanout": shuffle.read("fanout"),
        "every_rank": bool(shuffle.read("every_rank")),
        "relation": _relation(shuffle, kernel_name),
        "target": _target(shuffle),
        "runs": [
            {**runs, "run_dims": [dict(dim) for dim in runs["run_dims"]]}
            for runs in shuffle.read("runs")
        ],
        "buffers": _buffers(shuffle, paths),
        "dispatch": _path(paths["dispatch"], kernel_name),
        "combine": _path(paths["combine"], kernel_name) if "combine" in paths else None,
    }


def into_json(
    into: checked.Into | None, module: Any, kernel_name: KernelName
) -> dict[str, Any] | None:
    """The section ``into`` of a shuffle's manifest: where rows go on, as the spec declares it, and
    the kernel that says so."""
    if into is None:
        return None
    (op,) = ops_of(module, Into)
    (loop,) = ops_of(op.follow("kernel"), ForEachPoint)
    return {
        **declared_into_json(into),
        "argument": op.read("argument"),
        "kind": op.read("kind"),
        "inputs": [
            each.read("sym_name")
            for each in ops_of(module, DefInput)
            if each.read("role") == "into"
        ],
        "extents": [
            name
            for each in ops_of(module, DefExtent)
            if each.read("into") and (name := each.read("sym_name")) not in BUILTINS
        ],
        "parts": [
            {"name": part["name"], "dtype": part["type"][0], "shape": list(part["type"][1])}
            for part in op.read("parts")
        ],
        "kernel": kernel_name(op.read("kernel")),
        "block": loop.read("block"),
    }


def _relation(shuffle: Any, kernel_name: KernelName) -> dict[str, Any]:
    kernel, extents = shuffle.follow("relation_kernel"), shuffle.read("extents_kernel")
    values = [argument["value"] for argument in kernel.read("args")]
    # Its last arguments are what it stores: the source segment, addresses, rank, and key or slot.
    outputs = values[values.index("source") :]
    (loop,) = ops_of(kernel, ForEachPoint)
    return {
        "kernel": kernel_name(kernel.read("sym_name")),
        "extents_kernel": extents and kernel_name(extents),
        "block": loop.read("block"),
        "outputs": outputs,
        "addresses": outputs[1:-2],
        "apart": bool(ops_of(kernel, Apart)),
    }


def _target(shuffle: Any) -> dict[str, Any]:
    target = shuffle.follow("target")
    if not isinstance(target, DefPacked):
        return {"kind": "dense"}
    placement = target.follow("placement")
    table, padding = placement.read("table"), target.read("padding")
    return {
        "kind": "packed",
        "num_keys": placement.read("num_keys"),
        "group": placement.read("group") or 1,
        "align": target.read("align"),
        "padding": padding,
        "most_padding": PADDINGS[padding](target.read("align")),
        "capacity": target.read("capacity"),
        "compact": target.read("compact"),
        "distinct": bool(target.read("distinct")),
        "placement": {"kind": placement.read("kind"), "table": table},
    }


def _buffers(shuffle: Any, paths: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What a row of every buffer holds: the fields that launches read or write there."""
    leaving = {runs["name"]: [runs["seg_elems"]] for runs in shuffle.read("runs")}
    fields = shuffle.follow("segment").read("fields")
    arriving = {field["name"]: list(field["type"][1]) for field in fields}
    channels = {cast["field"]: cast["channels"] for cast in shuffle.read("casts")}
    rows = {name: [prod(shape)] for name, shape in arriving.items()} | leaving
    bound = [
        (*each["buffer"].removeprefix("peers.").split("."), each["dtype"])
        for path in paths.values()
        for launch in ops_of(path, Launch)
        for each in launch.read("bind")
    ]
    buffers: dict[str, list[dict[str, Any]]] = {}
    for buffer, name, dtype in sorted(dict.fromkeys(bound), key=lambda each: _place(each[1], rows)):
        shape = [] if buffer == "weights" else arriving[name] if buffer == "target" else rows[name]
        if buffer == "numbers":
            shape = [2, channels[name]]
        buffers.setdefault(buffer, []).append({"name": name, "dtype": dtype, "shape": shape})
    return buffers


def _place(name: str, fields: dict[str, Any]) -> int:
    """Where a field stands in a row; weights are no fields."""
    return list(fields).index(name) if name in fields else 0


def _path(path: Any, kernel_name: KernelName) -> dict[str, Any]:
    steps = ops_of(path, Launch, Exchange)
    numbers = {step.operation: number for number, step in enumerate(steps)}
    return {
        "lists": [_list(each) for each in ops_of(path, Descriptors)],
        "steps": [
            {
                **(_exchange(step) if isinstance(step, Exchange) else _launch(step, kernel_name)),
                "after": [numbers[before] for before in step.preceding],
            }
            for step in steps
        ],
    }


def _list(descriptors: Any) -> dict[str, Any]:
    return {
        "name": descriptors.read("sym_name"),
        "builder": descriptors.read("builder"),
        "per": descriptors.read("per"),
        "columns": list(descriptors.read("columns")),
        "terms": list(descriptors.read("terms")),
    }


def _exchange(exchange: Any) -> dict[str, Any]:
    return {"op": "exchange", **{policy: exchange.read(policy) for policy in exchange.attrs}}


def _launch(launch: Any, kernel_name: KernelName) -> dict[str, Any]:
    return {
        "op": "launch",
        "kernel": kernel_name(launch.read("kernel")),
        "list": launch.read("list"),
        "src": launch.read("src"),
        "dst": launch.read("dst"),
        "bind": {bound["arg"]: bound["buffer"] for bound in launch.read("bind")},
        "signal": launch.read("signal"),
        "wait": list(launch.read("wait")),
    }
