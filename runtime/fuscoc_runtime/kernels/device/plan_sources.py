"""The planner's kernels of a source: counts of its points, then every list that needs no word from
the other ranks.

A program has a tile of points, whole segments with their fan-out padded to ``lanes``. Counting, a
scan over the tiles and placing give every element its place: prefix sums, so the order in which
programs run cannot matter. Inside a tile places come from comparing all pairs of points, in the
order of all lists: by segment, then rank, then domain order.

Columns of a tile's counts: bad points; live points and pairs by rank; network rows by node; live
points by key. ``counts`` has their totals, int64, in the same order.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

vectors = load("vectors")

HALF = tl.constexpr(16)
LOW = tl.constexpr((1 << 16) - 1)
CHUNK = tl.constexpr(512)  # tiles that a program of `scan` adds up at once


@triton.jit
def words(at):
    """The int64 array at an address."""
    return at.to(tl.int64).to(tl.pointer_type(tl.int64))


@triton.jit
def halves(at):
    """The int32 array at an address."""
    return at.to(tl.int64).to(tl.pointer_type(tl.int32))


@triton.jit
def tile_points(num_points, fanout, tile: tl.constexpr, lanes: tl.constexpr):
    """This program's points: their source, index, and whether they exist; segment and lane in the
    tile."""
    lane = tl.arange(0, tile)
    segment, k = lane // lanes, lane % lanes
    source = tl.program_id(0).to(tl.int64) * (tile // lanes) + segment
    point = source * fanout + k
    return source, point, (k < fanout) & (point < num_points), segment, k


@triton.jit
def number(mask):
    """How many of every row of a matrix of pairs are true."""
    return vectors.total(mask.to(tl.int32), 1)


@triton.jit
def both(low, high):
    """Two flags as the halves of a word: one sum counts both."""
    return low.to(tl.int32) + (high.to(tl.int32) << HALF)


@triton.jit
def numbers(mask, pairs_of_flags):
    """How often every row of a matrix of pairs selects each of two flags."""
    sums = vectors.total(tl.where(mask, pairs_of_flags[None, :], 0), 1)
    return sums & LOW, sums >> HALF


@triton.jit
def leads(
    rank, live, segment, k, my_node, num_ranks, ranks_per_node,
    by_rank: tl.constexpr, by_node: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """(points before each point in its tile's order, points before each in its pair; whether it
    leads a pair, a pair of another node, a network row; its node)."""
    pair = segment * num_ranks + rank
    place = pair * lanes + k
    before = live[None, :] & (place[None, :] < place[:, None])
    node = rank // ranks_per_node
    in_pair = number(before & (pair[None, :] == pair[:, None]))
    leads_pair = live
    if by_rank:
        leads_pair = live & (in_pair == 0)
    leads_far = leads_pair & (node != my_node)
    leads_row = leads_far
    if by_node:
        row = segment * num_ranks + node
        leads_row = leads_far & (number(before & (row[None, :] == row[:, None])) == 0)
    return before, in_pair, leads_pair, leads_far, leads_row, node


@triton.jit
def store_histogram(to, values, mask, num_values, bins: tl.constexpr):
    """``to[v]``: how often ``v`` is among the values that ``mask`` selects."""
    bin_index = tl.arange(0, bins)
    counts = tl.histogram(tl.where(mask, values, 0).to(tl.int32), bins, mask=mask)
    tl.store(to + bin_index, counts, mask=bin_index < num_values)


@triton.jit(do_not_specialize=range(10))
def count(
    ranks: tl.int64, keys: tl.int64, tiles: tl.int64, num_points: tl.int64, fanout: tl.int64,
    num_ranks: tl.int64, ranks_per_node: tl.int64, my_node: tl.int64, num_keys: tl.int64,
    num_columns: tl.int64,
    by_rank: tl.constexpr, by_node: tl.constexpr, tile: tl.constexpr, lanes: tl.constexpr,
    rank_bins: tl.constexpr, key_bins: tl.constexpr,
):  # fmt: skip
    """The counts of a tile."""
    _, point, exists, segment, k = tile_points(num_points, fanout, tile, lanes)
    to_rank = tl.load(words(ranks) + point, mask=exists, other=-1)
    rank, live = to_rank.to(tl.int32), to_rank >= 0
    num_ranks, ranks_per_node = num_ranks.to(tl.int32), ranks_per_node.to(tl.int32)
    _, _, leads_pair, _, leads_row, node = leads(
        rank, live, segment, k, my_node, num_ranks, ranks_per_node, by_rank, by_node, lanes
    )
    to = halves(tiles) + tl.program_id(0).to(tl.int64) * num_columns
    tl.store(to, vectors.total((to_rank < -1).to(tl.int32), 0))
    store_histogram(to + 1, rank, live, num_ranks, rank_bins)
    store_histogram(to + 1 + num_ranks, rank, leads_pair, num_ranks, rank_bins)
    num_nodes = num_ranks // ranks_per_node
    store_histogram(to + 1 + 2 * num_ranks, node, leads_row, num_nodes, rank_bins)
    if key_bins > 0:
        key = tl.load(words(keys) + point, mask=live, other=0)
        store_histogram(to + 1 + 2 * num_ranks + num_nodes, key, live, num_keys, key_bins)


@triton.jit
def scan_tiles(tiles, num_tiles, num_columns, column, block: tl.constexpr):
    """Make the counts of a block of columns those of all tiles before; returns their totals."""
    sums = tl.full((block,), 0, tl.int32)
    for start in range(0, num_tiles, CHUNK):
        tile = start + tl.arange(0, CHUNK)
        at = halves(tiles) + tile[:, None] * num_columns + column[None, :]
        mask = (tile[:, None] < num_tiles) & (column[None, :] < num_columns)
        counts = tl.load(at, mask=mask, other=0)
        tl.store(at, sums[None, :] + vectors.running(counts, 0) - counts, mask=mask)
        sums += vectors.total(counts, 0)
    return sums.to(tl.int64)


@triton.jit(do_not_specialize=range(7))
def take_census(
    tiles: tl.int64, census: tl.int64, owners: tl.int64, num_tiles: tl.int64,
    num_columns: tl.int64, num_owners: tl.int64, length: tl.int64, block: tl.constexpr,
):  # fmt: skip
    """The row of the census (``plan/census.py``): a block of columns a program."""
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    totals = scan_tiles(tiles, num_tiles, num_columns, column, block)
    to = words(census)
    tl.store(to + 2 + column, totals, mask=column < num_columns)
    owner = tl.load(words(owners) + column, mask=column < num_owners, other=0)
    tl.store(to + 2 + num_columns + column, owner, mask=column < num_owners)
    if tl.program_id(0) == 0:
        tl.store(to, tl.full((), 0, tl.int64))
        tl.store(to + 1, length)


@triton.jit
def base(counts, before, values, num_values, bins: tl.constexpr):
    """Elements of lower values anywhere, and of a point's own value in lower tiles."""
    each = tl.arange(0, bins)
    inside = each < num_values
    all_of = tl.load(counts + each, mask=inside, other=0).to(tl.int32)
    mine = tl.load(before + each, mask=inside, other=0)
    terms = tl.where(each[None, :] < values[:, None], all_of[None, :], 0)
    terms += tl.where(each[None, :] == values[:, None], mine[None, :], 0)
    return vectors.total(terms, 1)


