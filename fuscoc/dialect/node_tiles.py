"""The sizes that kernels of one node are made with, which choose-tiles puts into ``fsc.node``.

Those of kernels that move pieces stand in ``piece_tiles.py``.

``docs/tiles.md`` says how they are chosen. Verifiers refuse those with which kernels would move
less than a row, lie across each other in a buffer, or not fit into a GPU.
"""

from itertools import pairwise

from fuscoc.codegen.cuda_casts import fits_in_place
from fuscoc.codegen.cuda_tiles import (
    BULK_WORD,
    MAX_TEAMS,
    MOVED_ROWS,
    PLACE_BYTES,
    PLAN_THREADS,
    SCATTERING_WARPS,
    SORTED_ROWS,
    TARGETS,
    WARP,
    bulk_room,
    planning_bytes,
)
from fuscoc.codegen.cuda_types import num_columns
from fuscoc.codegen.triton_tiles import WORDS
from fuscoc.dialect.attrs import Array, Integer, Record, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, ops_of
from fuscoc.dialect.dtypes import num_bytes
from fuscoc.dialect.fused import NodeAssign, NodeCopy, NodeCount, NodePoints, NodeReduce
from fuscoc.dialect.l3_values import Cast, Normalise, vector_of
from fuscoc.dialect.row_fields import Dequantise, LoadField, Quantise, StoreField
from fuscoc.dialect.runs import Unit

MAX_WARPS = 32
BUFFER_ALIGN = 128
MOST_COUNTED = 2**15 - 1  # points of a program of the planner, which counts in 16 bits
FIELD_SIZES = Record(
    {"field": Text(), "word_bytes": Unit(1), "part_bytes": Integer(1), "buffer_at": Integer(0)}
)
PIECE_SIZES = Record(
    {"field": Text(), "align_bytes": Unit(1), "part_elems": Integer(1), "pieces": Array(Integer(1))}
)


class CudaTile(Op, name="cuda_tile"):
    """CUDA kernels for GPUs from ``arch`` on.

    Dispatch: CTAs of ``dispatch_warps`` warps, each with ``dispatch_rows`` buffers of
    ``buffer_bytes``, one or one a lane, move rows in ``num_passes`` parts. A field is moved in
    words of ``word_bytes``, a part of it is ``part_bytes`` at ``buffer_at`` of the buffer;
    ``leaving`` says so of rows in the source, where these are others than ``arriving`` ones.
    A CTA may plan, too, ``sorted_rows`` at once; short ones it moves in the order of their keys.
    Combine: CTAs of ``teams`` teams of ``team_warps`` warps; a thread keeps ``team_vectors``
    vectors of the result and loads those of ``team_batch`` rows at once. Where rows are copied, a
    team may be a warp that takes ``combine_rows`` at once, ``team_batch`` words a thread.

    ``"fsc.cuda_tile"() {arch = "sm_90", arriving = [{buffer_at = 0 : i64, field = "x", part_bytes =
    14336 : i64, word_bytes = 16 : i64}], buffer_bytes = 14336 : i64, combine_rows = 1 : i64,
    dispatch_rows = 1 : i64, dispatch_warps = 16 : i64, num_passes = 1 : i64, sorted_rows = 1 : i64,
    team_batch = 4 : i64, team_vectors = 1 : i64, team_warps = 7 : i64, teams = 4 : i64} : () ->
    ()``
    """

    attrs = attributes(
        arch=Text(*(target.arch for target in TARGETS)),
        dispatch_warps=Integer(1),
        dispatch_rows=Integer(1),
        sorted_rows=Integer(1),
        buffer_bytes=Integer(1),
        num_passes=Integer(1),
        arriving=Array(FIELD_SIZES),
        leaving=Array(FIELD_SIZES, optional=True),
        teams=Integer(1),
        team_warps=Integer(1),
        team_vectors=Integer(1),
        team_batch=Integer(1),
        combine_rows=Integer(1),
    )

    @classmethod
    def check(cls, op):
        loads, stores = rows_beside(op)
        most = max(op.read("teams") * op.read("team_warps"), op.read("dispatch_warps"))
        if most > MAX_WARPS:
            raise VerifyError(f"must not put more than {MAX_WARPS} warps into a CTA")
        if op.read("combine_rows") > 1:
            _check_copied(op)
        elif op.read("teams") > MAX_TEAMS or op.read("team_vectors") > 2:
            raise VerifyError(f"must have {MAX_TEAMS} teams at most, and two vectors a thread")
        left, arrived = map(row_fields, (loads, stores))
        changes = left != arrived or any(load.read("run_dims") for load in loads)
        changes |= bool(_computed(stores))  # which may be of the same type
        if changes != bool(op.read("leaving")):
            raise VerifyError("needs 'leaving' exactly where rows leave as others than arrive")
        _check_parts(op, "arriving", arrived)
        if changes:
            _check_parts(op, "leaving", left)
            _check_ends(op, left, arrived, stores)
        check_words(op.read("leaving") or op.read("arriving"), "word_bytes", loads)
        if op.read("dispatch_rows") > 1:
            _check_scattered(op)
        if op.read("sorted_rows") > 1:
            _check_sorted(op, arrived)
        warps, rows = op.read("dispatch_warps"), op.read("dispatch_rows")
        _check_shared(op, warps * rows * op.read("buffer_bytes"))


