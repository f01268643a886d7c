/* Who forwards which flow: the policies of balance.py, which tells them; the longer ones are in
 * fast.c. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* ``greedy_groups``: FUSCO's Algorithm 1. */
static i64 share_by_groups(network_t *net)
{
    i64 n = net->n, m = net->m, *order = malloc(sizeof(i64) * (size_t)(2 * n * m));
    if (!order)
        return -1;
    i64 *group = order + n * m; /* of every rank; ``order``: local ranks of a node, busiest first */
    for (i64 i = 0; i < n; i++) {
        i64 load[m], *mine = order + i * m;
        for (i64 a = 0; a < m; a++) {
            load[a] = 0;
            for (i64 q = 0; q < n; q++)
                load[a] += net->flows[(i * m + a) * n + q];
            i64 at = a;
            for (; at > 0 && load[mine[at - 1]] < load[a]; at--)
                mine[at] = mine[at - 1];
            mine[at] = a;
        }
        for (i64 place = 0; place < m; place++)
            group[i * m + mine[place]] = ((place - i) % m + m) % m;
    }
    for (i64 s = 0; s < n * m; s++)
        for (i64 q = 0; q < n; q++)
            net->share[(s * n + q) * m + order[q * m + (group[s] + q) % m]] = net->flows[s * n + q];
    free(order);
    return 0;
}

/* ``split``: the flows into a node, end to end, cut into equal parts. */
static void share_evenly(network_t *net)
{
    i64 n = net->n, m = net->m, ranks = n * m;
    for (i64 q = 0; q < n; q++) {
        i64 all = 0, end = 0;
        for (i64 s = 0; s < ranks; s++)
            all += net->flows[s * n + q];
        for (i64 s = 0; s < ranks; s++) {
            i64 begin = end;
            end += net->flows[s * n + q];
            for (i64 l = 0; l < m; l++) {
                i64 from = max64(begin, all * l / m), to = min64(end, all * (l + 1) / m);
                net->share[(s * n + q) * m + l] = max64(to - from, 0);
            }
        }
    }
}

/* Makes ``share`` and ``carried``; -1 without memory. */
i64 fuscoc_assign(network_t *net, i64 policy)
{
    i64 n = net->n, m = net->m;
    net->carried = policy == REBALANCE;
    memset(net->share, 0, sizeof(i64) * (size_t)(n * m * n * m));
    switch (policy) {
    case NONE:
        for (i64 s = 0; s < n * m; s++)
            for (i64 q = 0; q < n; q++)
                net->share[(s * n + q) * m + s % m] = net->flows[s * n + q];
        return 0;
    case GREEDY:
        return share_by_groups(net);
    case LPT:
        return fuscoc_lpt(n, m, net->flows, net->share);
    case SPLIT:
        share_evenly(net);
        return 0;
    default:
        fuscoc_rebalance(n, m, net->flows, net->share, net->tile);
        return 0;
    }
}