@triton.jit
def base_far(counts, before, node, my_node, num_ranks, ranks_per_node, bins: tl.constexpr):
    """The same of pairs by node, for pairs on other nodes; and those inside the node: of lower
    tiles, and all."""
    each = tl.arange(0, bins)
    inside = each < num_ranks
    of = each // ranks_per_node
    all_of = tl.load(counts + each, mask=inside, other=0).to(tl.int32)
    mine = tl.load(before + each, mask=inside, other=0)
    far = of[None, :] != my_node
    terms = tl.where(far & (of[None, :] < node[:, None]), all_of[None, :], 0)
    terms += tl.where(of[None, :] == node[:, None], mine[None, :], 0)
    near = of == my_node
    return (
        vectors.total(terms, 1),
        vectors.total(tl.where(near, mine, 0), 0),
        vectors.total(tl.where(near, all_of, 0), 0),
    )


@triton.jit
def total_of(array, num_values, bins: tl.constexpr):
    each = tl.arange(0, bins)
    return vectors.total(tl.load(array + each, mask=each < num_values, other=0), 0)


@triton.jit
def copy_address(to, size, first, at, source, fanout, row, is_row, near, is_near, is_source):
    """One column of where sources lie: of every source, of ``net_send`` and of ``direct``; each of
    the three has ``size`` elements of room from ``first`` on."""
    value = tl.load(words(at) + source * fanout, mask=is_row | is_near | is_source, other=0)
    tl.store(to + first * size + source, value, mask=is_source)
    tl.store(to + (first + 1) * size + row, value, mask=is_row)
    tl.store(to + (first + 2) * size + near, value, mask=is_near)


