"""L2, the program: who builds which descriptor list, and the work over them, ordered by tokens.

A list is a struct of arrays, one i64 column a name; the run-time planner fills it from the
relation's points. Copies, reductions and exchanges take the tokens of what comes before them.
"""

from collections.abc import Iterable
from typing import Any

from fuscoc.dialect.attrs import Array, Integer, Record, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, check_role, direction_of
from fuscoc.dialect.dtypes import DType
from fuscoc.dialect.fsc import Fsc
from fuscoc.dialect.l0 import check_weighed, shuffle_of
from fuscoc.dialect.l1 import FORWARDERS
from fuscoc.dialect.mlir import ext
from fuscoc.lang.dtypes import INTEGERS
from fuscoc.lang.policy import CHOICES
from fuscoc.lang.reductions import REDUCTIONS

ACCUMULATORS = frozenset({"f32", "f64"}) | INTEGERS
# Where fields are cast on the way, the rows that a copy moves: those of the source's segment, those
# of the target's, or the former made into the latter. Added by fuse-transforms.
MOVES = Text("source", "cast", "target", optional=True)
# What says of a term which row of a buffer it is; those of forwarders lie one behind the other.
TERMS = {"rows": ["term_slot"], "staging": ["term_row"], "forward_staging": []}
# Last parts of the columns that place rows.
ENDS = ("offset", "row", "slot")
# Who has the rows of a buffer. Dispatch: source and target are the user's, carried those that a
# rank sends for another, slices and landing what crosses the network, and given is memory of the
# caller's. Combine: rows and result are the user's; what comes back over the network is left to the
# forwarder (forward_staging), crosses (return_slices) and is with who had sent it (returned) or
# whose it is (staging).
HOLDERS = {
    "source": "source", "carried": "carrier", "slices": "sender", "landing": "forwarder",
    "target": "target", "rows": "target", "forward_staging": "forwarder",
    "return_slices": "forwarder", "returned": "carrier", "staging": "source", "result": "source",
    "given": "caller",
}  # fmt: skip
# By which list copies and reductions take rows from where to where: planners know lists by name.
COPIES = {
    ("source", "slices"): "net_send", ("carried", "slices"): "carried",
    ("source", "carried"): "carry", ("source", "target"): "direct",
    ("landing", "target"): "forward", ("target", "target"): "local",
    ("returned", "staging"): "hand_back",
}  # fmt: skip
REDUCED = {
    ("rows", "staging"): "reduce_direct", ("rows", "forward_staging"): "reduce_forward",
    ("forward_staging", "return_slices"): "reduce_node", ("staging", "result"): "reduce_source",
}  # fmt: skip
# Lists whose rows go into the memory of peers.
TO_PEERS = ("carry", "direct", "forward", "hand_back", "reduce_direct", "reduce_forward")


class TokenType(Fsc.Type, name="token"):
    """What a step leaves to those that come after it: ``!fsc.token``."""


class Step(Op):
    """Base of what works on rows: it comes after the steps whose tokens it takes."""

    after: ext.Sequence[ext.Operand[TokenType]]
    done: ext.Result[TokenType]

    @classmethod
    def build(cls, after: Iterable[Any] = (), **values: Any) -> Any:
        """Create the operation behind the steps ``after``; see ``Op.build``."""
        return super().build([each.done for each in after], TokenType.get(), **values)

    @property
    def preceding(self) -> list[Any]:
        """The operations whose tokens it takes; ``after`` needs operandSegmentSizes, which texts
        may leave out."""
        return [token.owner for token in self.operation.operands]

    @property
    def reads(self) -> str:
        """The buffer whose rows it reads."""
        return self.read("src")

    @property
    def writes(self) -> tuple[str, ...]:
        """The buffers whose rows it may write."""
        return (self.read("dst"),)

    @property
    def waits(self) -> tuple[int, ...]:
        """The slots of the signals that it waits for."""
        return self.read("wait") if "wait" in self.attrs else ()

    @property
    def signals(self) -> int | None:
        """The slot of the signal that it sends."""
        return self.read("signal") if "signal" in self.attrs else None

    @classmethod
    def _check_all(cls, op):
        direction_of(op)
        super()._check_all(op)


