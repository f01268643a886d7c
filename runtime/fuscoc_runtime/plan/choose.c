/* Forwarders and stages of the network hop, by predicted completion: what choose.py tells. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

static const double TOLERANCE = 0.01; /* of cost.py, as the next one */
static const i64 PIPELINE_DEPTH = 16;

enum { PAIRWISE, SPREAD_OUT, FAST, AUTO_SCHEDULE, NUM_KINDS = AUTO_SCHEDULE };

double fuscoc_nic_seconds(const network_t *net, i64 segments)
{
    return (double)(segments * net->segment_bytes) / net->nic;
}

/* ``simplest`` of cost.py: the first choice within TOLERANCE of the fastest. ``seconds`` makes one
 * and tells its time, which cannot be less than its bound, given a time that is too long; -1 without
 * memory. chosen: the time of the choice. */
static i64 simplest(network_t *net, i64 count, const double *bound,
                    double (*seconds)(network_t *, i64, double), double *chosen)
{
    double time[NUM_POLICIES], skipped = INFINITY, fastest = INFINITY;
    i64 order[NUM_POLICIES], made[NUM_POLICIES] = {0};
    for (i64 k = 0; k < count; k++) {
        i64 at = k;
        for (; at > 0 && bound[order[at - 1]] > bound[k]; at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
    for (i64 k = 0; k < count; k++) {
        i64 number = order[k], suffices = 0;
        if (bound[number] > fastest * (1 + TOLERANCE))
            break;
        double near = bound[number] * (1 + TOLERANCE);
        for (i64 other = 0; other < number; other++)
            suffices |= made[other] && time[other] <= near;
        if (suffices) {
            skipped = min_f(skipped, bound[number]);
            continue;
        }
        time[number] = seconds(net, number, fastest * (1 + TOLERANCE));
        if (time[number] < 0)
            return -1;
        made[number] = 1;
        fastest = min_f(fastest, time[number]);
    }
    double limit = min_f(fastest, skipped) * (1 + TOLERANCE);
    for (i64 number = 0; number < count; number++)
        if (made[number] && time[number] <= limit) {
            *chosen = time[number];
            return number;
        }
    return -1;
}

static i64 hands_over(const network_t *net)
{
    i64 n = net->n, m = net->m;
    for (i64 s = 0; net->carried && s < n * m; s++)
        for (i64 q = 0; q < n; q++)
            for (i64 l = 0; l < m; l++)
                if (l != s % m && net->share[(s * n + q) * m + l])
                    return 1;
    return 0;
}

static double with_handover(const network_t *net, double seconds)
{
    return seconds + (hands_over(net) ? net->handover : 0.0);
}

/* ``least_of_stages``. */
static double least_of_stages(const network_t *net, const i64 *tile)
{
    i64 n = net->n, busiest = 0, starts = 0;
    for (i64 i = 0; i < n; i++) {
        i64 sent = 0, received = 0, targets = 0, sources = 0;
        for (i64 q = 0; q < n; q++) {
            sent += tile[i * n + q];
            received += tile[q * n + i];
            targets += tile[i * n + q] > 0;
            sources += tile[q * n + i] > 0;
        }
        busiest = max64(busiest, max64(sent, received));
        starts = max64(starts, max64(targets, sources));
    }
    return fuscoc_nic_seconds(net, busiest) + (double)starts * net->latency;
}

/* ``Assignment.pairs``, and the most rows that a rank sends or receives. */
static void count_pairs(network_t *net)
{
    i64 n = net->n, m = net->m, ranks = n * m;
    net->busiest = 0;
    memset(net->pairs, 0, sizeof(i64) * (size_t)(ranks * ranks));
    for (i64 s = 0; s < ranks; s++)
        for (i64 q = 0; q < n; q++)
            for (i64 l = 0; l < m; l++) {
                i64 sender = net->carried ? s / m * m + l : s;
                net->pairs[sender * ranks + q * m + l] += net->share[(s * n + q) * m + l];
            }
    for (i64 r = 0; r < ranks; r++) {
        i64 sent = 0, received = 0;
        for (i64 other = 0; other < ranks; other++) {
            sent += net->pairs[r * ranks + other];
            received += net->pairs[other * ranks + r];
        }
        net->busiest = max64(net->busiest, max64(sent, received));
    }
}

/* Takes the forwarders of a policy; -1 without memory. */
static i64 assign(network_t *net, i64 policy)
{
    net->policy = policy;
    net->kind = -1;
    if (fuscoc_assign(net, policy) < 0)
        return -1;
    count_pairs(net);
    return 0;
}

/* ``arrange``: makes the stages; -1 without memory. */
static i64 arrange(network_t *net, i64 kind)
{
    i64 n = net->n;
    i64 orders = kind == FAST ? 0 : net->num_orders[kind];
    const i64 *order = kind == FAST ? NULL : net->order[kind];
    net->num_stages = fuscoc_stages(n, net->m, net->pairs, orders, order, net->tile, net->peer,
                                    net->begin, net->end);
    if (kind == FAST) {
        i64 grain = max64(1, (i64)(net->latency * net->nic / (double)net->segment_bytes));
        net->num_stages = fuscoc_decompose(n, net->tile, grain, net->peer, net->begin, net->end);
    }
    net->kind = kind;
    return net->num_stages < 0 ? -1 : 0;
}

/* ``Loads`` of the assignment; -1 without memory. */
static i64 count_loads(network_t *net)
{
    loads_t *loads = &net->loads;
    return fuscoc_loads(net->n, net->m, net->flows, net->share, net->copies, net->carried,
                        loads->tile, loads->balance, loads->redistribution, loads->node_tile,
                        loads->node_balance, loads->node_redistribution, loads->local);
}

/* ``predict_stages``, given the loads; -1 without memory. */
static double seconds_of_kind(network_t *net, i64 kind, double limit)
{
    (void)limit;
    if (arrange(net, kind) < 0)
        return -1;
    i64 n = net->n, stages = net->num_stages, total = 0;
    const loads_t *loads = &net->loads;
    i64 *network = calloc((size_t)(stages + 1), sizeof(i64));
    double *give = calloc((size_t)(2 * stages * n + 1), sizeof(double)), seconds = -1;
    if (network && give) {
        double *forward = give + stages * n;
        for (i64 k = 0; k < stages; k++) {
            for (i64 i = 0; i < n; i++) {
                i64 at = k * n + i, length = net->end[at] - net->begin[at], q = net->peer[at];
                network[k] = max64(network[k], length);
                if (!length)
                    continue;
                double part = (double)length / (double)loads->tile[i * n + q];
                give[at] = part * loads->balance[i * n + q];
                forward[k * n + q] = part * loads->redistribution[i * n + q];
            }
            total += network[k];
        }
        i64 most = net->slice_bytes / net->segment_bytes;
        i64 slice = max64(1, min64(most, (total + PIPELINE_DEPTH - 1) / PIPELINE_DEPTH));
        seconds = with_handover(net, fuscoc_pipeline(n, stages, network, give, forward,
                                                     loads->local, net->wire, slice));
    }
    free(network);
    free(give);
    return seconds;
}

/* ``arrange_stages``, and ``staged_seconds``; -1 without memory. The stages of another kind may be
 * arranged, or none if they take longer than the limit. */
static i64 choose_stages(network_t *net, double limit, double *seconds)
{
    if (count_loads(net) < 0)
        return -1;
    double least = with_handover(net, least_of_stages(net, net->loads.tile));
    if (least > limit) {
        *seconds = INFINITY;
        return net->rule;
    }
    if (net->rule != AUTO_SCHEDULE) {
        *seconds = seconds_of_kind(net, net->rule, limit);
        return *seconds < 0 ? -1 : net->rule;
    }
    double bound[NUM_KINDS] = {least, least, least};
    return simplest(net, NUM_KINDS, bound, seconds_of_kind, seconds);
}

static double seconds_of_policy(network_t *net, i64 policy, double limit)
{
    double seconds;
    if (assign(net, policy) < 0)
        return -1;
    net->kind_of[policy] = choose_stages(net, limit, &seconds);
    return net->kind_of[policy] < 0 ? -1 : seconds;
}

/* ``choose_forwarders``; the policy, or -1 without memory. */
static i64 choose_policy(network_t *net)
{
    i64 n = net->n, m = net->m, *largest = net->loads.tile, *level = net->tile;
    for (i64 i = 0; i < n; i++)
        for (i64 q = 0; q < n; q++) {
            i64 most = 0, all = 0;
            for (i64 a = 0; a < m; a++) {
                i64 flow = net->flows[(i * m + a) * n + q];
                most = max64(most, flow);
                all += flow;
            }
            largest[i * n + q] = most;
            level[i * n + q] = (all + m - 1) / m;
        }
    double seconds, alone = least_of_stages(net, largest);
    double together = min_f(alone, least_of_stages(net, level) + net->handover);
    double bound[NUM_POLICIES] = {alone, alone, alone, alone, together};
    return simplest(net, NUM_POLICIES, bound, seconds_of_policy, &seconds);
}

static i64 choose(network_t *net, i64 policy, i64 kind)
{
    double seconds;
    net->rule = kind;
    net->policy = -1;
    if (policy == AUTO_BALANCE) {
        policy = choose_policy(net);
        if (policy < 0)
            return -1;
        kind = net->kind_of[policy];
    }
    if (net->policy != policy && assign(net, policy) < 0)
        return -1;
    if (!net->busiest)
        return PAIRWISE;
    if (kind == AUTO_SCHEDULE)
        kind = choose_stages(net, INFINITY, &seconds);
    return kind < 0 || (net->kind != kind && arrange(net, kind) < 0) ? -1 : kind;
}

/* Makes the assignment and, if anything crosses, the stages. Returns their kind, or -1 without
 * memory. */
i64 fuscoc_choose(network_t *net, i64 policy, i64 kind)
{
    i64 n = net->n;
    if (kind == AUTO_SCHEDULE && n == 2)
        kind = PAIRWISE;
    if (policy != AUTO_BALANCE && kind != AUTO_SCHEDULE)
        return choose(net, policy, kind);
    /* Tables of n * n, too large for the stack where nodes are many. */
    i64 *memory = malloc(sizeof(i64) * (size_t)(n * n + 2 * n) +
                         sizeof(double) * (size_t)(2 * n * n + 2 * n));
    if (!memory)
        return -1;
    loads_t *loads = &net->loads;
    loads->tile = memory;
    loads->node_tile = loads->tile + n * n;
    loads->local = loads->node_tile + n;
    loads->balance = (double *)(loads->local + n);
    loads->redistribution = loads->balance + n * n;
    loads->node_balance = loads->redistribution + n * n;
    loads->node_redistribution = loads->node_balance + n;
    i64 chosen = choose(net, policy, kind);
    free(memory);
    return chosen;
}
