"""L2, descriptors: which lists there are, and the copies and reductions that read them.

The body of a ``fsc.path`` is the ordered list of its steps. A list is a struct of arrays, one i64
column a name; the run-time planner fills it from the relation's points.
"""

from fuscoc.dialect.attrs import Array, Integer, Record, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, check_role, ops_of
from fuscoc.dialect.dtypes import DType
from fuscoc.dialect.l1 import FORWARDERS, Path
from fuscoc.lang.dtypes import INTEGERS
from fuscoc.lang.policy import CHOICES

ACCUMULATORS = frozenset({"f32", "f64"}) | INTEGERS
# Where fields are cast on the way, the rows that a copy moves: those of the source's segment, those
# of the target's, or the former made into the latter. Added by fuse-transforms.
MOVES = Text("source", "cast", "target", optional=True)
# The scopes of copies and of reductions, by the buffers that they read and write.
COPIES = {
    ("source", "slice"): "node",
    ("carrier", "slice"): "node",
    ("source", "carrier"): "rank",
    ("source", "target"): "rank",
    ("landing", "target"): "rank",
    ("returned", "staging"): "rank",
}
REDUCTIONS = {
    ("target", "staging"): "rank",
    ("target", "forward_staging"): "rank",
    ("forward_staging", "slice"): "node",
    ("staging", "source"): "local",
}
# Last parts of the columns that place rows.
ENDS = ("offset", "row", "slot")


class Descriptors(Op, name="descriptors"):
    """A descriptor list: one entry per point / rank / node / source, on the rank that reads it.

    ``per`` says what an entry stands for: one point of the relation, one (source, destination
    rank), one (source, destination node) or one source segment. ``terms`` names the columns of a
    reduction's terms, which entries reach as the range [term_begin, term_end).

    ``"fsc.descriptors"() {columns = ["src_offset", "dst_row"], per = "node",
    sym_name = "net_send"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Text(),
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


def _path_of(op):
    path = op.operation.parent.opview
    if not isinstance(path, Path):
        raise VerifyError("must stand inside fsc.path")
    return path


def _check_scope(op, scopes):
    ends = op.read("src"), op.read("dst")
    if ends not in scopes:
        raise VerifyError(f"must not go from {ends[0]} to {ends[1]}")
    if op.read("scope") != scopes[ends]:
        raise VerifyError(f"must have the scope {scopes[ends]}")


def _check_rows(op):
    """Rows on the way back have the fields of the source."""
    shuffle = _path_of(op).follow("shuffle")
    names = [cell["name"] for cell in shuffle.follow("source").read("cells")]
    if op.read("rows") and [row["name"] for row in op.read("rows")] != names:
        raise VerifyError(f"needs rows of the fields {', '.join(names)}")


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
        _check_scope(op, COPIES)
        _check_rows(op)
        if op.read("scope") == "node" and "signal" in op.attributes:
            raise VerifyError("must not signal: slices stay on this rank")
        _check_ends(op, "src", "dst")


class Exchange(Op, name="exchange"):
    """The network hop between source and forwarder: slices leave in list order, or come back in it.

    They come back in the path for combine, by the list with which they left.

    ``"fsc.exchange"() {direction = "forward", forwarder = "same_local_rank", list = @net_send,
    schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        direction=Text("forward", "back"),
        forwarder=Text(*FORWARDERS),
        schedule=Text(*CHOICES["schedule"]),
        slice_bytes=Integer(1),
    )

    @classmethod
    def check(cls, op):
        if (op.read("direction") == "back") != (_path_of(op).read("direction") == "combine"):
            raise VerifyError("must come back exactly in a path for combine")
        if op.read("direction") == "forward":
            return
        held = op.follow("list").operation.parent
        if op.read("list")[-1] not in [each.read("list")[-1] for each in ops_of(held, Exchange)]:
            raise VerifyError(f"comes back by {op.attributes['list']}, with which nothing left")


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
        _check_scope(op, REDUCTIONS)
        _check_rows(op)
        if "term_begin" not in op.follow("list").read("columns"):
            raise VerifyError(f"needs a list with terms, and {op.attributes['list']} has none")
        _check_ends(op, "dst")
        if kind != "sum" and op.read("weight"):
            raise VerifyError("must weigh nothing but the terms of a sum")
        check_role(op, "weight", "weight")
        if op.read("weight") and "term_point" not in op.follow("list").read("terms"):
            raise VerifyError("needs the points of the terms that it weighs")
        for row in op.read("rows"):
            if (kind != "copy") != (row["acc"] is not None):
                raise VerifyError(
                    f"needs an accumulator for field '{row['name']}' exactly when it reduces"
                )
            if kind == "copy" and row["src"] != row["dst"]:
                raise VerifyError(f"must not convert field '{row['name']}' that it copies")
