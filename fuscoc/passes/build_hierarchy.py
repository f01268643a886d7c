"""fsc.dispatch (a policy) -> fsc.path of hops: network once a node, NVLink once a rank, then local.

The two-tier path of FUSCO (arXiv 2512.22036): rows for other nodes go to a forwarder in
the destination node, which hands them out as a source does in its own node; a rank that wants a
row in several slots copies it itself. Without a tier's dedup, rows cross that tier once for every
destination behind it. Where senders are balanced (FAST, NSDI '26), rows may cross NVLink to another
sender of the node first.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l0 import Dispatch
from fuscoc.dialect.l1 import Hop
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.path import BALANCES_SENDERS, Path


def run(module: Any) -> None:
    for dispatch in ops_of(module, Dispatch):
        dedup = dispatch.read("dedup")
        per_rank = "rank" if "rank" in dedup else "point"
        per_node = "node" if "node" in dedup else per_rank
        with dispatch.location, ir.InsertionPoint(dispatch):
            path = Path.build(
                direction="dispatch",
                balance=dispatch.read("balance"),
                schedule=dispatch.read("schedule"),
                slice_bytes=dispatch.read("slice_bytes"),
            )
            with ir.InsertionPoint(path.body.blocks.append()):
                hands_over = dispatch.read("balance") in BALANCES_SENDERS
                if hands_over:
                    Hop.build(scope="rank", per=per_node, src="source", dst="carrier")
                Hop.build(scope="node", per=per_node, src="source", dst="landing")
                if hands_over:
                    Hop.build(scope="node", per=per_node, src="carrier", dst="landing")
                Hop.build(scope="rank", per=per_rank, src="source", dst="target")
                Hop.build(scope="rank", per=per_rank, src="landing", dst="target")
                Hop.build(scope="local", per="point", src="target", dst="target")
        dispatch.operation.erase()
