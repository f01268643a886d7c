"""A dispatch across nodes: rows are packed into slabs, with what is counted of them (`hop_counts`).
What has come of others is planned with this rank's own (`plan`).

Nothing here depends on what peers do: what slabs have places for is known before. Where rows travel
as flows (`flows`) slabs have none: they are packed by a further launch of the same kernel, when it
is known where each goes.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")
slabs, points, of_tiles = load("slabs"), load("points"), load("tiles")
hop_counts, of_slots = load("hop_counts"), load("place")

POINTS = tl.constexpr(256)  # that a program drops at once
ROWS = tl.constexpr(-2)  # said by a launch that packs rows alone, as flows
TOP = tl.constexpr(-(2**31))  # the bit of a number that calls do not reach


@triton.jit
def pack(
    call, num_sources, says, weights, source_fields, slab_at, load_source: tl.constexpr,
    store_row: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    tile: tl.constexpr, tiles: tl.constexpr, compact: tl.constexpr, given, relation: tl.constexpr,
    strided: tl.constexpr = False, counts: tl.constexpr = True, apart: tl.constexpr = False,
    begun=0, table=None,
):  # fmt: skip
    """All slabs of a dispatch, by programs that count, one for those of the planner, and others;
    where the relation gives slots nothing ``counts``. ``apart`` and ``begun`` are as in `place`.
    Without segments a rank may say why, where it ``says`` another number than 0: -1 if it refuses
    the call, or how many it has if these are more than there are places for. With exact sizes it
    also refuses it if one of its points cannot be moved. The shuffle's own ``relation(point,
    given)`` says ranks, keys and cells of points; without one a kernel before has evaluated it.
    Weights of the way back travel along, if the call has some, 0 if it has none, whichever rows
    they are for; so does the ``table`` that places keys, if one does. Where it says `ROWS` all that
    is said of points has travelled, and rows alone are packed, as flows."""
    sync.follow()
    slabs.tell_exchange(call, 0)
    number = tl.program_id(0).to(tl.int64)
    counting = number * 0
    if counts:
        size: tl.constexpr = tile[0] * tiles
        counting += tl.where(says == ROWS, 0, (num_sources + size - 1) // size)
        if number < counting:
            hop_counts.count(
                call, number, num_sources, given, relation, fanout, tile, tiles, compact
            )
    if number >= counting:
        pack_share(
            call, number - counting, tl.num_programs(0) - counting, num_sources, weights,
            source_fields, slab_at, load_source, store_row, fanout, lanes, parts, strided, given,
            relation, counts, apart, begun, says == ROWS,
        )  # fmt: skip
        if table is not None:
            if says >= 0:  # who refuses the call may have none
                pack_table(call, number - counting, tl.num_programs(0) - counting, table)
    if says != ROWS:
        tell_of(call, num_sources, says)


@triton.jit
def tell_of(call, num_sources, says):
    """Headers of all slabs."""
    status = tl.where(says != 0, says, num_sources).to(tl.int32)
    tells = tl.program_id(0) == 0
    if sync.is_exact(call):  # who is the last knows of all points
        tells = sync.leave(sync.array(call, words.STATE, tl.int32), "gpu")
        routing = sync.array(call, words.ROUTING, tl.int32)
        use = tl.load(routing + words.USES) + 1
        dropped = tl.atomic_add(routing + words.DROPPED + (use & 1), 0)
        status = tl.where(dropped > 0, -1, status)
    if tells:
        for node in range(sync.word(call, words.NUM_NODES)):
            slabs.store_header(slabs.leaving(call, node), slabs.tag_of(call), status)


@triton.jit
def pack_share(
    call, begin, programs, num_sources, weights, source_fields, slab_at, load_source: tl.constexpr,
    store_row: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    strided: tl.constexpr, given, relation: tl.constexpr, counts: tl.constexpr,
    apart: tl.constexpr, begun, is_told,
):  # fmt: skip
    """What one of so many programs packs; if all ``is_told`` rows alone."""
    for place in range(begin, num_sources, programs):
        pack_place(
            call, place, weights, source_fields, slab_at, load_source, store_row, fanout, lanes,
            parts, strided, given, relation, counts, apart, begun, is_told,
        )  # fmt: skip
    num_points = tl.where(is_told, 0, sync.word(call, words.STRIDE) * fanout)
    for first in range(num_sources * fanout + begin * POINTS, num_points, programs * POINTS):
        at = first + tl.arange(0, POINTS).to(tl.int64)
        for node in range(sync.word(call, words.NUM_NODES)):
            exists = at < slabs.places_of(call, node) * fanout
            of_points = slabs.point_words(slabs.leaving(call, node)) + at
            tl.store(of_points, tl.full((POINTS,), -1, tl.int64), mask=exists)


@triton.jit
def pack_table(call, begin, programs, table):
    """What one of so many programs packs of the table that places keys."""
    num_keys = sync.word(call, words.NUM_KEYS)
    for first in range(begin * POINTS, num_keys, programs * POINTS):
        key = first + tl.arange(0, POINTS).to(tl.int64)
        owner = tl.load(table + key, mask=key < num_keys, other=0)
        for node in range(sync.word(call, words.NUM_NODES)):
            to = slabs.table_of(call, slabs.leaving(call, node))
            tl.store(to + key, owner, mask=key < num_keys)


@triton.jit
def pack_place(
    call, place, weights, source_fields, slab_at, load_source: tl.constexpr,
    store_row: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    strided: tl.constexpr, given, relation: tl.constexpr, counts: tl.constexpr,
    apart: tl.constexpr, begun, is_told,
):  # fmt: skip
    """The row and the points of a segment to every node that it goes to; -1 to the others. This
    rank's own node needs no row. If its points have been told their nodes are known."""
    own, num_nodes = sync.word(call, words.NODE), sync.word(call, words.NUM_NODES)
    are_flows = sync.word(call, words.ROWS_OUT) != 0
    to, first = tl.full((lanes,), -1, tl.int64), tl.full((), 0, tl.int64)
    travels = tl.full((), 0, tl.int32)
    if is_told:
        for node in range(num_nodes):
            travels |= (number_of(call, node, place) >= 0).to(tl.int32)
    else:
        to, first = pack_points(
            call, place, weights, fanout, lanes, given, relation, counts, apart, begun
        )
        there = ((to >= 0) & (to != own) & (are_flows == 0)).to(tl.int32)
        travels |= vectors.largest(there, 0)
    cell = first
    if relation is None:
        cell = points.cell_of(call, place, fanout, strided)
    elif is_told:
        cell = points.cell_of(call, place, fanout, False)
    if travels == 1:
        for part in range(parts):
            tiles = load_source(part, source_fields, cell)
            for node in range(num_nodes):
                goes = (node != own) & (vectors.largest((to == node).to(tl.int32), 0) == 1)
                there = place_there(call, node, place, counts)
                begin, at = slabs.row_in(
                    call, slabs.leaving(call, node), words.ROWS_OUT, words.ROWS_SENT, node, there
                )
                if (goes | are_flows) & (at >= 0):
                    store_row(part, begin, slab_at, at, tiles)