class TritonTile(Op, name="triton_tile"):
    """Triton kernels: a program of the planner has ``plan_warps`` warps, takes ``plan_tiles`` times
    ``plan_points`` points, holds the counts of ``plan_block`` keys, and exchanges those of
    ``plan_keys``. One that moves rows takes them in ``row_parts`` parts, by ``row_warps`` warps;
    short rows ``tile_rows`` at once. With ``sorted_rows`` above 1 it also plans them, so many at
    once, in the order of their keys. Segments that have come over the network move one by one.

    A part of a field is ``part_elems`` elements in ``pieces`` of so many lanes; accesses are
    aligned to ``align_bytes``. Fields are ``moved`` as words, but for those of casts; where there
    are any, ``arriving`` says how rows are stored. They are ``summed`` as elements.

    ``"fsc.triton_tile"() {moved = [{align_bytes = 16 : i64, field = "x",
    part_elems = 1792 : i64, pieces = [1024 : i64, 512 : i64, 256 : i64]}], plan_block = 256 : i64,
    plan_keys = 8 : i64, plan_points = 128 : i64, plan_tiles = 1 : i64, plan_warps = 4 : i64,
    row_parts = 1 : i64, row_warps = 4 : i64, sorted_rows = 1 : i64, tile_rows = 1 : i64} : ()
    -> ()``
    """

    attrs = attributes(
        plan_points=Integer(1),
        plan_warps=Integer(1),
        plan_keys=Integer(1),
        plan_tiles=Integer(1),
        plan_block=Integer(1),
        row_parts=Integer(1),
        row_warps=Integer(1),
        tile_rows=Integer(1),
        sorted_rows=Integer(1),
        moved=Array(PIECE_SIZES),
        arriving=Array(PIECE_SIZES, optional=True),
        summed=Array(PIECE_SIZES, optional=True),
    )

    @classmethod
    def check(cls, op):
        loads, stores = rows_beside(op)
        powers = ("plan_points", "plan_warps", "plan_keys", "plan_block", "row_warps")
        for name in (*powers, "tile_rows", "sorted_rows"):
            check_power(op.read(name), f"'{name}'")
        if max(op.read("plan_warps"), op.read("row_warps")) > MAX_WARPS:
            raise VerifyError(f"must not put more than {MAX_WARPS} warps into a program")
        node = op.operation.parent
        (points,), counts = ops_of(node, NodePoints), ops_of(node, NodeCount)
        if op.read("plan_points") < points.read("fanout"):
            raise VerifyError("needs programs of the planner that hold all points of a segment")
        if op.read("plan_points") * op.read("plan_tiles") > MOST_COUNTED:
            raise VerifyError(f"must not plan more than {MOST_COUNTED} points in a program")
        columns = 1
        for assign in ops_of(node, NodeAssign):
            num_keys = counts[0].follow("placement").read("num_keys")
            columns = num_columns(num_keys, assign.read("compact"))
        if max(op.read("plan_keys"), op.read("plan_block")) >= 2 * columns:
            raise VerifyError(
                f"must not take more counts at once than the {columns} that there are"
            )
        reduces = ops_of(op.operation.parent, NodeReduce)
        sums = bool(reduces) and reduces[0].kind != "copy"
        if sums != bool(op.read("summed")):
            raise VerifyError("needs 'summed' exactly where rows are summed up")
        casts = _casts(stores)
        if bool(casts) != bool(op.read("arriving")):
            raise VerifyError("needs 'arriving' exactly where fields are cast")
        _check_pieces(op, "moved", loads, _moved_bytes(op, "moved", loads, casts))
        check_words(op.read("moved"), "align_bytes", loads)
        if casts:
            _check_pieces(op, "arriving", stores, _moved_bytes(op, "arriving", stores, casts))
            _check_stored(op, stores)
            _check_blocks(op, casts)
        if sums:
            _check_pieces(op, "summed", loads, _elem_bytes(loads))
            check_words(op.read("summed"), "align_bytes", loads)
        if op.read("tile_rows") > 1:
            _check_tiled(op, points, loads, bool(casts or sums))
        if op.read("sorted_rows") > 1:
            _check_sorted_tiles(op, points)


