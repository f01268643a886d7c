"""Paths of hops -> paths of descriptor lists and the copies, exchanges and reductions over them.

A hop becomes a list and its copy; one over the network is copied into slices, which are exchanged.
On the way back, what a hop inside the target would reduce is reduced by the next leg as it reads
its terms, and one more reduction at the source merges the legs that end there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l1 import Collect, Hop, Path
from fuscoc.dialect.l2 import Descriptors, Exchange, GatherSend, Reduce, ScatterRecv
from fuscoc.dialect.mlir import ir
from fuscoc.lang.dtypes import INTEGERS

# Signal slots: one for each copy into peers' memory.
DIRECT, FORWARD, REDUCE_DIRECT, REDUCE_FORWARD, CARRY, HAND_BACK = range(6)
# By the ends of a hop: its list, where rows go, and the signals of its copy. What a carrier puts
# into slices leaves with the rows from the source.
_HOPS: dict[tuple[str, str], tuple[str, tuple[str, ...], dict[str, Any]]] = {
    ("source", "carrier"): ("carry", ("dst_peer", "dst_row"), {"signal": CARRY}),
    ("carrier", "landing"): ("carried", ("dst_row",), {"wait": [CARRY]}),
    ("source", "landing"): ("net_send", ("dst_row",), {}),
    ("source", "target"): ("direct", ("dst_peer", "dst_slot"), {"signal": DIRECT}),
    ("landing", "target"): ("forward", ("dst_peer", "dst_slot"), {"signal": FORWARD}),
    ("target", "target"): ("local", ("dst_slot",), {"wait": [DIRECT, FORWARD]}),
}


def run(module: Any) -> None:
    for path in ops_of(module, Path):
        strides = _stride_columns(path.follow("shuffle"))
        if path.read("direction") == "dispatch":
            for hop in ops_of(path, Hop):
                with ir.InsertionPoint(hop), hop.location:
                    _lower_hop(path, hop, strides)
                hop.operation.erase()
        else:
            _lower_collects(path, strides)
        for policy in ("schedule", "slice_bytes"):
            del path.attributes[policy]


def _stride_columns(shuffle: Any) -> list[str]:
    """The columns that hold run-time source strides (the same ones for every field)."""
    dims = shuffle.read("runs")[0]["run_dims"]
    return [dim["src_stride"] for dim in dims if isinstance(dim["src_stride"], str)]


def _lower_hop(path: Any, hop: Any, strides: list[str]) -> None:
    src, dst = ends = hop.read("src"), hop.read("dst")
    name, written, signals = _HOPS[ends]
    read = {"source": ["src_offset", *strides], "target": ["src_slot"]}.get(src, ["src_row"])
    Descriptors.build(sym_name=name, per=hop.read("per"), columns=[*read, *written])
    if dst == src:
        ScatterRecv.build(list=name, src=src, dst=dst, **signals)
        return
    into = "slice" if dst == "landing" else dst
    GatherSend.build(list=name, src=src, dst=into, scope=hop.read("scope"), **signals)
    if ends == ("source", "landing"):
        _exchange(path, hop, name, "forward")


def _lower_collects(path: Any, strides: list[str]) -> None:
    weight = None
    arrivals = [REDUCE_DIRECT]
    collects = ops_of(path, Collect)
    kind = collects[0].read("kind")
    for collect in collects:
        with ir.InsertionPoint(collect), collect.location:
            match collect.read("src"), collect.read("dst"):
                case "target", "target":
                    weight = collect.read("weight")
                case "target", _:
                    _reduce_at_target(path, collect, weight)
                case "landing", "source":
                    _reduce_at_forwarder(path, collect)
                case "landing", "carrier":
                    pass  # these rows come back with the others
                case "carrier", "source":
                    _hand_back(path, collect)
                    arrivals.append(HAND_BACK)
        collect.operation.erase()
    with ir.InsertionPoint(path.body.blocks[0]), path.location:
        _reduce_at_source(path, kind, strides, arrivals)


def _reduce_at_target(path: Any, collect: Any, weight: Any) -> None:
    """One result for each row that was copied here, straight into its reader's staging."""
    forwarded = collect.read("dst") == "landing"
    name = "reduce_forward" if forwarded else "reduce_direct"
    Descriptors.build(
        sym_name=name,
        per=collect.read("per"),
        columns=["dst_peer", "dst_row", "term_begin", "term_end"],
        terms=["term_slot", "term_point"] if weight else ["term_slot"],
    )
    Reduce.build(
        list=name,
        kind=collect.read("kind"),
        src="target",
        dst="forward_staging" if forwarded else "staging",
        scope="rank",
        rows=_rows(path, collect.read("kind"), dst=_accumulator if forwarded else _partial),
        signal=REDUCE_FORWARD if forwarded else REDUCE_DIRECT,
        weight=weight,
    )


