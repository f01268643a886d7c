/* Rows that another rank of the node sends: the lists that carry.py tells of, in one pass over the
 * slices of a node's ranks.
 */
#include <stdlib.h>

#include "plan.h"

/* Columns to be filled, and how far they are. */
typedef struct {
    i64 *carry_row, *carry_peer, *carry_dst, *own_row, *own_dst, *carried_src, *carried_dst;
    i64 *back_src, *back_peer, *back_dst, *row_round;
    i64 *handed, *own, *taken; /* by round */
    i64 num_own, num_taken, num_back;
} lists_t;

/* Consecutive rows of ``source`` that ``sender`` sends in ``round``. ``row``: the place of the first
 * among the network rows of their source; ``slice``: among all that the sender sends, by forwarder;
 * ``window``: in the sender's window, if they are another's. */
typedef struct {
    i64 sender, source, row, slice, window, round, length;
} run_t;

static void take(lists_t *to, const run_t *run, i64 m, i64 rank, const i64 *num_direct)
{
    i64 own = run->source == rank;
    for (i64 k = 0; k < run->length; k++) {
        i64 row = run->row + k, slice = run->slice + k;
        if (own) {
            to->own_row[to->num_own] = row;
            to->own_dst[to->num_own++] = slice;
            to->row_round[row] = run->round;
        } else {
            to->carried_src[to->num_taken] = run->window + k;
            to->carried_dst[to->num_taken++] = slice;
        }
        to->back_src[to->num_back] = slice;
        to->back_peer[to->num_back] = run->source % m;
        to->back_dst[to->num_back++] = num_direct[run->source] + row;
    }
    (own ? to->own : to->taken)[run->round] += run->length;
}

/* ``at``: by round, where its next entry goes. */
static void hand(lists_t *to, const run_t *run, i64 m, i64 *at)
{
    for (i64 k = 0; k < run->length; k++) {
        i64 place = at[run->round]++;
        to->carry_row[place] = run->row + k;
        to->carry_peer[place] = run->sender % m;
        to->carry_dst[place] = run->window + k;
        to->row_round[run->row + k] = run->round;
    }
}

static i64 before(const i64 *counts, i64 end)
{
    i64 sum = 0;
    for (i64 k = 0; k < end; k++)
        sum += counts[k];
    return sum;
}

/* Stages, ``round_rows`` and ``pairs`` as of ``fuscoc_slices``. rows[s][r]: network rows by source
 * and forwarder. num_direct[r]: entries of every rank's ``direct``. Of ``rank``: handed, own, taken:
 * rows that others send for it, that it sends itself, and that it sends for others. Columns, one
 * behind the other: first [3 * handed + 2 * own + 2 * taken]: of carry and of net_send the row,
 * dst_peer and dst_row of carry, dst_row of net_send, src_row and dst_row of carried; back
 * [3 * (own + taken)]: those of hand_back; row_round [handed + own]. counts [3 * num_rounds], zero:
 * entries of carry, net_send and carried by round. Returns -1 without memory. */
i64 fuscoc_handover(i64 n, i64 m, i64 num_stages, const i64 *peer, const i64 *begin, const i64 *end,
                    const i64 *tile, i64 round_rows, i64 rank, const i64 *pairs, const i64 *rows,
                    const i64 *num_direct, i64 num_rounds, i64 handed, i64 own, i64 taken,
                    i64 *first, i64 *back, i64 *row_round, i64 *counts)
{
    i64 ranks = n * m, node = rank / m, room = num_rounds * m, num[2];
    i64 *scratch = malloc(sizeof(i64) * (size_t)(8 * room + num_rounds + 1));
    if (!scratch)
        return -1;
    i64 *sent = scratch, *at = scratch + 8 * room;
    i64 *own_row = first + handed, *carry_peer = own_row + own, *carry_dst = carry_peer + handed;
    i64 *own_dst = carry_dst + handed, *carried_src = own_dst + own;
    lists_t to = {
        .carry_row = first, .carry_peer = carry_peer, .carry_dst = carry_dst,
        .own_row = own_row, .own_dst = own_dst,
        .carried_src = carried_src, .carried_dst = carried_src + taken,
        .back_src = back, .back_peer = back + own + taken, .back_dst = back + 2 * (own + taken),
        .row_round = row_round,
        .handed = counts, .own = counts + num_rounds, .taken = counts + 2 * num_rounds,
    };
    /* What is handed over is counted by round before it is listed by round. */
    for (i64 listing = 0; listing < 2; listing++) {
        if (listing) {
            at[0] = 0;
            for (i64 k = 0; k < num_rounds; k++)
                at[k + 1] = at[k] + to.handed[k];
        }
        for (i64 a = 0; a < m; a++) {
            i64 sender = node * m + a, window = 0;
            fuscoc_slices(n, m, num_stages, peer, begin, end, tile, round_rows, sender, pairs, room,
                          sent, sent + 4 * room, num);
            for (i64 k = 0; k < num[0]; k++) {
                i64 forwarder = sent[room + k], passed = 0;
                i64 from = sent[2 * room + k], until = sent[3 * room + k];
                i64 place = before(pairs + sender * ranks, forwarder);
                for (i64 j = 0; j < m; j++) { /* the sender's own rows come first */
                    i64 source = j == 0 ? sender : node * m + (j <= a ? j - 1 : j);
                    i64 all = rows[source * ranks + forwarder], begins = passed;
                    i64 low = max64(begins, from), length = min64(begins + all, until) - low;
                    passed += all;
                    if (length <= 0)
                        continue;
                    run_t run = {
                        sender, source, before(rows + source * ranks, forwarder) + low - begins,
                        place + low, window, sent[k], length,
                    };
                    if (source != sender)
                        window += length;
                    if (listing && sender == rank)
                        take(&to, &run, m, rank, num_direct);
                    else if (listing && source == rank)
                        hand(&to, &run, m, at);
                    else if (source == rank && sender != rank)
                        to.handed[run.round] += length;
                }
            }
        }
    }
    free(scratch);
    return 0;
}
