/* The cost model's loops: what an assignment loads on NICs and NVLink, and how long stages take.
 *
 * The model is told in cost.py. All amounts are segments.
 */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* What one rank sends or receives in all, by the kind of wire and work. */
typedef struct {
    i64 send, receive, give, take, inside_out, inside_in;
    double forward, accept;
} rank_load_t;

/* One tile: everything from node i to node q. Adds to its ranks' loads; *tile is the most that one
 * rank sends or receives of it, *balance and *redistribution what one rank does on NVLink. */
static void load_tile(i64 n, i64 m, i64 i, i64 q, const i64 *flows, const i64 *share,
                      const i64 *copies, i64 carried, rank_load_t *loads, i64 *tile,
                      double *balance, double *redistribution)
{
    rank_load_t at_source[m], at_target[m];
    memset(at_source, 0, sizeof at_source);
    memset(at_target, 0, sizeof at_target);
    for (i64 a = 0; a < m; a++) {
        i64 s = i * m + a, flow = flows[s * n + q];
        if (!flow)
            continue;
        const i64 *part = share + (s * n + q) * m, *to = copies + s * n * m + q * m;
        double per_row = 1.0 / (double)flow, all = 0;
        for (i64 l = 0; l < m; l++)
            all += (double)to[l];
        for (i64 l = 0; l < m; l++) {
            double taken = (double)part[l] * per_row;
            at_target[l].receive += part[l];
            at_target[l].forward += (all - (double)to[l]) * taken;
            at_target[l].accept += (double)to[l] * (1 - taken);
            at_source[carried ? l : a].send += part[l];
            if (carried && l != a) {
                at_source[a].give += part[l];
                at_source[l].take += part[l];
            }
        }
    }
    *tile = 0;
    *balance = *redistribution = 0;
    for (i64 l = 0; l < m; l++) {
        rank_load_t *source = loads + i * m + l, *target = loads + q * m + l;
        source->send += at_source[l].send;
        source->give += at_source[l].give;
        source->take += at_source[l].take;
        target->receive += at_target[l].receive;
        target->forward += at_target[l].forward;
        target->accept += at_target[l].accept;
        *tile = max64(*tile, max64(at_source[l].send, at_target[l].receive));
        *balance = max_f(*balance, (double)max64(at_source[l].give, at_source[l].take));
        *redistribution = max_f(*redistribution, max_f(at_target[l].forward, at_target[l].accept));
    }
}

/* By tile, [n][n]: tile, balance, redistribution. By node, [n]: the busiest rank's sums of the
 * same over all tiles, and local, the copies inside the node. Returns -1 without memory. */
i64 fuscoc_loads(i64 n, i64 m, const i64 *flows, const i64 *share, const i64 *copies, i64 carried,
                 i64 *tile, double *balance, double *redistribution, i64 *node_tile,
                 double *node_balance, double *node_redistribution, i64 *local)
{
    rank_load_t *loads = calloc((size_t)(n * m), sizeof(rank_load_t));
    if (!loads)
        return -1;
    for (i64 i = 0; i < n; i++)
        for (i64 q = 0; q < n; q++) {
            i64 cell = i * n + q;
            if (i != q) {
                load_tile(n, m, i, q, flows, share, copies, carried, loads, tile + cell,
                          balance + cell, redistribution + cell);
                continue;
            }
            tile[cell] = 0;
            balance[cell] = redistribution[cell] = 0;
            for (i64 a = 0; a < m; a++)
                for (i64 r = 0; r < m; r++)
                    if (a != r) {
                        i64 inside = copies[(i * m + a) * n * m + i * m + r];
                        loads[i * m + a].inside_out += inside;
                        loads[i * m + r].inside_in += inside;
                    }
        }
    for (i64 i = 0; i < n; i++) {
        node_tile[i] = local[i] = 0;
        node_balance[i] = node_redistribution[i] = 0;
        for (i64 l = 0; l < m; l++) {
            const rank_load_t *rank = loads + i * m + l;
            node_tile[i] = max64(node_tile[i], max64(rank->send, rank->receive));
            node_balance[i] = max_f(node_balance[i], (double)max64(rank->give, rank->take));
            node_redistribution[i] =
                max_f(node_redistribution[i], max_f(rank->forward, rank->accept));
            local[i] = max64(local[i], max64(rank->inside_out, rank->inside_in));
        }
    }
    free(loads);
    return 0;
}

/* Seconds until NICs and NVLink are done. NVLink of node i does its balance, its local part, then
 * the redistribution of what arrived. A slice enters the network when every node has balanced that
 * far, and is redistributed after it arrived. wire: seconds of a segment on a NIC, on NVLink, and
 * seconds to start a stage. network: [stages]; balance, redistribution: [stages][n] by node. */
double fuscoc_pipeline(i64 n, i64 stages, const i64 *network, const double *balance,
                       const double *redistribution, const i64 *local, const double *wire,
                       i64 slice)
{
    double moved[n], busy[n], sent = 0, done = 0;
    for (i64 i = 0; i < n; i++) {
        moved[i] = 0;
        busy[i] = (double)local[i] * wire[1];
        for (i64 k = 0; k < stages; k++)
            busy[i] += balance[k * n + i] * wire[1];
    }
    for (i64 k = 0; k < stages; k++) {
        i64 slices = (network[k] + slice - 1) / slice;
        double part = 1.0 / (double)slices;
        for (i64 c = 0; c < slices; c++) {
            for (i64 i = 0; i < n; i++) {
                moved[i] += balance[k * n + i] * part * wire[1];
                sent = max_f(sent, moved[i]);
            }
            sent += (double)network[k] * part * wire[0] + (c ? 0 : wire[2]);
            for (i64 i = 0; i < n; i++)
                if (redistribution[k * n + i] > 0)
                    busy[i] = max_f(busy[i], sent) + redistribution[k * n + i] * part * wire[1];
        }
    }
    for (i64 i = 0; i < n; i++)
        done = max_f(done, busy[i]);
    return max_f(done, sent);
}
