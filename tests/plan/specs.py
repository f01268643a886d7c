"""Small shuffles for planner and reference tests, as manifests say them, and data for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fuscoc_runtime.decode import decode
from fuscoc_runtime.plan import PlanContext, Points, key_to_rank
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Scope, evaluate
from fuscoc_runtime.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology

ALL_DEDUP = ("node", "rank")

Balance = Literal["none", "static", "greedy", "lpt", "split", "rebalance", "auto"]


def index(name: str) -> dict[str, str]:
    return {"index": name}


def load(name: str, *at: Any) -> dict[str, Any]:
    return {"load": name, "at": list(at)}


def op(symbol: str, lhs: Any, rhs: Any) -> dict[str, Any]:
    return {"op": symbol, "args": [lhs, rhs]}


def spec_json(**parts: Any) -> dict[str, Any]:
    """A shuffle's JSON: ``parts`` over what no planner test depends on."""
    return {
        "constants": {},
        "policy": {
            "dedup": list(parts.pop("dedup", ALL_DEDUP)),
            "balance": "none",
            "schedule": "pairwise",
            "slice_bytes": 4096,
            "backend": "triton",
        },
        "segment": "segment",
        "ragged": False,
        "src_strides": 0,
        "relation": {"kernel": "relation", "block": 1024, "outputs": []},
        "extents_kernel": None,
        "dispatch": {"steps": [], "dtypes": {}},
        "combine_steps": {"steps": [], "dtypes": {}},
        "baked": {},
        **parts,
    }


def balanced(spec: ShuffleSpec, balance: Balance) -> ShuffleSpec:
    """The same shuffle with another balance policy."""
    return replace(spec, policy=replace(spec.policy, balance=balance))


def routed(
    *,
    topk: int = 2,
    num_keys: int = 8,
    align: int = 1,
    capacity: int | None = None,
    placement: str = "block",
    dedup: Sequence[str] = ALL_DEDUP,
    hidden: int = 3,
) -> ShuffleSpec:
    """Rows of [tokens, hidden] to the keys in ``idx`` [tokens, topk], weighted sum back."""
    value = {
        "inputs": [
            {
                "name": "idx",
                "dtype": "i64",
                "shape": [{"extent": "tokens"}, topk],
                "role": "route",
            },
            {
                "name": "weights",
                "dtype": "f32",
                "shape": [{"extent": "tokens"}, topk],
                "role": "weight",
            },
        ],
        "extents": ["tokens"],
        "domain": [
            {"name": "t", "extent": {"extent": "tokens"}},
            {"name": "k", "extent": topk},
        ],
        "num_source_dims": 1,
        "fields": [{"name": "x", "dtype": "f32", "shape": [hidden]}],
        "source": {
            "layout": "rows",
            "fields": [{"name": "x", "dtype": "f32", "shape": [hidden]}],
            "dims": [{"extent": "tokens"}],
            "subscripts": [{"start": index("t"), "length": None}],
        },
        "target": {
            "kind": "packed",
            "layout": "by_key",
            "key": load("idx", index("t"), index("k")),
            "num_keys": num_keys,
            "align": align,
            "capacity": capacity,
            "placement": {
                "kind": placement,
                "table": "owner" if placement == "table" else None,
            },
        },
        "combine": {
            "kind": "sum",
            "weight": {"name": "w", "input": "weights", "dtype": "f32"},
        },
        "runs": [runs("x", "f32", hidden, [], hidden, hidden)],
    }
    return decode(ShuffleSpec, spec_json(name="routed", dedup=dedup, **value))


