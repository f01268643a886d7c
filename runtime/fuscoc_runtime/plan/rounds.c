/* Slots, stages of a fixed order and rounds of slices: what numpy says in slots.py, schedule.py and
 * rounds.py, in one pass each. A rank needs them before it can send, and dozens of operations on
 * small arrays cost several times as much. Rows are segments.
 */
#include "plan.h"

static i64 total(const i64 *values, i64 count, i64 stride)
{
    i64 sum = 0;
    for (i64 k = 0; k < count; k++)
        sum += values[k * stride];
    return sum;
}

/* Stages of a fixed order of the nodes: in stage k node i sends all it has for node order[k][i].
 * pairs[s][r]: rows from rank s to rank r. tile[i][q]: the most that one rank sends or receives of
 * what node i sends to node q. peer, begin, end: see ``Schedule``; returns the number of stages, in
 * which something moves. */
i64 fuscoc_stages(i64 n, i64 m, const i64 *pairs, i64 num_orders, const i64 *order, i64 *tile,
                  i64 *peer, i64 *begin, i64 *end)
{
    i64 ranks = n * m, used = 0;
    for (i64 i = 0; i < n; i++)
        for (i64 q = 0; q < n; q++) {
            const i64 *rows = pairs + i * m * ranks + q * m;
            i64 most = 0;
            for (i64 l = 0; l < m; l++)
                most = max64(most, max64(total(rows + l * ranks, m, 1), total(rows + l, m, ranks)));
            tile[i * n + q] = most;
        }
    for (i64 k = 0; k < num_orders; k++, order += n) {
        i64 moved = 0;
        for (i64 i = 0; i < n; i++) {
            i64 rows = tile[i * n + order[i]];
            peer[used * n + i] = rows ? order[i] : -1;
            begin[used * n + i] = 0;
            end[used * n + i] = rows;
            moved |= rows;
        }
        used += moved != 0;
    }
    return used;
}

/* The slices of one direction: columns with room for so many, of which ``count`` are needed. */
typedef struct {
    i64 *stage, *peer, *begin, *end, room, count;
} slices_t;

static slices_t columns(i64 *table, i64 room)
{
    return (slices_t){table, table + room, table + 2 * room, table + 3 * room, room, 0};
}

/* In a round: of all ranks of a node the part begin:end of ``whole``. rows[l]: all rows that are
 * exchanged with local rank l, ``stride`` apart. */
static void exchange(slices_t *to, i64 round, i64 node, i64 m, const i64 *rows, i64 stride,
                     i64 begin, i64 end, i64 whole)
{
    for (i64 l = 0; l < m; l++) {
        i64 all = rows[l * stride], first = all * begin / whole, last = all * end / whole;
        if (last <= first)
            continue;
        if (to->count < to->room) {
            to->stage[to->count] = round;
            to->peer[to->count] = node * m + l;
            to->begin[to->count] = first;
            to->end[to->count] = last;
        }
        to->count++;
    }
}

/* Cut stages (see ``Schedule``) into rounds of at most ``rows`` rows, and list what ``rank`` sends
 * and receives in them: [4][room] each. counts: slices sent and received, which may be more than
 * there is room for. Returns the number of rounds. */
i64 fuscoc_slices(i64 n, i64 m, i64 num_stages, const i64 *peer, const i64 *begin, const i64 *end,
                  const i64 *tile, i64 rows, i64 rank, const i64 *pairs, i64 room, i64 *sent,
                  i64 *received, i64 *counts)
{
    i64 ranks = n * m, node = rank / m, round = 0;
    slices_t out = columns(sent, room), in = columns(received, room);
    for (i64 k = 0; k < num_stages; k++, peer += n, begin += n, end += n) {
        i64 length = 0;
        for (i64 i = 0; i < n; i++)
            length = max64(length, end[i] - begin[i]);
        i64 pieces = (length + rows - 1) / rows, even = pieces ? (length + pieces - 1) / pieces : 0;
        for (i64 piece = 0; piece < pieces; piece++, round++)
            for (i64 i = 0; i < n; i++) {
                i64 q = peer[i], first = min64(begin[i] + piece * even, end[i]);
                i64 last = min64(first + even, end[i]);
                if (last <= first || q < 0)
                    continue;
                if (i == node)
                    exchange(&out, round, q, m, pairs + rank * ranks + q * m, 1, first, last,
                             tile[i * n + q]);
                if (q == node)
                    exchange(&in, round, i, m, pairs + i * m * ranks + rank, ranks, first, last,
                             tile[i * n + q]);
            }
    }
    counts[0] = out.count;
    counts[1] = in.count;
    return round;
}

/* Divide slots among keys. keys[s * stride + k]: points of rank s with key k. The keys of rank r are
 * by_rank[bounds[r]:bounds[r + 1]]; each takes whole blocks of ``align`` slots. blocks[r]: those of
 * rank r. first[k]: where at its rank the points of ``rank`` begin. counts, offsets: the points of
 * every key of ``rank`` and its first slot, and the end. Slots wrap if there are too many. */
void fuscoc_slots(i64 num_ranks, const i64 *keys, i64 stride, const i64 *by_rank, const i64 *bounds,
                  i64 align, i64 rank, i64 *blocks, i64 *first, i64 *counts, i64 *offsets)
{
    for (i64 owner = 0; owner < num_ranks; owner++) {
        i64 taken = 0;
        for (i64 j = bounds[owner]; j < bounds[owner + 1]; j++) {
            const i64 *points = keys + by_rank[j];
            i64 earlier = total(points, rank, stride);
            i64 all = earlier + total(points + rank * stride, num_ranks - rank, stride);
            i64 begin = (i64)((u64)taken * (u64)align);
            first[by_rank[j]] = (i64)((u64)begin + (u64)earlier);
            if (owner == rank) {
                *counts++ = all;
                *offsets++ = begin;
            }
            taken += all / align + (all % align != 0);
        }
        blocks[owner] = taken;
        if (owner == rank)
            *offsets = (i64)((u64)taken * (u64)align);
    }
}
