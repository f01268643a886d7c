"""L1, hops: the hierarchical path of a shuffle, before anyone knows about descriptor lists.

Buffers: ``source`` and ``target`` are the user's tensors, ``landing`` is the forwarder's memory,
``carrier`` that of a rank which sends rows for another of its node.
"""

from fuscoc.dialect.attrs import Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, check_role, direction_of
from fuscoc.dialect.l0 import check_weighed
from fuscoc.lang.policy import CHOICES
from fuscoc.lang.reductions import REDUCTIONS

BUFFERS = ("source", "carrier", "landing", "target")
# Rules by which a source picks the rank of a node that gets its rows over the network.
FORWARDERS = tuple(rule for rule in CHOICES["balance"] if rule != "none")
NETWORK = ("source", "landing")
# The legs of a dispatch, each with the tier that it crosses.
LEGS = {
    ("source", "carrier"): "rank", NETWORK: "node", ("carrier", "landing"): "node",
    ("source", "target"): "rank", ("landing", "target"): "rank", ("target", "target"): "local",
}  # fmt: skip


def _check_leg(op, direction, start, end):
    """The operation is the leg of a path that goes, or went forth, from ``start`` to ``end``."""
    if direction_of(op) != direction:
        raise VerifyError(f"must stand inside the fsc.path of a {direction}")
    ends = op.read("src"), op.read("dst")
    scope = LEGS.get((op.read(start), op.read(end)))
    if scope is None:
        raise VerifyError("must not go from {} to {}".format(*ends))
    if op.read("scope") != scope:
        raise VerifyError("must have the scope {} from {} to {}".format(scope, *ends))


class Hop(Op, name="hop"):
    """One leg of a dispatch: rows travel from ``src`` to ``dst``, one copy per ``per``.

    Scope node crosses the network, rank crosses NVLink inside a node, local stays on the rank.
    ``forwarder`` is the rule of the hop that crosses the network from the source, once
    choose-forwarders has run.

    ``"fsc.hop"() {dst = "landing", forwarder = "static", per = "node", scope = "node",
    src = "source"} : () -> ()``
    """

    attrs = attributes(
        scope=Text("node", "rank", "local"),
        per=Text("point", "rank", "node"),
        src=Text(*BUFFERS),
        dst=Text(*BUFFERS),
        forwarder=Text(*FORWARDERS, optional=True),
    )

    @classmethod
    def check(cls, op):
        _check_leg(op, "dispatch", "src", "dst")
        if "forwarder" in op.attributes and (op.read("src"), op.read("dst")) != NETWORK:
            raise VerifyError("has a rule for forwarders but brings them no rows of its source")


class Collect(Op, name="collect"):
    """One leg of a combine, the transpose of a hop: rows of one group become one, and travel back.

    Where several legs end in one buffer their rows are reduced there as well. ``kind`` copy says
    that every group has one row. ``weight`` is the input that factors each row of a point.

    ``"fsc.collect"() {dst = "source", kind = "sum", scope = "rank", src = "target"} : () -> ()``
    """

    attrs = attributes(
        scope=Text("node", "rank", "local"),
        src=Text(*BUFFERS),
        dst=Text(*BUFFERS),
        kind=Text("copy", *REDUCTIONS),
        weight=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        _check_leg(op, "combine", "dst", "src")
        if "weight" in op.attributes and op.read("scope") != "local":
            raise VerifyError("weighs rows that are no longer one a point")
        check_weighed(op)
        check_role(op, "weight", "weight")