def rows_beside(op):
    """How rows are read, and how they are stored, beside a tile."""
    if op.operation.parent.name != "fsc.node":
        raise VerifyError("must stand inside fsc.node")
    (copy,) = ops_of(op.operation.parent, NodeCopy)
    return ops_of(copy, LoadField), ops_of(copy, StoreField)


def row_fields(fields):
    """Bytes of every field of a row, in order."""
    found = [(each.read("field"), *vector_of(each.value)) for each in fields]
    return [(name, dtype, num_bytes(dtype) * size) for name, dtype, size in found]


def _elem_bytes(loads):
    return {name: num_bytes(dtype) for name, dtype, _ in row_fields(loads)}


def check_fields(given, name, fields):
    if [each["field"] for each in given] != [field for field, *_ in fields]:
        raise VerifyError(f"needs the fields of a row in '{name}'")


def _check_parts(op, name, fields):
    """Parts are whole words and make up a row; in the buffer they lie one behind the other."""
    given = op.read(name)
    check_fields(given, name, fields)
    for each, (field, _, row_bytes) in zip(given, fields, strict=True):
        word, part = each["word_bytes"], each["part_bytes"]
        if row_bytes % word or part % word:
            raise VerifyError(f"must not cut '{field}' into words of {word} bytes")
        if part > row_bytes:
            raise VerifyError(f"moves more than '{field}'")
        if part * op.read("num_passes") < row_bytes:
            raise VerifyError(f"does not move all of '{field}'")
        if each["buffer_at"] % BUFFER_ALIGN:
            raise VerifyError(f"needs a multiple of {BUFFER_ALIGN} where '{field}' begins")
    places = [(each["buffer_at"], each["part_bytes"]) for each in given]
    _check_room(op, places, f"'{name}'")


def _check_room(op, places, name):
    places = [*sorted(places), (op.read("buffer_bytes"), 0)]
    if any(at + size > behind for (at, size), (behind, _) in pairwise(places)):
        raise VerifyError(f"has no room in its buffer for the fields of {name}")


def _check_scattered(op):
    """A lane moves a row whole, by bulk copies, to the one slot that it has."""
    node = op.operation.parent
    (points,), assigns = ops_of(node, NodePoints), ops_of(node, NodeAssign)
    if points.read("fanout") > 1 or not assigns or assigns[0].read("compact"):
        raise VerifyError("must not move a row a lane but to one slot each, which it is assigned")
    if op.read("dispatch_rows") not in SCATTERING_WARPS:
        allowed = " or ".join(map(str, SCATTERING_WARPS))
        raise VerifyError(f"must move a row by a warp, or by each of {allowed} lanes of it")
    if op.read("num_passes") > 1 or op.read("leaving"):
        raise VerifyError("must move whole rows by lanes, as they arrive")
    given = op.read("arriving")
    if op.read("arch") != "sm_90" or any(each["word_bytes"] != BULK_WORD for each in given):
        raise VerifyError("needs bulk copies to move a row a lane")
    ends = sorted((each["buffer_at"], bulk_room(each["part_bytes"])) for each in given)
    ends.append((op.read("buffer_bytes"), 0))
    if any(at + room > behind for (at, room), (behind, _) in pairwise(ends)):
        raise VerifyError("needs room in buffers to place rows as in their slots")


