/* Where rows of flows lie, and what one rank sends and gets of them, stage by stage: what
 * engine/node/ways.py tells. All ranks wait for it before rows travel.
 */
#include <stdlib.h>

#include "plan.h"

enum { PART = 3, MOVE = 5 }; /* words of a part of a flow, and of a move */
enum { NUM_MOVES, MOST_ROWS, HANDED_OVER };

/* What all of this knows of one shuffle: ``Assignment`` and its ``pairs``. Of every rank of one node:
 * rows of its memory before those that it sends to a rank, ``sent`` [m][ranks], and gets from one,
 * ``got`` [ranks][m]. */
typedef struct {
    i64 n, m, ranks, carried;
    const i64 *share, *pairs;
    i64 *sent, *got;
} flows_t;

static i64 share_of(const flows_t *flows, i64 source, i64 node, i64 part)
{
    return flows->share[(source * flows->n + node) * flows->m + part];
}

/* Of the rows that one rank sends another: where those of a flow begin, whose ``part`` they are. The
 * sender's own come first, then those of its neighbours in their order. */
static i64 before(const flows_t *flows, i64 source, i64 node, i64 part)
{
    i64 first = source / flows->m * flows->m, sender = first + part;
    if (!flows->carried || source == sender)
        return 0;
    i64 rows = share_of(flows, sender, node, part);
    for (i64 other = first; other < source; other++)
        rows += other == sender ? 0 : share_of(flows, other, node, part);
    return rows;
}

/* Fills in ``sent`` and ``got`` for a node, and returns the most rows that any rank of the job sends
 * or gets; ``all``: [ranks], 0. */
static i64 lay_out(const flows_t *flows, i64 node, i64 *all)
{
    i64 m = flows->m, ranks = flows->ranks, most = 0;
    for (i64 sender = 0; sender < ranks; sender++) {
        const i64 *to = flows->pairs + sender * ranks;
        i64 local = sender - node * m, rows = 0;
        for (i64 l = 0; l < m; l++)
            flows->got[sender * m + l] = all[node * m + l];
        for (i64 rank = 0; rank < ranks; rank++) {
            if (0 <= local && local < m)
                flows->sent[local * ranks + rank] = rows;
            rows += to[rank];
            all[rank] += to[rank];
        }
        most = max64(most, rows);
    }
    for (i64 rank = 0; rank < ranks; rank++)
        most = max64(most, all[rank]);
    return most;
}

static i64 sent_at(const flows_t *flows, i64 sender, i64 rank)
{
    return flows->sent[sender % flows->m * flows->ranks + rank];
}

static i64 got_at(const flows_t *flows, i64 rank, i64 sender)
{
    return flows->got[sender * flows->m + rank % flows->m];
}

/* The parts of one flow, as the rank that it is of finds them, or the one that takes it on. */
static void part(const flows_t *flows, i64 source, i64 node, int takes_on, i64 *to)
{
    i64 m = flows->m, end = 0;
    for (i64 l = 0; l < m; l++, to += PART) {
        i64 first = end, gets = node * m + l, sends = flows->carried ? source / m * m + l : source;
        end += share_of(flows, source, node, l);
        i64 begin = takes_on ? got_at(flows, gets, sends) : sent_at(flows, sends, gets);
        to[0] = end;
        to[1] = begin + before(flows, source, node, l) - first;
        to[2] = (takes_on ? gets : sends) % m;
    }
}

/* Of a stage what ``rank`` sends to a node, or gets from it; how many moves that is. */
static i64 move(const flows_t *flows, i64 rank, i64 node, int is_sent, i64 leg, const i64 *range,
                i64 *to)
{
    i64 m = flows->m, ranks = flows->ranks, count = 0;
    for (i64 peer = node * m; peer < (node + 1) * m; peer++) {
        i64 all = flows->pairs[is_sent ? rank * ranks + peer : peer * ranks + rank];
        i64 first = all * range[0] / range[2], end = all * range[1] / range[2];
        if (end <= first)
            continue;
        i64 at = is_sent ? sent_at(flows, rank, peer) : got_at(flows, rank, peer);
        i64 made[MOVE] = {leg, is_sent, peer, at + first, at + end};
        for (int i = 0; i < MOVE; i++)
            to[count * MOVE + i] = made[i];
        count++;
    }
    return count;
}

/* peer, begin, end, tile: of ``Schedule``. own, others: [n][m][PART]; moves: [..][MOVE], for which
 * there is room: 2 * m in every stage. found: in the order of the enum. Returns the number of legs,
 * stages in which this rank has anything to do; -1 without memory. */
i64 fuscoc_ways(i64 n, i64 m, i64 rank, i64 carried, const i64 *share, const i64 *pairs,
                i64 num_stages, const i64 *peer, const i64 *begin, const i64 *end, const i64 *tile,
                i64 *own, i64 *others, i64 *moves, i64 *found)
{
    i64 node = rank / m, ranks = n * m, legs = 0, count = 0;
    i64 *memory = calloc((size_t)((2 * m + 1) * ranks), sizeof(i64));
    if (!memory)
        return -1;
    flows_t flows = {n, m, ranks, carried, share, pairs, memory + ranks, memory + (m + 1) * ranks};
    found[MOST_ROWS] = lay_out(&flows, node, memory);
    for (i64 q = 0; q < n; q++) {
        part(&flows, rank, q, 0, own + q * m * PART);
        part(&flows, q * m + rank % m, node, 1, others + q * m * PART);
    }
    for (i64 k = 0; k < num_stages; k++, peer += n, begin += n, end += n) {
        i64 known = count;
        for (i64 i = 0; i < n; i++) {
            i64 range[3] = {begin[i], end[i], tile[i * n + node]};
            if (peer[i] == node)
                count += move(&flows, rank, i, 0, legs, range, moves + count * MOVE);
        }
        i64 to = peer[node], range[3] = {begin[node], end[node], to < 0 ? 1 : tile[node * n + to]};
        if (to >= 0)
            count += move(&flows, rank, to, 1, legs, range, moves + count * MOVE);
        legs += count > known;
    }
    found[NUM_MOVES] = count;
    found[HANDED_OVER] = 0;
    for (i64 q = 0; carried && q < n; q++)
        for (i64 l = 0; l < m; l++)
            found[HANDED_OVER] += l == rank % m ? 0 : share_of(&flows, rank, q, l);
    free(memory);
    return legs;
}
