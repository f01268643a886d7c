"""L0, declarations: what the user wrote, with every scalar lowered to ``arith`` over i64.

A shuffle carries two regions. *domain* computes, from the outermost index, the extents of the
iteration space; *relation* computes, from one point of it, which block of source cells goes to
which rank and slot. That is all that later passes know about routing.
"""

from math import prod
from typing import Any

from fuscoc.dialect.attrs import (
    SPEC,
    Array,
    Flag,
    Integer,
    Name,
    Real,
    Record,
    Ref,
    Text,
    VerifyError,
    attributes,
)
from fuscoc.dialect.base import Op, check_role, entry_block, ops_of, terminator
from fuscoc.dialect.dtypes import TensorType, num_bytes
from fuscoc.dialect.expressions import Node, expression
from fuscoc.dialect.l3_values import check_channels
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.relation import Domain, Inside, Owner, Point, Relate
from fuscoc.dialect.runs import RUNS, UNITS
from fuscoc.lang.padding import PADDINGS
from fuscoc.lang.policy import CHOICES
from fuscoc.lang.reductions import REDUCTIONS

# What prints kernels of fixed capacity inside one node.
PRINTERS = ("cuda", "triton")
FIELDS = Array(Record({"name": Text(), "type": TensorType()}))
# Fields that change their element type between source and target. ``scales`` is a field of one of
# them alone, with an f32 factor for every ``block`` elements: made if the target has it. Other
# fields may arrive as ``(x - shift) * factor``, by ``fsc.normalise``, or by ``fsc.normalise_by``
# with those of a call, for so many ``channels``.
CASTS = Array(
    Record(
        {
            "field": Text(),
            "scales": Text(optional=True),
            "block": Integer(1, optional=True),
            "shifts": Array(Real(), optional=True),
            "factors": Array(Real(), optional=True),
            "channels": Integer(1, optional=True),
        }
    ),
    optional=True,
)
ALL_RANKS = Node("fsc.extent", f"@{SPEC}ranks", ())
# What says how the points of a relation are counted.
RELATION = {
    "indices": Array(Text(), distinct=True),
    "num_source_dims": Integer(1),
    "fanout": Integer(1),
    "ragged": Flag(),
}
# Of segments that leave, which may go to all ranks.
LEAVING = {**RELATION, "every_rank": Flag(optional=True)}


class DefExtent(Op, name="def_extent"):
    """A run-time extent that every rank gives with a call; ``into``: nothing but ``fsc.into``
    depends on it.

    ``"fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()``
    """

    attrs = attributes(sym_name=Name(), into=Flag(optional=True))


class DefInput(Op, name="def_input"):
    """A tensor that the user passes with every call. One for ``into`` is read by nothing else, and
    from one for a ``cast`` its numbers are computed.

    ``"fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () ->
    ()``
    """

    attrs = attributes(
        sym_name=Name(),
        type=TensorType(),
        role=Text("route", "weight", "extent", "placement", "into", "cast"),
    )


class DefSegment(Op, name="def_segment"):
    """What moves as one unit: its fields in order.

    ``"fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name =
    "spec.token"} : () -> ()``
    """

    attrs = attributes(sym_name=Name(), fields=FIELDS)