def patches(*, p: int = 2, channels: int = 3, dedup: Sequence[str] = ALL_DEDUP) -> ShuffleSpec:
    """p x p patches of ragged pictures to slots and ranks that ``packing`` [images, 2] says."""

    def patch_count(size: str) -> dict[str, Any]:
        return op("/", load(size, index("n")), p)

    start = op("+", load("packing", index("n"), 1), op("*", index("i"), patch_count("width")))
    value = {
        "inputs": [
            {"name": name, "dtype": "i64", "shape": [{"extent": "images"}, *more], "role": role}
            for name, more, role in (
                ("height", [], "extent"),
                ("width", [], "extent"),
                ("packing", [2], "route"),
            )
        ],
        "extents": ["images", "length"],
        "domain": [
            {"name": "n", "extent": {"extent": "images"}},
            {"name": "i", "extent": patch_count("height")},
            {"name": "j", "extent": patch_count("width")},
        ],
        "num_source_dims": 3,
        "ragged": True,
        "fields": [{"name": "pixels", "dtype": "u8", "shape": [p, p, channels]}],
        "source": {
            "layout": "pictures",
            "fields": [{"name": "pixels", "dtype": "u8", "shape": [channels]}],
            "dims": [
                {"extent": "images"},
                load("height", index("n")),
                load("width", index("n")),
            ],
            "subscripts": [
                {"start": index("n"), "length": None},
                {"start": op("*", index("i"), p), "length": p},
                {"start": op("*", index("j"), p), "length": p},
            ],
        },
        "target": {
            "kind": "dense",
            "layout": "sequence",
            "slot": op("+", start, index("j")),
            "rank": load("packing", index("n"), 0),
            "length": {"extent": "length"},
        },
        "combine": {"kind": "copy", "weight": None},
        "src_strides": 1,
        "runs": [
            runs(
                "pixels",
                "u8",
                p * channels,
                [{"count": p, "src_stride": "src_stride0", "dst_stride": p * channels}],
                p * p * channels,
                channels,
            )
        ],
    }
    return decode(ShuffleSpec, spec_json(name="patches", dedup=dedup, **value))


def tiles(*, copies: int = 2, width: int = 4, dedup: Sequence[str] = ALL_DEDUP) -> ShuffleSpec:
    """2 x 2 tiles of a grid [2 * tile_rows, width], ``copies`` of each, plain sum back.

    Two fields with different cells; ``where`` [tile_rows, tiles in a row, copies, 2] holds rank
    and slot.
    """
    columns = width // 2
    fields = [("a", "f32", [3]), ("b", "i32", [])]
    at = [index("i"), index("j"), index("k")]
    value = {
        "inputs": [
            {
                "name": "where",
                "dtype": "i64",
                "shape": [{"extent": "tile_rows"}, columns, copies, 2],
                "role": "route",
            }
        ],
        "extents": ["tile_rows", "length"],
        "domain": [
            {"name": "i", "extent": {"extent": "tile_rows"}},
            {"name": "j", "extent": columns},
            {"name": "k", "extent": copies},
        ],
        "num_source_dims": 2,
        "fields": [{"name": n, "dtype": d, "shape": [2, 2, *cell]} for n, d, cell in fields],
        "source": {
            "layout": "grid",
            "fields": [{"name": n, "dtype": d, "shape": cell} for n, d, cell in fields],
            "dims": [op("*", {"extent": "tile_rows"}, 2), width],
            "subscripts": [
                {"start": op("*", index("i"), 2), "length": 2},
                {"start": op("*", index("j"), 2), "length": 2},
            ],
        },
        "target": {
            "kind": "dense",
            "layout": "tiles",
            "slot": load("where", *at, 1),
            "rank": load("where", *at, 0),
            "length": {"extent": "length"},
        },
        "combine": {"kind": "sum", "weight": None},
        "runs": [
            runs(
                name,
                dtype,
                2 * math.prod(cell),
                [{"count": 2, "src_stride": width, "dst_stride": 2 * math.prod(cell)}],
                4 * math.prod(cell),
                math.prod(cell),
            )
            for name, dtype, cell in fields
        ],
    }
    return decode(ShuffleSpec, spec_json(name="tiles", dedup=dedup, **value))