class Descriptors(Op, name="descriptors"):
    """A descriptor list, which ``builder`` plans and works off.

    ``per`` says what an entry of a dispatch's list is a copy for: one point of the relation, one
    (source, destination rank) or one (source, destination node); combine turns these copies around.
    ``terms`` names the columns of a reduction's terms, which entries reach as the range
    [term_begin, term_end).

    ``"fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_row"], per = "node",
    sym_name = "net_send"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Text(),
        builder=Text("source", "carrier", "forwarder", "target"),
        per=Text("point", "rank", "node", optional=True),
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
        if (op.read("per") is not None) != (direction_of(op) == "dispatch"):
            raise VerifyError("needs the attribute 'per' exactly in the path of a dispatch")


def check_held(op, held, lists):
    """Raise VerifyError unless a list is that of the ends of a step, and built by the rank that has
    what is read by it, and the step signals what it stores at peers. ``lists``: those of possible
    ends."""
    ends = (op.reads, *op.writes)
    if ends not in lists:
        raise VerifyError(f"must not go from {ends[0]} to {ends[1]}")
    name = held.read("sym_name")
    if name != lists[ends]:
        raise VerifyError(f"goes from {ends[0]} to {ends[1]} by the list {lists[ends]}, not {name}")
    if held.read("builder") != HOLDERS[op.reads]:
        raise VerifyError(f"reads {op.reads}, which the {held.read('builder')} does not have")
    if ("dst_peer" in held.read("columns")) != (name in TO_PEERS):
        raise VerifyError("needs the column dst_peer exactly where rows go to peers")
    if (op.signals is not None) != (name in TO_PEERS):
        raise VerifyError("needs a signal exactly where rows go to peers")


def _check_list(op, lists, *sides):
    held = op.follow("list")
    check_held(op, held, lists)
    columns = held.read("columns")
    for side in sides:
        if not any(f"{side}_{end}" in columns for end in ENDS):
            raise VerifyError(f"needs a list that places the {side} of its rows")


def _check_rows(op):
    """Rows on the way back have the fields of the source."""
    shuffle = shuffle_of(op)
    names = [cell["name"] for cell in shuffle.follow("source").read("cells")]
    if op.read("rows") and [row["name"] for row in op.read("rows")] != names:
        raise VerifyError(f"needs rows of the fields {', '.join(names)}")


class GatherSend(Step, name="gather_send"):
    """Copy the segment of every descriptor into a slice or straight into its row on a peer.

    ``signal`` is the slot that this rank bumps on every peer of its node when its copies are
    visible there; nothing is copied before the signals in ``wait`` came from every peer.
    ``rows`` gives the dtypes of partial results that are copied on the way back.

    ``%sent = "fsc.gather_send"() {dst = "target", list = @direct, signal = 0 : i64,
    src = "source"} : () -> !fsc.token``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        src=Text("source", "carried", "landing", "returned"),
        dst=Text("slices", "carried", "target", "staging"),
        signal=Integer(0, optional=True),
        wait=Array(Integer(0), distinct=True, optional=True),
        rows=Array(Record({"name": Text(), "dtype": DType()}), optional=True),
        moves=MOVES,
    )

    @classmethod
    def check(cls, op):
        _check_rows(op)
        _check_list(op, COPIES, "src", "dst")


class Exchange(Step, name="exchange"):
    """The network hop: slices leave for their forwarders, or come back to who had sent them.

    Forth, ``forwarder`` is the rule that picks the forwarders, ``schedule`` the one that orders the
    nodes, and ``slice_bytes`` the most that a rank sends or gets at a time, or one row. They come
    back the same way.

    ``%landed = "fsc.exchange"(%packed) {forwarder = "static", schedule = "pairwise",
    slice_bytes = 8388608 : i64} : (!fsc.token) -> !fsc.token``
    """

    attrs = attributes(
        forwarder=Text(*FORWARDERS, optional=True),
        schedule=Text(*CHOICES["schedule"], optional=True),
        slice_bytes=Integer(1, optional=True),
    )

    @property
    def reads(self):
        return "slices" if self.is_forth else "return_slices"

    @property
    def writes(self):
        return ("landing",) if self.is_forth else ("returned", "staging")

    @property
    def is_forth(self):
        """Whether it is a dispatch's."""
        return direction_of(self) == "dispatch"

    @classmethod
    def check(cls, op):
        for policy in cls.attrs:
            if (policy in op.attributes) != op.is_forth:
                raise VerifyError(f"needs the attribute '{policy}' exactly in a dispatch")


class ScatterRecv(Step, name="scatter_recv"):
    """After the signals in ``wait`` came from every peer, copy rows to their further slots.

    Slots of a compact target have no rows of their own: its list is empty, and the op only waits.

    ``%copied = "fsc.scatter_recv"(%sent, %forwarded) {list = @local, wait = [0 : i64, 1 : i64]}
    : (!fsc.token, !fsc.token) -> !fsc.token``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        wait=Array(Integer(0), distinct=True),
        moves=MOVES,
    )

    @property
    def reads(self):
        return "target"

    @property
    def writes(self):
        return ("target",)

    @classmethod
    def check(cls, op):
        _check_list(op, COPIES, "src", "dst")


class Put(Step, name="put"):
    """Copy every part of a row that has a place in memory of the caller's there: see ``fsc.into``.

    It ends a dispatch, and each rank makes it alone.

    ``%put = "fsc.put"(%sent, %forwarded, %copied) : (!fsc.token, !fsc.token, !fsc.token) ->
    !fsc.token``
    """

    @property
    def reads(self):
        return "target"

    @property
    def writes(self):
        return ("given",)


class Reduce(Step, name="reduce"):
    """Write, for every descriptor, the reduction of its terms (or the copy of its one term).

    ``rows`` gives for every field the dtypes of the source rows, the accumulator and the result.
    ``weight`` is the input whose value at a term's point multiplies that term.

    ``%reduced = "fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct,
    rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], signal = 2 : i64, src = "rows",
    weight = @spec.topk_weights} : () -> !fsc.token``
    """

    attrs = attributes(
        list=Ref("descriptors"),
        kind=Text("copy", *REDUCTIONS),
        src=Text("rows", "staging", "forward_staging"),
        dst=Text("staging", "forward_staging", "return_slices", "result"),
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
        _check_rows(op)
        check_role(op, "weight", "weight")
        if "term_begin" not in op.follow("list").read("columns"):
            raise VerifyError(f"needs a list with terms, and {op.attributes['list']} has none")
        _check_list(op, REDUCED, "dst")
        check_weighed(op)
        if op.read("weight") and "term_point" not in op.follow("list").read("terms"):
            raise VerifyError("needs the points of the terms that it weighs")
        terms = [term for term in op.follow("list").read("terms") if term != "term_point"]
        if terms != TERMS[op.read("src")]:
            raise VerifyError(f"needs a list whose terms say where they lie in {op.read('src')}")
        for row in op.read("rows"):
            if (kind != "copy") != (row["acc"] is not None):
                raise VerifyError(
                    f"needs an accumulator for field '{row['name']}' exactly when it reduces"
                )
            if kind == "copy" and row["src"] != row["dst"]:
                raise VerifyError(f"must not convert field '{row['name']}' that it copies")