@triton.jit
def number_of(call, node, place):
    """The number of a row in what this rank's node sends a node, -1 if there is none."""
    _, at = slabs.row_in(call, 0, words.ROWS_OUT, words.ROWS_SENT, node, place)
    return at


@triton.jit
def pack_points(
    call, place, weights, fanout: tl.constexpr, lanes: tl.constexpr, given, relation: tl.constexpr,
    counts: tl.constexpr, apart: tl.constexpr, begun,
):  # fmt: skip
    """The points of a segment to every node. Returns the node that each goes to, -1 if to none, and
    the segment's cell if the relation is evaluated here."""
    lane = tl.arange(0, lanes)
    at = place * fanout + lane
    exists = lane < fanout
    keys = sync.array(call, words.OWN_KEYS, tl.int64) + at
    ranks = sync.array(call, words.OWN_RANKS, tl.int64) + at
    if relation is None:
        key = tl.load(keys, mask=exists, other=-1)
        rank = tl.load(ranks, mask=exists, other=-1)
        cells = tl.load(sync.array(call, words.SRC_OFFSETS, tl.int64) + at, mask=exists, other=0)
    else:
        rank, key, cells = relation(place * fanout + tl.minimum(lane, fanout - 1), given)
        rank = tl.where(exists, rank, -1)
        key = tl.where(exists, key, -1)
        tl.store(ranks, rank, mask=exists)
        tl.store(keys, key, mask=exists)
        tl.store(sync.array(call, words.SRC_OFFSETS, tl.int64) + at, cells, mask=exists)
    first = vectors.pick(cells, 0, lanes)
    if counts:
        of_tiles.note_absent(call, of_tiles.is_absent(rank, key).to(tl.int32))
    else:
        nowhere = of_slots.is_nowhere(rank, key)
        of_tiles.note_absent(call, nowhere.to(tl.int32))
        rank = tl.where(nowhere, -1, rank)
    if apart:
        begins = vectors.largest(rank, 0) >= 0
        again = of_slots.begin_again(begun, first, begins)
        of_slots.note_shared(call, again.to(tl.int32))
        rank = tl.where(again, -1, rank)
    weights_at = weights.to(tl.int64).to(tl.pointer_type(tl.int32)) + at
    bits = tl.load(weights_at, mask=exists & (weights != 0), other=0)
    num_ranks = sync.word(call, words.NUM_RANKS)
    to = tl.where(rank >= 0, rank // num_ranks, -1)
    number = key
    if counts:
        numbers = sync.array(call, words.NODE_KEYS, tl.int64)
        number = tl.load(numbers + key, mask=exists & (rank >= 0), other=0)
    word = slabs.point_word(rank % num_ranks, number, bits)
    for node in range(sync.word(call, words.NUM_NODES)):
        there = place_there(call, node, place, counts)
        of_points = slabs.point_words(slabs.leaving(call, node)) + there * fanout + lane
        tl.store(of_points, tl.where(to == node, word, -1), mask=exists & (there >= 0))
        if counts == 0:  # it should have a place wherever it goes
            of_tiles.note_absent(call, ((to == node) & (there < 0)).to(tl.int32))
    return to, first.to(tl.int64)


@triton.jit
def place_there(call, node, place, counts: tl.constexpr):
    """`slabs.place_of`: what is counted has the same place in every slab."""
    there = place
    if counts == 0:
        there = slabs.place_of(call, node, place)
    return there


@triton.jit(do_not_specialize=range(1))
def acknowledge(call: tl.int64):
    """A kernel of one program behind a dispatch: count the points of this rank that were not moved
    in other nodes, as their ranks have told it."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    slabs.tell_exchange(call, 1, 0)
    routing = sync.array(call, words.ROUTING, tl.int32)
    # The dispatch has counted its use of the handle's memory by now.
    use = tl.load(routing + words.USES)
    for kind in range(slabs.RECEIPTS):
        lost = tl.full((), 0, tl.int64)
        for node in range(sync.word(call, words.NUM_NODES)):
            at = node * slabs.RECEIPTS + kind
            tl.store(sync.array(call, words.RECEIPTS_OUT, tl.int64) + at, 0)
            if node != sync.word(call, words.NODE):
                lost += tl.load(sync.array(call, words.RECEIPTS_IN, tl.int64) + at)
        if lost > 0:
            times = lost.to(tl.int32)
            sync.note(call, words.BAD_KEYS + kind, times)
            tl.atomic_add(routing + words.DROPPED + (use & 1), times)
    tl.debug_barrier()
    sync.tell_troubles(call)


@triton.jit(do_not_specialize=range(2))
def tell(told: tl.int64, place: tl.int64):
    """A kernel of one program around an exchange that is of no call: as `slabs.tell_exchange`, by a
    number that neither the call before nor the one behind it has."""
    told = told.to(tl.int64).to(tl.pointer_type(tl.int32))
    place = place.to(tl.int64)
    other = tl.load(told + 1 - place, volatile=True)
    tl.store(told + place, tl.where(place == 0, other ^ TOP, other))