class DefPlacement(Op, name="def_placement"):
    """Which rank owns each of ``num_keys`` keys; ``table`` is an i64 input [num_keys].

    With a ``group`` so many consecutive keys are placed as one, whose number counts.

    ``"fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.place"} : () ->
    ()``
    """

    attrs = attributes(
        sym_name=Name(),
        kind=Text("block", "cyclic", "table"),
        num_keys=Integer(1),
        group=Integer(2, optional=True),
        table=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        if (op.read("kind") == "table") != ("table" in op.attributes):
            raise VerifyError("needs the attribute 'table' exactly when its kind is table")
        group = op.read("group")
        if group and (op.read("num_keys") % group or op.read("kind") == "table"):
            raise VerifyError("needs whole groups of keys, which no table places")
        check_role(op, "table", "placement")


class DefLayout(Op, name="def_layout"):
    """A dense array of cells.

    ``"fsc.def_layout"() {cells = [{name = "pixels", type = tensor<3xui8>}],
    sym_name = "spec.pictures"} : () -> ()``
    """

    attrs = attributes(sym_name=Name(), cells=FIELDS)


class DefPacked(Op, name="def_packed"):
    """A ragged array of segments: the slots of a key are contiguous, in whole blocks of ``align``.

    How many blocks, the rule ``padding`` says (``fuscoc.lang.padding``). ``capacity`` is the most
    slots a rank may hold; without it, exactly what arrives. Where it is ``compact``, a rank holds
    every segment once, and slots refer to it. Where keys are ``distinct``, a segment has no two
    points of one, which the relation makes sure of.

    ``"fsc.def_packed"() {align = 128 : i64, compact = 0 : i64, padding = "fewest",
    placement = @spec.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()``
    """

    attrs = attributes(
        sym_name=Name(),
        segment=Ref("def_segment"),
        align=Integer(1),
        padding=Text(),
        placement=Ref("def_placement"),
        capacity=Integer(1, optional=True),
        compact=Flag(),
        distinct=Flag(optional=True),
    )

    @classmethod
    def check(cls, op):
        if op.read("padding") not in PADDINGS:
            raise VerifyError(f"knows no padding '{op.read('padding')}'")


class Shuffle(Op, name="shuffle", traits=[ir.IsIsolatedFromAboveTrait]):
    """A relation between source blocks and destination slots, over a domain: one a module.

    ``indices`` names the domain's indices. The first ``num_source_dims`` enumerate the source
    segments; each of the others has a constant extent, and ``fanout`` is their product; where
    segments go to ``every_rank``, one of them runs over the ranks instead. In a ``ragged`` shuffle,
    extents may look inputs up at the outermost index. ``casts`` says which
    fields arrive as another element type than they leave as. ``runs`` is added by
    coalesce-segments: see ``fuscoc.dialect.runs``; ``relation_kernel`` and, in a ragged shuffle,
    ``extents_kernel`` are the regions as kernels, which specialise-kernels puts in their place.
    ``node`` says which kernels of fixed capacity inside one node it can have, until fuse-node fuses
    them.

    ::

        "fsc.shuffle"() ({
        ^bb0(%n: i64):
          ...
          "fsc.domain"(%cells, %images, %rows, %cols) : (i64, i64, i64, i64) -> ()
        }, {
        ^bb0(%n: i64, %i: i64, %j: i64):
          ...
          "fsc.relate"(%rank, %slot, %n, %y, %x, %height, %width) {...} : (...) -> ()
        }) {fanout = 1 : i64, indices = ["n", "i", "j"], num_source_dims = 3 : i64,
            ragged = 1 : i64, segment = @spec.patch, source = @spec.pictures,
            sym_name = "vit_patches", target = @spec.sequence} : () -> ()
    """

    attrs = attributes(
        sym_name=Text(),
        segment=Ref("def_segment"),
        source=Ref("def_layout"),
        target=Ref("def_layout", "def_packed"),
        **LEAVING,
        casts=CASTS,
        runs=Array(RUNS, optional=True),
        relation_kernel=Ref("kernel", optional=True),
        extents_kernel=Ref("kernel", optional=True),
        node=Array(Text(*PRINTERS), distinct=True, optional=True),
    )
    domain: ext.Region
    relation: ext.Region

    @classmethod
    def check(cls, op):
        if len(ops_of(op.operation.parent, Shuffle)) > 1:
            raise VerifyError("must be the only one of its module")
        names = [cell["name"] for cell in op.follow("source").read("cells")]
        arriving = [field["name"] for field in op.follow("segment").read("fields")]
        changed = {cast["scales"] for cast in op.read("casts")}
        if [n for n in arriving if n not in changed] != [n for n in names if n not in changed]:
            raise VerifyError(
                f"moves fields {arriving}, which its source does not hold in this order"
            )
        casts = [cast["field"] for cast in op.read("casts")]
        if len(set(casts)) != len(casts):
            raise VerifyError("must not cast a field twice")
        for cast in op.read("casts"):
            _check_cast(op, cast, names, arriving)
        target = op.follow("target")
        if isinstance(target, DefPacked) and target.read("segment") != op.read("segment"):
            raise VerifyError("has a target for other segments")
        ragged = op.read("ragged") and "relation_kernel" in op.attributes
        if ("extents_kernel" in op.attributes) != ragged:
            raise VerifyError("needs a kernel for its extents exactly where they are ragged")
        if "node" in op.attributes and "relation_kernel" in op.attributes:
            raise VerifyError("must not ask for other kernels once it has its own")
        if "runs" in op.attributes:
            _check_runs(op)

    @classmethod
    def check_regions(cls, op):
        if "relation_kernel" in op.attributes:
            check_no_regions(op)
            return
        check_relation(op)
        point = terminator(op, 1, Relate, Point)
        if isinstance(point, Point) != ("runs" in op.attributes):
            raise VerifyError("needs the attribute 'runs' exactly when it yields fsc.point")
        if isinstance(point, Relate):
            _check_block(op, point)
        else:
            _check_strides(op, point)
        check_owner(op, point)


def relation_inputs(module: Any) -> list[Any]:
    """The inputs that the relation of a module's shuffle may read, as they are defined."""
    inputs = ops_of(module, DefInput)
    return [each for each in inputs if each.read("role") not in ("weight", "into", "cast")]


def relation_extents(module: Any) -> list[str]:
    """The names of the extents that it may depend on."""
    extents = ops_of(module, DefExtent)
    return [each.read("sym_name") for each in extents if not each.read("into")]


def check_relation(op):
    """Raise VerifyError unless the two regions of an operation fit its ``RELATION``."""
    num_indices = len(op.read("indices"))
    domain, relation = entry_block(op, 0), entry_block(op, 1)
    if op.read("num_source_dims") > num_indices:
        raise VerifyError("has more source dimensions than indices")
    if [str(arg.type) for arg in domain.arguments] != ["i64"]:
        raise VerifyError("needs one i64 argument, the outermost index, in its domain region")
    if [str(arg.type) for arg in relation.arguments] != ["i64"] * num_indices:
        raise VerifyError("needs one i64 argument an index in its relation region")
    extents = terminator(op, 0, Domain)
    if len(extents.extents) != num_indices:
        raise VerifyError(f"has {num_indices} indices but {len(extents.extents)} extents")
    if len(extents.cells) != op.read("ragged"):
        raise VerifyError("needs the cells of an outer entry exactly where it is ragged")
    _check_fanout(op, list(extents.extents)[op.read("num_source_dims") :])


def check_no_regions(op):
    """Raise VerifyError unless the regions of an operation are those of its kernels alone."""
    if any(len(list(region.blocks)) for region in op.regions):
        raise VerifyError("must not have a relation beside that of its kernel")


def _check_fanout(op, extents):
    """The points of a segment are as many everywhere."""
    known = [expression(extent) for extent in extents]
    if "every_rank" in op.attrs and op.read("every_rank"):
        if ALL_RANKS not in known:
            raise VerifyError("has no fan-out extent that is the number of ranks")
        known.remove(ALL_RANKS)
    if not all(isinstance(extent, int) for extent in known) or prod(known) != op.read("fanout"):
        raise VerifyError(f"has fan-out extents whose product is not {op.read('fanout')}")


def _check_runs(op):
    """The runs are those of the source's cells, and copied in the unit that they say."""
    cells = [(cell["name"], *cell["type"]) for cell in op.follow("source").read("cells")]
    runs = op.read("runs")
    if [name for name, _, _ in cells] != [run["name"] for run in runs]:
        raise VerifyError("moves other fields than those of its runs")
    for run, (name, dtype, shape) in zip(runs, cells, strict=True):
        if (run["dtype"], run["cell_elems"]) != (dtype, prod(shape)):
            raise VerifyError(f"has runs of other cells than those of '{name}'")
        if run["copy_dtype"] != UNITS[run["unit_bytes"]]:
            raise VerifyError(f"copies '{name}' in other units than {run['unit_bytes']} bytes")
        if run["run_elems"] * num_bytes(dtype) % run["unit_bytes"]:
            raise VerifyError(f"cuts runs of '{name}' into units that do not fit")
        length = run["run_elems"]
        cell = run["cell_elems"] * num_bytes(dtype)
        strides = [dim["src_stride"] for dim in run["run_dims"]]
        if any(n * cell % run["unit_bytes"] for n in strides if isinstance(n, int)):
            raise VerifyError(f"begins runs of '{name}' amid a unit")
        for dim in reversed(run["run_dims"]):
            if dim["dst_stride"] != length:
                raise VerifyError(f"must not leave gaps between runs of '{name}'")
            length *= dim["count"]
        if length != run["seg_elems"]:
            raise VerifyError(f"moves {run['seg_elems']} elements of '{name}' in {length}")


def _check_strides(op, point):
    """Strides that only the run knows are those of the point, in order, in every field."""
    columns = [f"src_stride{number}" for number in range(len(point.src_strides))]
    for run in op.read("runs"):
        strides = [dim["src_stride"] for dim in run["run_dims"]]
        if [stride for stride in strides if isinstance(stride, str)] != columns:
            raise VerifyError(f"needs the strides of its point in the runs of '{run['name']}'")


def check_owner(op, point):
    """Points of a packed target go to the owners of their keys; no others have keys."""
    target, owner = op.follow("target"), point.rank.owner
    is_owner = getattr(owner, "name", None) == Owner.OPERATION_NAME
    if not isinstance(target, DefPacked):
        if is_owner:
            raise VerifyError("must not send a slot to the owner of a key")
        return
    placement = target.attributes["placement"]
    if not is_owner or owner.attributes["placement"] != placement:
        raise VerifyError(f"must send a key to its owner by {placement}")
    if target.read("distinct") and not any(map(_admits_none, point.operation.block)):
        raise VerifyError("must look whether a segment has a key twice, as these are distinct")


def _admits_none(op):
    """Whether an operation lets nothing but 0 pass, such as how often a key was there before."""
    return isinstance(op, Inside) and expression(op.limit) == 1


def _check_cast(op, cast, names, arriving):
    """A cast is of a field at both ends, and its scales are at one of them."""
    field, scales = cast["field"], cast["scales"]
    if field not in names or field not in arriving:
        raise VerifyError(f"casts '{field}', which is not a field of both ends")
    if scales is not None and (scales in names) == (scales in arriving):
        raise VerifyError(f"scales by '{scales}', which must be a field of one end")
    if (scales is None) != (cast["block"] is None):
        raise VerifyError(f"needs a block for the scales of '{field}'")
    fields = op.follow("segment").read("fields")
    sizes = {each["name"]: prod(each["type"][1]) for each in fields}
    check_channels(cast["shifts"], cast["factors"])
    channels = cast["channels"] or len(cast["factors"])
    if channels and (scales is not None or sizes[field] % channels):
        raise VerifyError(f"normalises '{field}', which has scales or other channels")
    if cast["channels"] and cast["factors"]:
        raise VerifyError(f"normalises '{field}' by numbers of its own and of a call")
    if scales in arriving and sizes[field] != sizes[scales] * cast["block"]:
        raise VerifyError(
            f"makes {sizes[scales]} scales for {sizes[field]} elements in blocks of {cast['block']}"
        )


def _check_block(op, relate):
    """The block of cells that ``relate`` names must hold exactly one segment."""
    source = op.follow("source")
    casts = {cast["field"] for cast in op.read("casts")}
    arriving = {field["name"]: field["type"] for field in op.follow("segment").read("fields")}
    lengths = relate.read("lengths")
    for cell in source.read("cells"):
        name, (cell_dtype, cell_shape) = cell["name"], cell["type"]
        if name not in arriving:
            continue  # scales that a cast applies
        dtype, shape = arriving[name]
        if dtype != cell_dtype and name not in casts:
            raise VerifyError(f"moves '{name}' as {dtype} but its cells are {cell_dtype}")
        if prod(shape) != prod(lengths) * prod(cell_shape):
            raise VerifyError(
                f"moves {prod(shape)} elements of '{name}' in blocks of "
                f"{prod(lengths) * prod(cell_shape)}"
            )


def shuffle_of(op: Any) -> Any:
    """The shuffle of the module that an operation stands in."""
    while op.operation.name != "builtin.module":
        op = op.operation.parent
    found = ops_of(op, Shuffle)
    if len(found) != 1:
        raise VerifyError(f"needs exactly one fsc.shuffle in its module, not {len(found)}")
    return found[0]


class Dispatch(Op, name="dispatch"):
    """The shuffle goes forward, by these policies.

    ``dedup`` names the tiers that a segment crosses at most once a destination.

    ``"fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise",
    slice_bytes = 8388608 : i64} : () -> ()``
    """

    attrs = attributes(
        dedup=Array(Text("node", "rank"), distinct=True, optional=True),
        balance=Text(*CHOICES["balance"]),
        schedule=Text(*CHOICES["schedule"]),
        slice_bytes=Integer(1),
    )


def check_weighed(op):
    """Raise VerifyError if an operation, whose ``kind`` says how it reduces, weighs what it does
    not sum."""
    kind = op.read("kind")
    if "weight" in op.attributes and not (kind in REDUCTIONS and REDUCTIONS[kind].sums):
        raise VerifyError("must weigh nothing but the terms of a sum")


class Combine(Op, name="combine"):
    """The shuffle also goes back: what was copied is copied back, or reduced.

    ``weight`` is the input with the factor of every point.

    ``"fsc.combine"() {kind = "sum", weight = @spec.topk_weights} : () -> ()``
    """

    attrs = attributes(
        kind=Text("copy", *REDUCTIONS),
        weight=Ref("def_input", optional=True),
    )

    @classmethod
    def check(cls, op):
        check_weighed(op)
        check_role(op, "weight", "weight")
