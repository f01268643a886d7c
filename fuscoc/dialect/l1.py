"""L1, hops: the hierarchical path of a shuffle, before anyone knows about descriptor lists.

Buffers: ``source`` and ``target`` are the user's tensors, ``landing`` is the forwarder's memory,
``carrier`` that of a rank which sends rows for another of its node.
"""

from fuscoc.dialect.attrs import Integer, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, entry_block
from fuscoc.dialect.mlir import ext, ir

BUFFERS = ("source", "carrier", "landing", "target")
# same_local_rank: the rank of the destination node with the source's local rank.
FORWARDERS = (
    "same_local_rank", "greedy_groups", "longest_first", "split_flows", "rebalanced", "predicted"
)  # fmt: skip
PER = ("point", "rank", "node")


class Path(Op, name="path", traits=[ir.NoTerminatorTrait]):
    """The ordered steps of one direction of a shuffle: hops at L1, lists and copies at L2.

    Policies wait here for the pass that they are for: ``balance`` for choose-forwarders,
    ``schedule`` and ``slice_bytes`` for form-slices.

    ``"fsc.path"() ({ ... }) {balance = "none", direction = "dispatch", schedule = "pairwise",
    shuffle = @moe, slice_bytes = 8388608 : i64, sym_name = "moe_dispatch"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Text(),
        direction=Text("dispatch", "combine"),
        shuffle=Ref("shuffle"),
        balance=Text(optional=True),
        schedule=Text(optional=True),
        slice_bytes=Integer(1, optional=True),
    )
    body: ext.Region

    @classmethod
    def check_regions(cls, op):
        entry_block(op, 0)


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
