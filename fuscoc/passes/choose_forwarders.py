"""The balance policy of a dispatch -> the rule by which its network hop picks forwarders."""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l1 import NETWORK, Hop
from fuscoc.dialect.path import Path


def run(module: Any) -> None:
    for path in ops_of(module, Path):
        if (balance := path.read("balance")) is None:
            continue
        rule = "static" if balance == "none" else balance  # two names of one rule
        for hop in ops_of(path, Hop):
            if (hop.read("src"), hop.read("dst")) == NETWORK:
                hop.attributes["forwarder"] = hop.attrs["forwarder"].encode(rule)
        del path.attributes["balance"]