def _check_sorted(op, arrived):
    """A CTA plans and sorts rows of segments that have one slot each, which they are assigned."""
    node, rows, warps = op.operation.parent, op.read("sorted_rows"), op.read("dispatch_warps")
    (points,), assigns = ops_of(node, NodePoints), ops_of(node, NodeAssign)
    if points.read("fanout") > 1 or not assigns or assigns[0].read("compact"):
        raise VerifyError("must not sort rows but of one slot each, which it is assigned")
    if op.read("leaving") or op.read("num_passes") > 1:
        raise VerifyError("must sort whole rows, as they arrive")
    num_keys = ops_of(node, NodeCount)[0].follow("placement").read("num_keys")
    moved = op.read("dispatch_rows")
    if moved > 1 and (moved != WARP or rows % WARP or rows > MOVED_ROWS):
        raise VerifyError(f"must plan whole warps of rows, {MOVED_ROWS} at most")
    if moved == 1 and (warps * WARP != PLAN_THREADS or rows not in SORTED_ROWS):
        raise VerifyError(f"must sort a tile of {SORTED_ROWS} rows by {PLAN_THREADS} threads")
    buffers = warps * moved * op.read("buffer_bytes") if moved > 1 else 0
    words, row = [each["word_bytes"] for each in op.read("arriving")], sum(n for *_, n in arrived)
    _check_shared(op, planning_bytes(op.read("arch"), words, row, num_keys, rows, buffers))


def _check_shared(op, needed):
    (target,) = (each for each in TARGETS if each.arch == op.read("arch"))
    if needed > target.room:
        raise VerifyError(f"needs {needed} bytes of shared memory, and has {target.room}")


def _check_tiled(op, points, loads, changes):
    """A program moves tiles of rows of segments that have one each, as wide as these."""
    assigns = ops_of(op.operation.parent, NodeAssign)
    compact = bool(assigns) and assigns[0].read("compact")
    if points.read("fanout") > 1 or compact or op.read("row_parts") > 1:
        raise VerifyError("must not move several whole rows at once but to one slot each")
    if changes or any(load.read("run_dims") for load in loads):
        raise VerifyError("must not move several rows at once but as they lie")


def _check_sorted_tiles(op, points):
    """A program sorts whole tiles of rows by key, of as many segments as there are."""
    if not ops_of(op.operation.parent, NodeAssign) or points.read("ragged"):
        raise VerifyError("must not sort rows but of slots that they are assigned, if all exist")
    if op.read("tile_rows") == 1:
        raise VerifyError("must not sort rows that it moves one by one")


def _check_copied(op):
    """A warp copies rows of segments that have one each, and keeps where these are."""
    reduces = ops_of(op.operation.parent, NodeReduce)
    if not reduces or reduces[0].kind != "copy":
        raise VerifyError("must not copy several rows a warp where they are summed up")
    if op.read("team_warps") > 1 or op.read("team_vectors") > 1:
        raise VerifyError("must copy rows by teams of a warp, one vector a thread")
    _check_shared(op, op.read("teams") * op.read("combine_rows") * PLACE_BYTES)


def _check_ends(op, left, arrived, stores):
    """A field is stored from where it was loaded to, in the same parts. One that is cast is so
    whole: where it lies, if it can be, or from a place of its own."""
    casts, computed = _casts(stores), _computed(stores)
    dtypes, read = {name: dtype for name, dtype, _ in left}, {}
    for each in op.read("leaving"):
        read[each["field"]] = each
    places = []
    for each, (field, dtype, row_bytes) in zip(op.read("arriving"), arrived, strict=True):
        places.append((each["buffer_at"], each["part_bytes"]))
        if field not in read:
            continue  # scales that are made
        if field in casts and op.read("num_passes") > 1:
            raise VerifyError(f"must not cast '{field}' in parts")
        lies = each["buffer_at"] == read[field]["buffer_at"]
        if field not in casts and not lies:
            raise VerifyError(f"stores '{field}' from elsewhere than it is loaded to")
        if field not in casts and each["part_bytes"] != read[field]["part_bytes"]:
            raise VerifyError(f"stores '{field}' in other parts than it is loaded in")
        if lies:
            size = max(each["part_bytes"], read.pop(field)["part_bytes"])
            places[-1] = each["buffer_at"], size
        if lies and field in casts:
            scales, block = casts[field]
            elems = row_bytes // num_bytes(dtype)
            fits = fits_in_place(dtypes[field], dtype, elems, block if scales else None)
            if not fits or scales in dtypes or field in computed:
                raise VerifyError(f"must not cast '{field}' in place")
    places += [(each["buffer_at"], each["part_bytes"]) for each in read.values()]
    _check_room(op, places, "both ends")


