"""What kernels of fixed capacity do inside one node, as operations inside ``fsc.node``.

Forth: the points of the relation get slots, by counting them or as the relation says, rows are
copied to their slots, and the ranks tell each other. Back, rows of a segment become one, where they
lie and then at its source. Each takes what it needs from those before it.
"""

from math import prod
from typing import Any

from fuscoc.dialect.attrs import Array, Flag, Integer, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, check_role, entry_block, ops_of, terminator
from fuscoc.dialect.expressions import expression
from fuscoc.dialect.fsc import Fsc
from fuscoc.dialect.l0 import LEAVING, DefPacked, check_owner, check_relation, shuffle_of
from fuscoc.dialect.l2 import TokenType
from fuscoc.dialect.l3_values import Cast, Merge, Normalise, Scale, vector_of
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.pieces import Piece
from fuscoc.dialect.relation import Apart, Domain, Drop, Lookup, Point, must_be_apart
from fuscoc.dialect.row_fields import Dequantise, LoadField, Quantise, StoreField, check_inside


class PointsType(Fsc.Type, name="points"):
    """The points of a relation on this rank: ``!fsc.points``."""


class CountsType(Fsc.Type, name="counts"):
    """Numbers of rows by key: ``!fsc.counts``."""


class SlotsType(Fsc.Type, name="slots"):
    """The slot of every point, or that it has none: ``!fsc.slots``."""


class NodeOp(Op):
    """Base of what stands directly inside ``fsc.node``, in the order in which it happens.

    Its one result is of the type ``gives``.
    """

    gives = TokenType

    @classmethod
    def build(cls, *operands: Any, **values: Any) -> Any:
        """Create the operation; see ``Op.build``."""
        return super().build(*operands, cls.gives.get(), **values)

    @classmethod
    def _check_all(cls, op):
        node = op.operation.parent
        if node.name != "fsc.node":
            raise VerifyError("must stand directly inside fsc.node")
        before = getattr(op, "before", None)
        if before is not None and not _follows(op, before.owner, node):
            raise VerifyError("must stand right behind what it comes after")
        super()._check_all(op)


def _follows(op, earlier, node):
    """Whether the operation stands right behind an ``earlier`` one: kernels do one after the
    other."""
    steps = [each.operation for each in entry_block(node, 0)]
    return earlier in steps and steps.index(earlier) + 1 == steps.index(op.operation)


class NodePoints(NodeOp, name="node_points", traits=[ir.IsIsolatedFromAboveTrait]):
    """Evaluate the relation at every point: its regions and their attributes are the shuffle's.

    ``%points = "fsc.node_points"() ({...}, {...}) {fanout = 8 : i64, indices = ["t", "k"],
    num_source_dims = 1 : i64, ragged = 0 : i64} : () -> !fsc.points``
    """

    gives = PointsType
    attrs = attributes(**LEAVING)
    points: ext.Result[PointsType]
    domain: ext.Region
    relation: ext.Region

    @classmethod
    def check(cls, op):
        shuffle = shuffle_of(op)
        for name in op.attrs:
            if op.read(name) != shuffle.read(name):
                raise VerifyError(f"has another '{name}' than its shuffle")

    @classmethod
    def check_regions(cls, op):
        check_relation(op)
        shuffle, point = shuffle_of(op), terminator(op, 1, Point)
        check_owner(shuffle, point)
        kernel = shuffle.follow("relation_kernel")
        if kernel is None and _said(op) != _said(shuffle):
            raise VerifyError("evaluates another relation than its shuffle")
        if kernel is not None and must_be_apart(point) != bool(ops_of(kernel, Apart)):
            raise VerifyError("needs fsc.apart exactly where the kernel of its relation has it")


def _said(op):
    """What the regions of an operation say, as trees."""
    ends = [terminator(op, 0, Domain), terminator(op, 1, Point)]
    drops = [each for each in entry_block(op, 1) if isinstance(each, Drop)]
    trees = [[expression(each) for each in end.operands] for end in (*ends, *drops)]
    return trees, must_be_apart(ends[1])


class NodeCount(NodeOp, name="node_count"):
    """Count this rank's rows of every key of a placement, of those that have a place.

    ``%counts = "fsc.node_count"(%points) {placement = @spec.place} : (!fsc.points) ->
    !fsc.counts``
    """

    gives = CountsType
    attrs = attributes(placement=Ref("def_placement"))
    points: ext.Operand[PointsType]
    counts: ext.Result[CountsType]

    @classmethod
    def check(cls, op):
        target = shuffle_of(op).follow("target")
        if target.attributes.get("placement", None) != op.attributes["placement"]:
            raise VerifyError("must count the keys of its shuffle's target")


