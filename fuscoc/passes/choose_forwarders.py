"""Paths with a balance policy -> paths whose hops to and from forwarders say how one is picked."""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.l1 import Collect, Hop, Path

RULES = {
    "none": "same_local_rank",
    "static": "same_local_rank",
    "greedy": "greedy_groups",
    "lpt": "longest_first",
    "split": "split_flows",
    "rebalance": "rebalanced",
    "auto": "predicted",
}


def run(module: Any) -> None:
    for path in ops_of(module, Path):
        balance = path.read("balance")
        if balance not in RULES:
            raise PassError(path, f"has no forwarder rule for the balance '{balance}'")
        del path.attributes["balance"]
        for hop in ops_of(path, Hop, Collect):
            if "landing" in (hop.read("src"), hop.read("dst")):
                hop.attributes["forwarder"] = hop.attrs["forwarder"].encode(RULES[balance])
