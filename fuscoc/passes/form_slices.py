"""Paths of hops -> programs: descriptor lists, and copies, exchanges and reductions in their order.

A hop becomes a list and its copy; those over the network are copied into slices, which are
exchanged. On the way back, what a hop inside the target would reduce is reduced by the next leg as
it reads its terms, and one more reduction at the source merges the legs that end there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.dtypes import accumulator_dtype, partial_dtype
from fuscoc.dialect.into import Into
from fuscoc.dialect.l0 import shuffle_of
from fuscoc.dialect.l1 import NETWORK, Collect, Hop
from fuscoc.dialect.l2 import Descriptors, Exchange, GatherSend, Put, Reduce, ScatterRecv
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.path import Path

# Signal slots: one for each copy into peers' memory.
DIRECT, FORWARD, REDUCE_DIRECT, REDUCE_FORWARD, CARRY, HAND_BACK = range(6)
# By the ends of a hop: its list, who builds it, where rows go, and the signals of its copy.
_HOPS: dict[tuple[str, str], tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    ("source", "carrier"): ("carry", "source", ("dst_peer", "dst_row"), {"signal": CARRY}),
    ("carrier", "landing"): ("carried", "carrier", ("dst_row",), {"wait": [CARRY]}),
    ("source", "landing"): ("net_send", "source", ("dst_row",), {}),
    ("source", "target"): ("direct", "source", ("dst_peer", "dst_slot"), {"signal": DIRECT}),
    ("landing", "target"): ("forward", "forwarder", ("dst_peer", "dst_slot"), {"signal": FORWARD}),
    ("target", "target"): ("local", "target", ("dst_slot",), {"wait": [DIRECT, FORWARD]}),
}


def run(module: Any) -> None:
    for path in ops_of(module, Path):
        strides = _stride_columns(shuffle_of(path))
        with ir.InsertionPoint(path.body.blocks[0]):
            if path.read("direction") == "dispatch":
                _lower_hops(path, strides)
            else:
                _lower_collects(path, strides)
        for hop in ops_of(path, Hop, Collect):
            hop.operation.erase()
        for policy in ("schedule", "slice_bytes"):
            if policy in path.attributes:
                del path.attributes[policy]


class _Program:
    """The steps of a path so far; each comes after those that write what it reads, or that send
    what it waits for."""

    def __init__(self) -> None:
        self.writers: dict[str, list[Any]] = {}
        self.senders: dict[int, Any] = {}

    def add(self, op: Any, reads: str = "", **values: Any) -> None:
        """``reads``: the buffer, where that is not ``src``."""
        writers = self.writers.get(reads or values["src"], ())
        senders = (self.senders[slot] for slot in values.get("wait", ()))
        step = op.build(dict.fromkeys([*writers, *senders]), **values)
        for buffer in step.writes:
            self.writers.setdefault(buffer, []).append(step)
        if step.signals is not None:
            self.senders[step.signals] = step


def _stride_columns(shuffle: Any) -> list[str]:
    """The columns that hold run-time source strides (the same ones for every field)."""
    dims = shuffle.read("runs")[0]["run_dims"]
    return [dim["src_stride"] for dim in dims if isinstance(dim["src_stride"], str)]


def _lower_hops(path: Any, strides: list[str]) -> None:
    program = _Program()
    hops = ops_of(path, Hop)
    crossing = [hop for hop in hops if hop.read("scope") == "node"]
    buffers = {"carrier": "carried"}
    for hop in hops:
        src, dst = ends = hop.read("src"), hop.read("dst")
        name, builder, written, signals = _HOPS[ends]
        read = {"source": ["src_offset", *strides], "target": ["src_slot"]}.get(src, ["src_row"])
        with hop.location:
            Descriptors.build(
                sym_name=name, builder=builder, per=hop.read("per"), columns=[*read, *written]
            )
            into = "slices" if dst == "landing" else buffers.get(dst, dst)
            if src == dst:
                program.add(ScatterRecv, "target", list=name, **signals)
            else:
                program.add(GatherSend, src=buffers.get(src, src), dst=into, list=name, **signals)
        if hop is crossing[-1]:  # what a carrier sends leaves with the rows from the source
            [network] = [each for each in hops if (each.read("src"), each.read("dst")) == NETWORK]
            with network.location:
                program.add(
                    Exchange,
                    "slices",
                    forwarder=network.read("forwarder"),
                    schedule=path.read("schedule"),
                    slice_bytes=path.read("slice_bytes"),
                )
    for into in ops_of(path.operation.parent, Into):
        with into.location:
            program.add(Put, "target")


def _lower_collects(path: Any, strides: list[str]) -> None:
    program = _Program()
    weight = None
    arrivals = [REDUCE_DIRECT]
    collects = ops_of(path, Collect)
    kind = collects[0].read("kind")
    for collect in collects:
        with collect.location:
            match collect.read("src"), collect.read("dst"):
                case "target", "target":
                    weight = collect.read("weight")
                case "target", dst:
                    _reduce_at_target(program, path, kind, dst == "landing", weight)
                case "landing", "source":
                    _reduce_at_forwarder(program, path, kind)
                case "landing", "carrier":
                    pass  # these rows come back with the others
                case "carrier", "source":
                    _hand_back(program, path, kind)
                    arrivals.append(HAND_BACK)
    with path.location:
        _reduce_at_source(program, path, kind, strides, arrivals)


def _reduce_at_target(
    program: _Program, path: Any, kind: str, forwarded: bool, weight: Any
) -> None:
    """One result for each row that was copied here, straight into its reader's staging."""
    name = "reduce_forward" if forwarded else "reduce_direct"
    Descriptors.build(
        sym_name=name,
        builder="target",
        columns=["dst_peer", "dst_row", "term_begin", "term_end"],
        terms=["term_slot", "term_point"] if weight else ["term_slot"],
    )
    program.add(
        Reduce,
        src="rows",
        list=name,
        kind=kind,
        dst="forward_staging" if forwarded else "staging",
        rows=_rows(path, kind, dst=accumulator_dtype if forwarded else partial_dtype),
        signal=REDUCE_FORWARD if forwarded else REDUCE_DIRECT,
        weight=weight,
    )


