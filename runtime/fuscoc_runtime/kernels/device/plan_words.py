"""The planner's kernel between source and receiver: what every rank has to know of the points and
pairs that it gets."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

sources = load("plan_sources")


@triton.jit
def forwarder_of(row, begin, num_ranks, steps, mask):
    """The rank that gets a row: the last whose rows do not begin behind it, by bisection."""
    low = row * 0
    high = low + num_ranks
    for _ in range(steps):
        middle = (low + high) // 2
        behind = tl.load(begin + middle, mask=mask, other=0) > row
        low, high = tl.where(behind, low, middle), tl.where(behind, middle, high)
    return low


@triton.jit(do_not_specialize=range(14))
def describe(
    scratch: tl.int64, room: tl.int64, num_live: tl.int64, key_slots: tl.int64, rank_rows: tl.int64,
    sent: tl.int64, num_ranks: tl.int64, steps: tl.int64, ranks_per_node: tl.int64,
    local_rank: tl.int64, described: tl.int64, order: tl.int64, direct_slot: tl.int64,
    forwards: tl.int64,
    keyed: tl.constexpr, compact: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The words of ``describe_points`` and ``describe_forwards``, the order in which points are
    sent, and the rows of direct pairs.

    ``scratch``: columns of ``plan_sources.place``. ``key_slots``, ``rank_rows``: this rank's
    first slot of every key, its first row at every rank. ``sent``: four columns by the ranks that
    this one's network rows go to: where these begin; the local rank; what to add to a row to get
    the landing row, and to a pair to get its number at the forwarder.
    """
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = i < num_live
    columns = sources.words(scratch)
    slot = tl.load(columns + 3 * room + i, mask=inside, other=0)
    rank = tl.load(columns + 2 * room + i, mask=inside, other=0)
    if keyed:
        first = tl.load(sources.words(key_slots) + slot, mask=inside, other=0)
        slot = first + tl.load(columns + 5 * room + i, mask=inside, other=0)
    row = slot
    if compact:
        first = tl.load(sources.words(rank_rows) + rank, mask=inside, other=0)
        row = first + tl.load(columns + 6 * room + i, mask=inside, other=0)

    copy = tl.load(columns + 7 * room + i, mask=inside, other=-1)
    near, far = (copy >= 0) & (copy < room), copy >= room
    pair = copy - room
    sent_row = tl.load(columns + 8 * room + pair, mask=far, other=0)
    begin = sources.words(sent)
    at = begin + forwarder_of(sent_row, begin, num_ranks, steps, far)
    local = tl.load(at + num_ranks, mask=far, other=0)
    landing = sent_row + tl.load(at + 2 * num_ranks, mask=far, other=0)
    position = pair + tl.load(at + 3 * num_ranks, mask=far, other=0)
    writer = tl.where(far, position * ranks_per_node + local, copy)
    writer = tl.where(near, copy * ranks_per_node + local_rank, writer)

    place = tl.load(columns + 4 * room + i, mask=inside, other=0)
    to = sources.words(described) + place * width
    tl.store(to, slot, mask=inside)
    tl.store(to + 1, writer, mask=inside)
    if width > 2:
        source = tl.load(columns + room + i, mask=inside, other=0)
        tl.store(to + 2, source, mask=inside)
    point = tl.load(columns + i, mask=inside, other=0)
    tl.store(sources.words(order) + place, point, mask=inside)
    tl.store(sources.words(direct_slot) + copy, row, mask=near)
    to = sources.words(forwards) + 2 * pair
    tl.store(to, row, mask=far)
    tl.store(to + 1, landing * ranks_per_node + rank % ranks_per_node, mask=far)
