"""L2, descriptors: who builds which descriptor list, and the copies and reductions that read them.

The body of a ``fsc.path`` is the ordered list of its steps. A list is a struct of arrays, one i64
column a name; the run-time planner fills it from the relation's points.
"""

from fuscoc.dialect.attrs import Array, Integer, Record, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op
from fuscoc.dialect.dtypes import DType
from fuscoc.dialect.l1 import FORWARDERS
from fuscoc.lang.dtypes import INTEGERS

ACCUMULATORS = frozenset({"f32", "f64"}) | INTEGERS
# Where fields are cast on the way, the rows that a copy moves: those of the source's segment, those
# of the target's, or the former made into the latter. Added by fuse-transforms.
MOVES = Text("source", "cast", "target", optional=True)
# Last parts of the columns that place rows.
ENDS = ("offset", "row", "slot")


class Descriptors(Op, name="descriptors"):
    """A descriptor list: held by ``builder``, one entry per point / rank / node / source.

    ``per`` says what an entry stands for: one point of the relation, one (source, destination
    rank), one (source, destination node) or one source segment. ``terms`` names the columns of a
    reduction's terms, which entries reach as the range [term_begin, term_end).

    ``"fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_row"], per = "node",
    sym_name = "net_send"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Text(),
        builder=Text("source", "carrier", "forwarder", "target"),
        per=Text("point", "rank", "node", "source"),
        columns=Array(Text(), distinct=True),
        terms=Array(Text(), distinct=True, optional=True),
    )

    @classmethod
    def check(cls, op):
        columns = op.read("columns")
        reduces = "term_begin" in columns
        if reduces != ("term_end" in columns):
            raise VerifyError("needs both of the columns term_begin and term_end, or neither")
        if op.read("terms") and not reduces:
            raise VerifyError("has terms but no columns term_begin and term_end")


def _check_ends(op, *sides):
    columns = op.follow("list").read("columns")
    for side in sides:
        if not any(f"{side}_{end}" in columns for end in ENDS):
            raise VerifyError(f"needs a list that places the {side} of its rows")


class GatherSend(Op, name="gather_send"):
    """Copy the segment of every descriptor into a slice or straight into its row on a peer.

    ``signal`` is the slot that this rank bumps on every peer of its node when its copies are
    visible there; nothing is copied before the signals in ``wait`` came from every peer.
    ``rows`` gives the dtypes of partial results that are copied on the way back.

    ``"fsc.gather_send"() {dst = "target", list = @direct, scope = "rank", signal = 0 : i64,
    src = "source"} : () -> ()``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        src=Text("source", "carrier", "landing", "returned"),
        dst=Text("slice", "carrier", "target", "staging"),
        scope=Text("node", "rank"),
        signal=Integer(0, optional=True),
        wait=Array(Integer(0), distinct=True, optional=True),
        rows=Array(Record({"name": Text(), "dtype": DType()}), optional=True),
        moves=MOVES,
    )

    @classmethod
    def check(cls, op):
        if (op.read("scope") == "node") != (op.read("dst") == "slice"):
            raise VerifyError("must fill slices exactly when its scope is node")
        if op.read("scope") == "node" and "signal" in op.attributes:
            raise VerifyError("must not signal: slices stay on this rank")
        _check_ends(op, "src", "dst")


class Exchange(Op, name="exchange"):
    """The network hop between source and forwarder: slices leave in list order, or come back in it.

    ``"fsc.exchange"() {direction = "forward", forwarder = "same_local_rank", list = @net_send,
    schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        direction=Text("forward", "back"),
        forwarder=Text(*FORWARDERS),
        schedule=Text(),
        slice_bytes=Integer(1),
    )


class ScatterRecv(Op, name="scatter_recv"):
    """After the signals in ``wait`` came from every peer, copy rows to their further slots.

    Slots of a compact target have no rows of their own: its list is empty, and the op only waits.

    ``"fsc.scatter_recv"() {dst = "target", list = @local, src = "target",
    wait = [0 : i64, 1 : i64]} : () -> ()``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        src=Text("target"),
        dst=Text("target"),
        wait=Array(Integer(0), distinct=True),
        moves=MOVES,
    )

    @classmethod
    def check(cls, op):
        _check_ends(op, "src", "dst")


class Reduce(Op, name="reduce"):
    """Write, for every descriptor, the sum or maximum of its terms (or the copy of its one term).

    ``rows`` gives for every field the dtypes of the source rows, the accumulator and the result.
    ``weight`` is the input whose value at a term's point multiplies that term.

    ``"fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct, rows = [{acc = f32,
    dst = bf16, name = "x", src = bf16}], scope = "rank", signal = 2 : i64, src = "target",
    weight = @spec.topk_weights} : () -> ()``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        kind=Text("copy", "sum", "max"),
        src=Text("target", "staging", "forward_staging"),
        dst=Text("staging", "forward_staging", "slice", "source"),
        scope=Text("rank", "node", "local"),
        rows=Array(
            Record(
                {
                    "name": Text(),
                    "src": DType(),
                    "acc": DType(ACCUMULATORS, optional=True),
                    "dst": DType(),
                }
            )
        ),
        signal=Integer(0, optional=True),
        wait=Array(Integer(0), distinct=True, optional=True),
        weight=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        kind = op.read("kind")
        if "term_begin" not in op.follow("list").read("columns"):
            raise VerifyError(f"needs a list with terms, and {op.attributes['list']} has none")
        _check_ends(op, "dst")
        if kind != "sum" and op.read("weight"):
            raise VerifyError("must weigh nothing but the terms of a sum")
        if op.read("weight") and "term_point" not in op.follow("list").read("terms"):
            raise VerifyError("needs the points of the terms that it weighs")
        for row in op.read("rows"):
            if (kind != "copy") != (row["acc"] is not None):
                raise VerifyError(
                    f"needs an accumulator for field '{row['name']}' exactly when it reduces"
                )
            if kind == "copy" and row["src"] != row["dst"]:
                raise VerifyError(f"must not convert field '{row['name']}' that it copies")