def _reduce_at_forwarder(program: _Program, path: Any, kind: str) -> None:
    """One result for each landed row, which goes back the way it came."""
    Descriptors.build(
        sym_name="reduce_node",
        builder="forwarder",
        columns=["term_begin", "term_end", "dst_row"],
    )
    program.add(
        Reduce,
        src="forward_staging",
        wait=[REDUCE_FORWARD],
        list="reduce_node",
        kind=kind,
        dst="return_slices",
        rows=_rows(path, kind, src=accumulator_dtype, dst=partial_dtype),
    )
    program.add(Exchange, "return_slices")


def _hand_back(program: _Program, path: Any, kind: str) -> None:
    """What came back to the rank that sent it goes to the rank that it belongs to."""
    rows = [
        {"name": row["name"], "dtype": row["dst"]} for row in _rows(path, kind, dst=partial_dtype)
    ]
    Descriptors.build(
        sym_name="hand_back", builder="carrier", columns=["src_row", "dst_peer", "dst_row"]
    )
    program.add(
        GatherSend, src="returned", dst="staging", list="hand_back", signal=HAND_BACK, rows=rows
    )


def _reduce_at_source(
    program: _Program, path: Any, kind: str, strides: list[str], arrivals: list[int]
) -> None:
    """One result for each source segment: of none, where all of its points were dropped."""
    strides = [f"dst{column.removeprefix('src')}" for column in strides]
    Descriptors.build(
        sym_name="reduce_source",
        builder="source",
        columns=["dst_offset", *strides, "term_begin", "term_end"],
        terms=["term_row"],
    )
    program.add(
        Reduce,
        src="staging",
        wait=arrivals,
        list="reduce_source",
        kind=kind,
        dst="result",
        rows=_rows(path, kind, src=partial_dtype),
    )


def _rows(
    path: Any,
    kind: str,
    *,
    src: Callable[[str], str] = str,
    dst: Callable[[str], str] = str,
) -> list[dict[str, str]]:
    """The dtypes of a reduction's rows: ``src`` and ``dst`` give those of a sum or maximum."""
    rows = []
    for field in shuffle_of(path).follow("source").read("cells"):
        dtype, _ = field["type"]
        if kind == "copy":
            rows.append({"name": field["name"], "src": dtype, "dst": dtype})
        else:
            types = {"src": src(dtype), "acc": accumulator_dtype(dtype), "dst": dst(dtype)}
            rows.append({"name": field["name"], **types})
    return rows
