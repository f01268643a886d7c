/* Slots and stages of a fixed order: what numpy says in slots.py and schedule.py, in one pass each.
 * Dozens of operations on small arrays cost several times as much. Rows are segments.
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