class NodeExchange(NodeOp, name="node_exchange"):
    """Tell all ranks the counts, if there are any, and how many segments this one has.

    Who has a rank's numbers knows that it has finished all calls before: what peers store into its
    memory is not in its way.

    ``%all = "fsc.node_exchange"(%counts) : (!fsc.counts) -> !fsc.counts``
    """

    gives = CountsType
    own: ext.Sequence[ext.Operand[CountsType]]
    counts: ext.Result[CountsType]

    @classmethod
    def check(cls, op):
        counted = [each.counts for each in ops_of(op.operation.parent, NodeCount)]
        if list(op.operation.operands) != counted:
            raise VerifyError("must tell what was counted, if anything was")


class NodeAssign(NodeOp, name="node_assign"):
    """Number the rows of a key one behind the other, those of lower ranks and points first.

    A key takes whole blocks of ``align`` slots, as many as ``padding`` says. Where rows are
    ``compact``, a segment has one on a rank, and slots refer to it.

    ``%slots = "fsc.node_assign"(%points, %all) {align = 128 : i64, compact = 0 : i64, padding =
    "fewest"} : (!fsc.points, !fsc.counts) -> !fsc.slots``
    """

    gives = SlotsType
    attrs = attributes(align=Integer(1), padding=Text(), compact=Flag())
    points: ext.Operand[PointsType]
    counts: ext.Operand[CountsType]
    slots: ext.Result[SlotsType]

    @classmethod
    def check(cls, op):
        target = shuffle_of(op).follow("target")
        is_packed = isinstance(target, DefPacked)
        if not is_packed or any(op.read(name) != target.read(name) for name in op.attrs):
            raise VerifyError("must number slots as its shuffle's target says")
        _check_told(op)


class NodeGiven(NodeOp, name="node_given"):
    """Take the slots that the relation says: each is checked, and has one point at most.

    ``%slots = "fsc.node_given"(%points, %all) : (!fsc.points, !fsc.counts) -> !fsc.slots``
    """

    gives = SlotsType
    points: ext.Operand[PointsType]
    counts: ext.Operand[CountsType]
    slots: ext.Result[SlotsType]

    @classmethod
    def check(cls, op):
        if isinstance(shuffle_of(op).follow("target"), DefPacked):
            raise VerifyError("must not take keys of a packed target for slots")
        _check_told(op)


class NodePieces(NodeOp, name="node_pieces", traits=[ir.NoTerminatorTrait]):
    """Take the slots that the relation says, of all points of a piece at once.

    An entry, one for each value of the indices ``outer``, which its region takes, has the points of
    its ``fsc.piece``; all entries have those of the relation, each once. ``fsc.drop`` says of an
    entry what it says of a point. Slots are checked, and no two points may have the same one.
    Points of a rank are ``disjoint`` if no two of them can have a source cell in common.

    ``%slots = "fsc.node_pieces"(%points, %all) ({...}) {disjoint = 1 : i64, outer = [0 : i64]} :
    (!fsc.points, !fsc.counts) -> !fsc.slots``
    """

    gives = SlotsType
    attrs = attributes(outer=Array(Integer(0), distinct=True, optional=True), disjoint=Flag())
    points: ext.Operand[PointsType]
    counts: ext.Operand[CountsType]
    slots: ext.Result[SlotsType]
    entry: ext.Region

    def looks_up(self) -> bool:
        """Whether inputs say where points are; else extents and the number of ranks alone do."""
        return bool(self.read("outer") or ops_of(self, Lookup))

    @classmethod
    def check(cls, op):
        if isinstance(shuffle_of(op).follow("target"), DefPacked):
            raise VerifyError("must not take keys of a packed target for slots")
        _check_told(op)

    @classmethod
    def check_regions(cls, op):
        block, points = entry_block(op, 0), getattr(op.points.owner, "opview", None)
        pieces = [each for each in block if isinstance(each, Piece)]
        arguments = [str(argument.type) for argument in block.arguments]
        if arguments != ["i64"] * len(op.read("outer")) or not pieces:
            raise VerifyError("needs an i64 argument an outer index, and a fsc.piece or more")
        if not isinstance(points, NodePoints):
            raise VerifyError("needs the points of a fsc.node_points")
        if any(index >= len(points.read("indices")) for index in op.read("outer")):
            raise VerifyError("needs indices of its points in 'outer'")
        if must_be_apart(terminator(points, 1, Point)) and not op.looks_up():
            raise VerifyError("must look up an input where runs check that segments are apart")
        strides = len(terminator(points, 1, Point).src_strides)
        if any(len(piece.src_strides) != strides for piece in pieces):
            raise VerifyError(f"needs pieces with the {strides} strides of its points")