def _reduce_at_forwarder(path: Any, collect: Any) -> None:
    """One result for each landed row, which goes back the way it came."""
    Descriptors.build(
        sym_name="reduce_node",
        per=collect.read("per"),
        columns=["term_begin", "term_end", "dst_row"],
    )
    Reduce.build(
        list="reduce_node",
        kind=collect.read("kind"),
        src="forward_staging",
        dst="slice",
        scope="node",
        rows=_rows(path, collect.read("kind"), src=_accumulator, dst=_partial),
        wait=[REDUCE_FORWARD],
    )
    (shuffle,) = path.read("shuffle")
    _exchange(path, collect, (f"{shuffle}_dispatch", "net_send"), "back")


def _hand_back(path: Any, collect: Any) -> None:
    """What came back to the rank that sent it goes to the rank that it belongs to."""
    kind = collect.read("kind")
    rows = [{"name": row["name"], "dtype": row["dst"]} for row in _rows(path, kind, dst=_partial)]
    Descriptors.build(
        sym_name="hand_back",
        per=collect.read("per"),
        columns=["src_row", "dst_peer", "dst_row"],
    )
    GatherSend.build(
        list="hand_back", src="returned", dst="staging", scope="rank", signal=HAND_BACK, rows=rows
    )


def _reduce_at_source(path: Any, kind: str, strides: list[str], arrivals: list[int]) -> None:
    """One result for each source segment: of none, where all of its points were dropped."""
    strides = [f"dst{column.removeprefix('src')}" for column in strides]
    Descriptors.build(
        sym_name="reduce_source",
        per="source",
        columns=["dst_offset", *strides, "term_begin", "term_end"],
        terms=["term_row"],
    )
    Reduce.build(
        list="reduce_source",
        kind=kind,
        src="staging",
        dst="source",
        scope="local",
        rows=_rows(path, kind, src=_partial),
        wait=arrivals,
    )


def _exchange(path: Any, hop: Any, rows: str | tuple[str, ...], direction: str) -> None:
    Exchange.build(
        list=rows,
        direction=direction,
        forwarder=hop.read("forwarder"),
        schedule=path.read("schedule"),
        slice_bytes=path.read("slice_bytes"),
    )


def _accumulator(dtype: str) -> str:
    """What floats are reduced in, and kept in where that loses nothing; integers stay."""
    if dtype in INTEGERS:
        return dtype
    return "f64" if dtype == "f64" else "f32"


def _partial(dtype: str) -> str:
    """What rows of one rank, or of one node, go back to the source in: as narrow as is safe.

    A partial sum may be too large for f16 where the whole sum is not.
    """
    return "f32" if dtype == "f16" else dtype


def _rows(
    path: Any,
    kind: str,
    *,
    src: Callable[[str], str] = str,
    dst: Callable[[str], str] = str,
) -> list[dict[str, str]]:
    """The dtypes of a reduction's rows: ``src`` and ``dst`` give those of a sum or maximum."""
    rows = []
    for field in path.follow("shuffle").follow("source").read("cells"):
        dtype, _ = field["type"]
        if kind == "copy":
            rows.append({"name": field["name"], "src": dtype, "dst": dtype})
        else:
            types = {"src": src(dtype), "acc": _accumulator(dtype), "dst": dst(dtype)}
            rows.append({"name": field["name"], **types})
    return rows