def check_words(given, name, loads):
    """Where a segment lies in its source is known to multiples of its runs' unit alone."""
    for each, load in zip(given, loads, strict=True):
        if load.read("unit_bytes") % each[name]:
            raise VerifyError(f"must not read '{each['field']}' in words of {each[name]} bytes")


def _casts(stores):
    """The fields that are stored as something else than they were loaded as, and that of their
    scales with how many elements have one, if they have any."""
    made, found = {each.value: each.read("field") for each in stores}, {}
    for store in stores:
        match store.value.owner.opview:
            case Cast() | Normalise():
                found[store.read("field")] = None, 1
            case Quantise() as cast if store.value == cast.small:
                found[store.read("field")] = made[cast.scales], cast.read("block")
            case Dequantise() as cast:
                scales = cast.scales.owner.opview.read("field")
                found[store.read("field")] = scales, cast.read("block")
    return found


def _computed(stores):
    """The fields of which something is computed before they are stored."""
    made = [(each.read("field"), each.value.owner.opview) for each in stores]
    values = [(name, op.value.owner.opview if isinstance(op, Cast) else op) for name, op in made]
    return {name for name, op in values if isinstance(op, Normalise)}


def _moved_bytes(op, name, fields, casts):
    """Bytes of what fields are moved in: elements of casts and their scales, words of others."""
    elems, cast = _elem_bytes(fields), {*casts, *(scales for scales, _ in casts.values())}
    return {
        each["field"]: elems.get(each["field"])
        if each["field"] in cast
        else WORDS[each["align_bytes"]][1]
        for each in op.read(name)
    }


def _check_stored(op, stores):
    """A row begins at a multiple of its own length."""
    for each, (field, _, row_bytes) in zip(op.read("arriving"), row_fields(stores), strict=True):
        if row_bytes % each["align_bytes"]:
            raise VerifyError(f"must not store '{field}' in words of {each['align_bytes']} bytes")


def _check_blocks(op, casts):
    """A field is stored in the pieces that it is loaded in, and each has the scales of its own."""
    ends = [{each["field"]: each for each in op.read(name)} for name in ("moved", "arriving")]
    cuts = [
        {name: (each["part_elems"], *each["pieces"]) for name, each in end.items()} for end in ends
    ]
    for field in cuts[0].keys() & cuts[1].keys():
        if cuts[0][field] != cuts[1][field]:
            raise VerifyError(f"stores '{field}' in other pieces than it is loaded in")
    for field, (scales, block) in casts.items():
        (held,) = (cut[scales] for cut in cuts if scales in cut) if scales else (None,)
        part, *pieces = cuts[1][field]
        if held not in (None, (part // block, *(max(each // block, 1) for each in pieces))):
            raise VerifyError(f"needs pieces of '{scales}' that go with those of '{field}'")
        if part % block or any(each % block for each in pieces[:-1]):
            raise VerifyError(f"must not tear blocks of '{field}' apart")


def _check_pieces(op, name, rows, elem_bytes):
    """Pieces are powers of two of lanes, none without elements, and make up a part."""
    given, fields = op.read(name), row_fields(rows)
    check_fields(given, name, fields)
    for each, (field, _, row_bytes) in zip(given, fields, strict=True):
        part, pieces = each["part_elems"], each["pieces"]
        for piece in pieces:
            check_power(piece, f"'pieces' of '{field}'")
        if not sum(pieces[:-1]) < part <= sum(pieces):
            raise VerifyError(f"needs pieces that make up a part of '{field}'")
        if part * elem_bytes[field] * op.read("row_parts") < row_bytes:
            raise VerifyError(f"does not move all of '{field}'")


def check_power(size, name):
    if size & (size - 1):
        raise VerifyError(f"needs a power of two for {name}, not {size}")
