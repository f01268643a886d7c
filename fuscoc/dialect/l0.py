"""L0, declarations: what the user wrote, with every scalar lowered to ``arith`` over i64.

A shuffle carries two regions. *domain* computes, from the outermost index, the extents of the
iteration space; *relation* computes, from one point of it, which block of source cells goes to
which rank and slot. That is all that later passes know about routing.
"""

from math import prod

from fuscoc.dialect.base import (
    Array,
    Flag,
    Integer,
    Name,
    Op,
    Record,
    Ref,
    Text,
    VerifyError,
    attributes,
    entry_block,
    terminator,
)
from fuscoc.dialect.dtypes import TensorType
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.relation import Domain, Point, Relate
from fuscoc.dialect.runs import RUNS

FIELDS = Array(Record({"name": Text(), "type": TensorType()}))


class DefExtent(Op, name="def_extent"):
    """A run-time extent that every rank gives with a call.

    ``"fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()``
    """

    attrs = attributes(sym_name=Name())


class DefInput(Op, name="def_input"):
    """A tensor that the user passes with every call.

    ``"fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () ->
    ()``
    """

    attrs = attributes(
        sym_name=Name(),
        type=TensorType(),
        role=Text("route", "weight", "extent", "placement"),
    )


class DefSegment(Op, name="def_segment"):
    """What moves as one unit: its fields in order.

    ``"fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name =
    "spec.token"} : () -> ()``
    """

    attrs = attributes(sym_name=Name(), fields=FIELDS)


