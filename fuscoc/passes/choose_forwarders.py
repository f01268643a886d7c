"""The balance policy of a dispatch -> the rule by which its network hop picks forwarders."""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l1 import NETWORK, Hop
from fuscoc.dialect.path import Path
from fuscoc.lang.policy import SAME_RULE


def run(module: Any) -> None:
    for path in ops_of(module, Path):
        if (balance := path.read("balance")) is None:
            continue
        rule = SAME_RULE.get(balance, balance)
        for hop in ops_of(path, Hop):
            if (hop.read("src"), hop.read("dst")) == NETWORK:
                hop.attributes["forwarder"] = hop.attrs["forwarder"].encode(rule)
        del path.attributes["balance"]