def _check_told(op):
    if getattr(op.counts.owner, "name", None) != NodeExchange.OPERATION_NAME:
        raise VerifyError("needs the counts of all ranks, which a fsc.node_exchange gives")


NO_CAST = {"scales": None, "block": None, "shifts": (), "factors": (), "channels": None}


class NodeCopy(NodeOp, name="node_copy", traits=[ir.NoTerminatorTrait]):
    """Read every segment once and store it on every rank that it goes to, in a slot of its own.

    The region says how a row is read, made into another one, and stored.

    ``%copied = "fsc.node_copy"(%slots) ({ ... }) : (!fsc.slots) -> !fsc.token``
    """

    slots: ext.Operand[SlotsType]
    done: ext.Result[TokenType]
    rows: ext.Region

    def casts(self) -> list[dict[str, Any]]:
        """The fields that arrive as something else, as the ``casts`` of a shuffle say it."""
        stored = {each.value: each.read("field") for each in ops_of(self, StoreField)}
        loaded = {each.value: each.read("field") for each in ops_of(self, LoadField)}
        found = []
        for value, field in stored.items():
            made, computed = (
                getattr(each.owner, "opview", None) for each in (value, _uncast(value))
            )
            if isinstance(computed, Normalise):
                said = {name: computed.read(name) for name in Normalise.attrs}
            elif isinstance(made, Dequantise):
                said = {"scales": loaded.get(made.scales), "block": made.read("block")}
            elif isinstance(made, Quantise) and value == made.small:
                said = {"scales": stored.get(made.scales), "block": made.read("block")}
            elif isinstance(made, Cast):
                said = {}
            else:
                continue
            found.append(NO_CAST | {"field": field} | said)
        return found

    @classmethod
    def check_regions(cls, op):
        shuffle = shuffle_of(op)
        block = entry_block(op, 0)
        read = [each.runs for each in block if isinstance(each, LoadField)]
        if read != list(shuffle.read("runs")):
            raise VerifyError("must read the fields of its shuffle's source")
        stored = [each for each in block if isinstance(each, StoreField)]
        found = [(each.read("field"), *vector_of(each.value)) for each in stored]
        fields = shuffle.follow("segment").read("fields")
        if found != [(each["name"], each["type"][0], prod(each["type"][1])) for each in fields]:
            raise VerifyError("must store the fields of its shuffle's segment")
        casts = {each["field"]: each for each in shuffle.read("casts")}
        if {each["field"]: each for each in op.casts()} != casts:
            raise VerifyError("must cast the fields that its shuffle casts, and as it says")


class NodeSignal(NodeOp, name="node_signal"):
    """Tell every peer that rows have come: of a ``group`` of segments, or all of the ``rank``.

    ``%told = "fsc.node_signal"(%copied) {per = "group"} : (!fsc.token) -> !fsc.token``
    """

    attrs = attributes(per=Text("group", "rank"))
    before: ext.Operand[TokenType]
    done: ext.Result[TokenType]


class NodeWait(NodeOp, name="node_wait"):
    """Wait until every peer has told so much.

    ``%come = "fsc.node_wait"(%told) {per = "group"} : (!fsc.token) -> !fsc.token``
    """

    attrs = attributes(per=Text("group", "rank"))
    before: ext.Operand[TokenType]
    done: ext.Result[TokenType]

    @classmethod
    def check(cls, op):
        signal = op.before.owner.opview
        if not isinstance(signal, NodeSignal) or signal.read("per") != op.read("per"):
            raise VerifyError("must wait for as much as a fsc.node_signal before it tells")


class NodeExpand(NodeOp, name="node_expand"):
    """Copy rows that have come to the further slots of their segments on this rank.

    ``%spread = "fsc.node_expand"(%come) : (!fsc.token) -> !fsc.token``
    """

    before: ext.Operand[TokenType]
    done: ext.Result[TokenType]