class DefPlacement(Op, name="def_placement"):
    """Which rank owns each of ``num_keys`` keys; ``table`` is an i64 input [num_keys].

    ``"fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.place"} : () ->
    ()``
    """

    attrs = attributes(
        sym_name=Name(),
        kind=Text("block", "cyclic", "table"),
        num_keys=Integer(1),
        table=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        if (op.read("kind") == "table") != ("table" in op.attributes):
            raise VerifyError("needs the attribute 'table' exactly when its kind is table")


class DefLayout(Op, name="def_layout"):
    """A dense array of cells with ``num_dims`` dimensions, the last varying fastest.

    ``"fsc.def_layout"() {cells = [{name = "pixels", type = tensor<3xui8>}], num_dims = 3 : i64,
    sym_name = "spec.pictures"} : () -> ()``
    """

    attrs = attributes(sym_name=Name(), cells=FIELDS, num_dims=Integer(1))


class DefPacked(Op, name="def_packed"):
    """A ragged array of segments: the slots of a key are contiguous, its first a multiple of align.

    ``capacity`` is the most slots a rank may hold; without it, exactly what arrives.

    ``"fsc.def_packed"() {align = 128 : i64, placement = @spec.place, segment = @spec.token,
    sym_name = "spec.by_expert"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Name(),
        segment=Ref("def_segment"),
        align=Integer(1),
        placement=Ref("def_placement"),
        capacity=Integer(1, optional=True),
    )


class Shuffle(Op, name="shuffle", traits=[ir.IsIsolatedFromAboveTrait]):
    """A relation between source blocks and destination slots, over a domain.

    ``indices`` names the domain's indices. The first ``num_source_dims`` enumerate the source
    segments; each of the others has a constant extent, and ``fanout`` is their product. In a
    ``ragged`` shuffle, extents may look inputs up at the outermost index. ``runs`` is added by
    coalesce-segments: see ``fuscoc.dialect.runs``.

    ::

        "fsc.shuffle"() ({
        ^bb0(%n: i64):
          ...
          "fsc.domain"(%cells, %images, %rows, %cols) : (i64, i64, i64, i64) -> ()
        }, {
        ^bb0(%n: i64, %i: i64, %j: i64):
          ...
          "fsc.relate"(%rank, %slot, %n, %y, %x, %images, %height, %width) {...} : (...) -> ()
        }) {fanout = 1 : i64, indices = ["n", "i", "j"], num_source_dims = 3 : i64,
            ragged = 1 : i64, segment = @spec.patch, source = @spec.pictures,
            sym_name = "vit_patches", target = @spec.sequence} : () -> ()
    """

    attrs = attributes(
        sym_name=Text(),
        segment=Ref("def_segment"),
        source=Ref("def_layout"),
        target=Ref("def_layout", "def_packed"),
        indices=Array(Text(), distinct=True),
        num_source_dims=Integer(1),
        fanout=Integer(1),
        ragged=Flag(),
        runs=Array(RUNS, optional=True),
    )
    domain: ext.Region
    relation: ext.Region

    @classmethod
    def check(cls, op):
        segment = op.follow("segment")
        source = op.follow("source")
        names = [field["name"] for field in segment.read("fields")]
        if names != [cell["name"] for cell in source.read("cells")]:
            raise VerifyError(f"moves fields {names}, which its source does not hold in this order")
        if op.read("num_source_dims") > len(op.read("indices")):
            raise VerifyError("has more source dimensions than indices")
        if "runs" in op.attributes and names != [run["name"] for run in op.read("runs")]:
            raise VerifyError("moves other fields than those of its runs")

    @classmethod
    def check_regions(cls, op):
        num_indices = len(op.read("indices"))
        domain, relation = entry_block(op, 0), entry_block(op, 1)
        if [str(arg.type) for arg in domain.arguments] != ["i64"]:
            raise VerifyError("needs one i64 argument, the outermost index, in its domain region")
        if [str(arg.type) for arg in relation.arguments] != ["i64"] * num_indices:
            raise VerifyError("needs one i64 argument an index in its relation region")
        extents = terminator(op, 0, Domain)
        if len(extents.extents) != num_indices:
            raise VerifyError(f"has {num_indices} indices but {len(extents.extents)} extents")
        point = terminator(op, 1, Relate, Point)
        if isinstance(point, Point) != ("runs" in op.attributes):
            raise VerifyError("needs the attribute 'runs' exactly when it yields fsc.point")
        if isinstance(point, Relate):
            _check_block(op, point)


def _check_block(op, relate):
    """The block of cells that ``relate`` names must hold exactly one segment."""
    segment = op.follow("segment")
    source = op.follow("source")
    lengths = relate.read("lengths")
    if len(lengths) != source.read("num_dims"):
        raise VerifyError(f"has {len(lengths)} subscripts for {source.read('num_dims')} dimensions")
    for field, cell in zip(segment.read("fields"), source.read("cells"), strict=True):
        (dtype, shape), (cell_dtype, cell_shape) = field["type"], cell["type"]
        if dtype != cell_dtype:
            raise VerifyError(f"moves '{field['name']}' as {dtype} but its cells are {cell_dtype}")
        if prod(shape) != prod(lengths) * prod(cell_shape):
            raise VerifyError(
                f"moves {prod(shape)} elements of '{field['name']}' in blocks of "
                f"{prod(lengths) * prod(cell_shape)}"
            )


class Dispatch(Op, name="dispatch"):
    """The shuffle goes forward, by these policies.

    ``dedup`` names the tiers that a segment crosses at most once a destination.

    ``"fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise",
    shuffle = @moe, slice_bytes = 4194304 : i64} : () -> ()``
    """

    attrs = attributes(
        shuffle=Ref("shuffle"),
        dedup=Array(Text("node", "rank"), distinct=True, optional=True),
        balance=Text(),
        schedule=Text(),
        slice_bytes=Integer(1),
    )


class Combine(Op, name="combine"):
    """The shuffle also goes back: what was copied is copied back, or summed.

    ``weight`` is the input with the factor of every point.

    ``"fsc.combine"() {kind = "sum", shuffle = @moe, weight = @spec.topk_weights} : () -> ()``
    """

    attrs = attributes(
        shuffle=Ref("shuffle"),
        kind=Text("copy", "sum"),
        weight=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        if op.read("kind") == "copy" and "weight" in op.attributes:
            raise VerifyError("must not weigh the rows that it copies")