@triton.jit(do_not_specialize=range(17))
def place(
    ranks: tl.int64, targets: tl.int64, address0: tl.int64, address1: tl.int64,
    address2: tl.int64, address3: tl.int64, tiles: tl.int64, census: tl.int64,
    scratch: tl.int64, lists: tl.int64,
    num_points: tl.int64, fanout: tl.int64, num_ranks: tl.int64, ranks_per_node: tl.int64,
    my_node: tl.int64, num_columns: tl.int64, num_strides: tl.int64,
    by_rank: tl.constexpr, by_node: tl.constexpr, tile: tl.constexpr, lanes: tl.constexpr,
    rank_bins: tl.constexpr, keyed: tl.constexpr,
):  # fmt: skip
    """Every list of this rank as a source, but for slots; ``scratch`` and ``lists`` have columns of
    ``num_points`` elements of room, in the order that ``plan/device/source.py`` gives."""
    source, point, exists, segment, k = tile_points(num_points, fanout, tile, lanes)
    to_rank = tl.load(words(ranks) + point, mask=exists, other=-1)
    rank, live = to_rank.to(tl.int32), to_rank >= 0
    num_ranks, ranks_per_node = num_ranks.to(tl.int32), ranks_per_node.to(tl.int32)
    num_nodes, my_node = num_ranks // ranks_per_node, my_node.to(tl.int32)
    before, in_pair, leads_pair, leads_far, leads_row, node = leads(
        rank, live, segment, k, my_node, num_ranks, ranks_per_node, by_rank, by_node, lanes
    )
    leads_near = leads_pair & (node == my_node)
    counts = words(census) + 2
    lower = halves(tiles) + tl.program_id(0).to(tl.int64) * num_columns
    same_rank = before & (rank[None, :] == rank[:, None])
    same_node = before & (node[None, :] == node[:, None])
    same_source = segment[None, :] == segment[:, None]
    stays, leaves = both(live, leads_near), both(leads_near, leads_row)
    points_before, near = numbers(before, stays)
    of_rank, pairs_of_rank = numbers(same_rank, both(live, leads_pair))
    far, row = numbers(same_node, both(leads_far, leads_row))
    near_before, rows_before = numbers(same_source & before, leaves)
    near_here, rows_here = numbers(same_source, leaves)
    near_below, rows_below = numbers(segment[None, :] < segment[:, None], leaves)

    # The live points, in order, and where their descriptions go.
    index = total_of(lower + 1, num_ranks, rank_bins) + points_before
    to, kept = words(scratch), words(lists)
    target = tl.load(words(targets) + point, mask=live, other=0)
    tl.store(to + index, point, mask=live)
    tl.store(to + num_points + index, source, mask=live)
    tl.store(to + 2 * num_points + index, to_rank, mask=live)
    tl.store(to + 3 * num_points + index, target, mask=live)
    sent = of_rank + base(counts + 1, lower + 1, rank, num_ranks, rank_bins)
    tl.store(to + 4 * num_points + index, sent.to(tl.int64), mask=live)
    if keyed:
        of_key = tl.load(lower + 1 + 2 * num_ranks + num_nodes + target, mask=live, other=0)
        key = target.to(tl.int32)
        of_key += number(before & (key[None, :] == key[:, None]))
        tl.store(to + 5 * num_points + index, of_key.to(tl.int64), mask=live)
    pairs_of_rank += tl.load(lower + 1 + num_ranks + rank, mask=live, other=0)
    pairs_of_rank += leads_pair.to(tl.int32) - 1
    tl.store(to + 6 * num_points + index, pairs_of_rank.to(tl.int64), mask=live)

    # Copies: pairs inside the node, pairs on other nodes, network rows.
    first_far, lower_near, num_near = base_far(
        counts + 1 + num_ranks, lower + 1 + num_ranks, node, my_node, num_ranks, ranks_per_node,
        rank_bins,
    )  # fmt: skip
    near += lower_near
    far += first_far
    row += base(counts + 1 + 2 * num_ranks, lower + 1 + 2 * num_ranks, node, num_nodes, rank_bins)
    row += leads_row.to(tl.int32) - 1
    copy = tl.where(leads_near, near.to(tl.int64), num_points + far)
    copy = tl.where(leads_pair, copy, -in_pair.to(tl.int64))
    tl.store(to + 7 * num_points + index, copy, mask=live)
    tl.store(to + 8 * num_points + far, row.to(tl.int64), mask=leads_far)
    tl.store(to + 9 * num_points + row, source, mask=leads_row)
    local = to_rank - (my_node * ranks_per_node).to(tl.int64)
    tl.store(kept + near, local, mask=leads_near)
    tl.store(kept + num_points + row, row.to(tl.int64), mask=leads_row)

    # The terms of every source: its pairs inside the node, then its network rows.
    begin = lower_near + total_of(lower + 1 + 2 * num_ranks, num_nodes, rank_bins)
    begin += near_below + rows_below
    end = begin + near_here + rows_here
    is_source = exists & (k == 0)
    tl.store(kept + 2 * num_points + source, begin.to(tl.int64), mask=is_source)
    tl.store(kept + 3 * num_points + source, end.to(tl.int64), mask=is_source)
    to_terms = kept + 4 * num_points + begin
    tl.store(to_terms + near_before, near.to(tl.int64), mask=leads_near)
    tl.store(to_terms + near_here + rows_before, (num_near + row).to(tl.int64), mask=leads_row)

    for column in range(num_strides + 1):
        at = tl.where(column == 0, address0, address1)
        at = tl.where(column == 2, address2, tl.where(column == 3, address3, at))
        copy_address(
            kept, num_points, 5 + 3 * column, at, source, fanout, row, leads_row, near, leads_near,
            is_source,
        )  # fmt: skip