class NodeReduce(NodeOp, name="node_reduce", traits=[ir.NoTerminatorTrait]):
    """Make one row of a segment's rows on this rank, and store it at the segment's source.

    The region takes the fields of what has been made so far, those of the next row and, of a sum
    that is weighed, the value of ``weight`` at its point. It says the fields of what is made then;
    of a copy, the row. What is made travels as ``partial_dtype`` says.

    ::

        %made = "fsc.node_reduce"(%slots) ({
        ^bb0(%sum: vector<7168xf32>, %row: vector<7168xbf16>, %weight: f32):
          %wide = "fsc.cast"(%row) : (vector<7168xbf16>) -> vector<7168xf32>
          %term = "fsc.scale"(%wide, %weight) : (vector<7168xf32>, f32) -> vector<7168xf32>
          %more = "fsc.merge"(%sum, %term) {kind = "sum"} : ...
          "fsc.made"(%more) {field = "x"} : (vector<7168xf32>) -> ()
        }) {weight = @spec.topk_weights} : (!fsc.slots) -> !fsc.token
    """

    attrs = attributes(weight=Ref("def_input", optional=True))
    slots: ext.Operand[SlotsType]
    done: ext.Result[TokenType]
    term: ext.Region

    @property
    def kind(self):
        """How rows become one: ``copy``, or the kind of the merges."""
        made = [each.row.owner for each in ops_of(self, Made)]
        is_merge = bool(made) and getattr(made[0], "name", None) == Merge.OPERATION_NAME
        return made[0].opview.read("kind") if is_merge else "copy"

    @classmethod
    def check(cls, op):
        check_role(op, "weight", "weight")

    @classmethod
    def check_regions(cls, op):
        runs, weighs = shuffle_of(op).read("runs"), "weight" in op.attributes
        said = [each for each in entry_block(op, 0) if isinstance(each, Made)]
        if [each.read("field") for each in said] != [each["name"] for each in runs]:
            raise VerifyError("must make the fields of its shuffle's source")
        made = [each.row for each in said]
        arguments, is_copy = list(entry_block(op, 0).arguments), op.kind == "copy"
        before = [] if is_copy else arguments[: len(runs)]
        rows = arguments[len(before) : len(before) + len(runs)]
        if [vector_of(each) for each in rows] != [(r["dtype"], r["seg_elems"]) for r in runs]:
            raise VerifyError("must take rows of its shuffle's source")
        if len(arguments) != len(before) + len(rows) + weighs or any(
            one.type != other.type for one, other in zip(before, made, strict=False)
        ):
            raise VerifyError("needs what is made so far, a row, and a weight where it weighs")
        if is_copy and (weighs or made != rows):
            raise VerifyError("must give the row that it copies")
        weight = arguments[-1] if weighs else None
        for one, row, other in zip(before, rows, made, strict=False):
            merge = getattr(other.owner, "opview", None)
            if not isinstance(merge, Merge) or merge.read("kind") != op.kind or merge.lhs != one:
                raise VerifyError(f"must make every field by the same merge, a {op.kind}")
            if not _is_term(merge.rhs, row, weight):
                raise VerifyError("must merge its row, times the weight where it weighs")


def _is_term(value, row, weight):
    """Whether a value is the row, in another type perhaps, times the weight if there is one."""
    if weight is not None:
        scale = getattr(value.owner, "opview", None)
        if not isinstance(scale, Scale) or _uncast(scale.factor) != weight:
            return False
        value = scale.value
    return _uncast(value) == row


def _uncast(value):
    cast = getattr(value.owner, "opview", None)
    return cast.value if isinstance(cast, Cast) else value


class Made(Op, name="made"):
    """A field of the row that has been made so far.

    ``"fsc.made"(%more) {field = "x"} : (vector<7168xf32>) -> ()``
    """

    attrs = attributes(field=Text())
    row: ext.Operand[Any]

    @classmethod
    def check(cls, op):
        check_inside(op, "fsc.node_reduce")
        vector_of(op.row)


class NodeJoin(NodeOp, name="node_join"):
    """Make one row of a segment's own rows and of those that peers have made, and store it where
    the segment lies in the source.

    ``%back = "fsc.node_join"(%come) : (!fsc.token) -> !fsc.token``
    """

    before: ext.Operand[TokenType]
    done: ext.Result[TokenType]