def runs(
    name: str,
    dtype: str,
    run_elems: int,
    run_dims: list[dict[str, Any]],
    seg_elems: int,
    cell_elems: int,
) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": dtype,
        "run_elems": run_elems,
        "run_dims": run_dims,
        "seg_elems": seg_elems,
        "cell_elems": cell_elems,
        "unit_bytes": 1,
        "copy_dtype": "i8",
    }


def routed_data(
    idx: Tensor, rank: int, hidden: int = 3, more: Mapping[str, Tensor] | None = None
) -> RankData:
    """Data for ``routed``; every element of every rank is different."""
    tokens = len(idx)
    x = torch.arange(tokens * hidden, dtype=torch.float32).view(tokens, hidden) + 10_000 * rank
    weights = torch.rand(idx.shape, generator=torch.Generator().manual_seed(rank))
    inputs = {"idx": idx, "weights": weights, **(more or {})}
    return RankData({"x": x}, inputs, {"tokens": tokens})


def relation(spec: ShuffleSpec, topology: Topology, rank: int, data: RankData) -> Points:
    """What the relation kernel computes, one point at a time."""
    scope = Scope(data.extents, data.inputs)
    outer, *inner = spec.declared.domain
    points = []
    for value in range(evaluate(outer.extent, scope)):
        here = scope.at({outer.name: value})
        extents = [range(evaluate(dim.extent, here)) for dim in inner]
        names = [dim.name for dim in inner]
        points += [
            {outer.name: value, **dict(zip(names, values, strict=True))}
            for values in itertools.product(*extents)
        ]
    columns: dict[str, list[int]] = {"source": [], "src_offset": [], "rank": []}
    columns |= {f"src_stride{i}": [] for i in range(spec.src_strides)}
    columns["key" if spec.declared.target.kind == "packed" else "slot"] = []
    owner = None
    if spec.declared.target.kind == "packed":
        owner = key_to_rank(spec.declared.target, topology, rank, data.inputs)
    for number, at in enumerate(points):
        here = scope.at(at)
        columns["source"].append(number // spec.program.fanout)
        offset, stride = _address(spec, scope, here)
        columns["src_offset"].append(offset)
        if spec.src_strides:
            columns["src_stride0"].append(stride)
        if spec.declared.target.kind == "packed" and owner is not None:
            key = evaluate(spec.declared.target.key, here)
            in_range = -1 <= key < spec.declared.target.num_keys
            columns["rank"].append(-2 if not in_range else -1 if key < 0 else int(owner[key]))
            columns["key"].append(key)
        elif spec.declared.target.kind == "dense":
            to = evaluate(spec.declared.target.rank, here)
            columns["rank"].append(to if -1 <= to < topology.num_ranks else -2)
            columns["slot"].append(evaluate(spec.declared.target.slot, here))
    length = (
        evaluate(spec.declared.target.length, scope)
        if spec.declared.target.kind == "dense"
        else None
    )
    tensors = {name: torch.tensor(values, dtype=torch.int64) for name, values in columns.items()}
    return Points(tensors, owner, length, data.inputs, data.extents)


def _address(spec: ShuffleSpec, scope: Scope, here: Scope) -> tuple[int, int]:
    """First cell of the segment, and the distance of its rows: row-major arithmetic by hand."""
    starts = [evaluate(subscript.start, here) for subscript in spec.declared.source.subscripts]
    dims = [evaluate(dim, here) for dim in spec.declared.source.dims]
    if not spec.ragged:
        offset = 0
        for start, dim in zip(starts, dims, strict=True):
            offset = offset * dim + start
        return offset, dims[-1]
    before = 0
    for entry in range(starts[0]):
        at = scope.at({spec.declared.domain[0].name: entry})
        before += math.prod(evaluate(dim, at) for dim in spec.declared.source.dims[1:])
    return before + starts[1] * dims[2] + starts[2], dims[2]


def contexts(spec: ShuffleSpec, topology: Topology) -> list[PlanContext]:
    return [PlanContext(spec, topology, rank) for rank in range(topology.num_ranks)]
