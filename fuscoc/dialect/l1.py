"""L1, hops: the hierarchical path of a shuffle, before anyone knows about descriptor lists.

Buffers: ``source`` and ``target`` are the user's tensors, ``landing`` is the forwarder's memory,
``carrier`` that of a rank which sends rows for another of its node.
"""

from fuscoc.dialect.attrs import Integer, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, check_role, entry_block, ops_of
from fuscoc.dialect.mlir import ext, ir
from fuscoc.lang.policy import CHOICES

BUFFERS = ("source", "carrier", "landing", "target")
# same_local_rank: the rank of the destination node with the source's local rank.
FORWARDERS = (
    "same_local_rank", "greedy_groups", "longest_first", "split_flows", "rebalanced", "predicted"
)  # fmt: skip
PER = ("point", "rank", "node")


class Path(Op, name="path", traits=[ir.NoTerminatorTrait]):
    """The ordered steps of one direction of a shuffle: hops at L1, lists and copies at L2.

    Policies wait here for the pass that they are for: ``balance`` for choose-forwarders,
    ``schedule`` and ``slice_bytes`` for form-slices. A shuffle has one path a direction.

    ``"fsc.path"() ({ ... }) {balance = "none", direction = "dispatch", schedule = "pairwise",
    shuffle = @moe, slice_bytes = 8388608 : i64, sym_name = "moe_dispatch"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Text(),
        direction=Text("dispatch", "combine"),
        shuffle=Ref("shuffle"),
        balance=Text(*CHOICES["balance"], optional=True),
        schedule=Text(*CHOICES["schedule"], optional=True),
        slice_bytes=Integer(1, optional=True),
    )
    body: ext.Region

    @classmethod
    def check(cls, op):
        direction = op.read("direction")
        others = [each for each in ops_of(op.operation.parent, Path) if each != op]
        if any(
            (each.read("shuffle"), each.read("direction")) == (op.read("shuffle"), direction)
            for each in others
        ):
            raise VerifyError(f"must be the only path for {direction} of its shuffle")

    @classmethod
    def check_regions(cls, op):
        entry_block(op, 0)
        hops = ops_of(op, Hop, Collect)
        if any(isinstance(hop, Collect) != (op.read("direction") == "combine") for hop in hops):
            raise VerifyError(f"has legs of another direction than {op.read('direction')}")
        for policy in ("schedule", "slice_bytes"):
            if (policy in op.attributes) != bool(hops):
                raise VerifyError(f"needs the attribute '{policy}' exactly while it has hops")
        picked = any("forwarder" in hop.attributes for hop in hops)
        if ("balance" in op.attributes) != (bool(hops) and not picked):
            raise VerifyError("needs the attribute 'balance' exactly until forwarders are chosen")


def _check_hop(op):
    if not isinstance(op.operation.parent.opview, Path):
        raise VerifyError("must stand inside fsc.path")
    ends = {op.read("src"), op.read("dst")}
    if (op.read("scope") == "node") != (ends in ({"source", "landing"}, {"carrier", "landing"})):
        raise VerifyError("must run between a sender and landing exactly when its scope is node")
    if (op.read("scope") == "local") != (op.read("src") == op.read("dst")):
        raise VerifyError("must stay in one buffer exactly when its scope is local")
    if "forwarder" in op.attributes and "landing" not in (op.read("src"), op.read("dst")):
        raise VerifyError("names a forwarder but does not pass one")


class Hop(Op, name="hop"):
    """One leg of a dispatch: rows travel from ``src`` to ``dst``, one copy per ``per``.

    Scope node crosses the network, rank crosses NVLink inside a node, local stays on the rank.
    ``forwarder`` names the rule that picks the rank which holds a landing row.

    ``"fsc.hop"() {dst = "landing", forwarder = "same_local_rank", per = "node", scope = "node",
    src = "source"} : () -> ()``
    """

    attrs = attributes(
        scope=Text("node", "rank", "local"),
        per=Text(*PER),
        src=Text(*BUFFERS),
        dst=Text(*BUFFERS),
        forwarder=Text(*FORWARDERS, optional=True),
    )
    check = classmethod(lambda cls, op: _check_hop(op))


class Collect(Op, name="collect"):
    """One leg of a combine, the transpose of a hop: rows of one group become one, and travel back.

    Where several legs end in one buffer their rows are reduced there as well. ``kind`` copy says
    that every group has one row. ``weight`` is the input that factors each row of a point.

    ``"fsc.collect"() {dst = "source", kind = "sum", per = "rank", scope = "rank", src = "target"} :
    () -> ()``
    """

    attrs = attributes(
        **Hop.attrs,
        kind=Text("copy", "sum", "max"),
        weight=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        _check_hop(op)
        if "weight" in op.attributes and op.read("per") != "point":
            raise VerifyError("weighs rows that are no longer one a point")
        if "weight" in op.attributes and op.read("kind") != "sum":
            raise VerifyError("must weigh nothing but the terms of a sum")
        check_role(op, "weight", "weight")
