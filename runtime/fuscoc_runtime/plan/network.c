/* The network hop of one plan in one call: who sends and who forwards what, in which stages, in
 * which rounds, and a rank's part in them. A rank cannot send before it knows.
 *
 * The same as balance.py, cost.py, schedule.py and rounds.py say in numpy, choice by choice and in
 * the order of their floating-point operations: every rank chooses for itself, and all have to
 * choose alike.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

static const double TOLERANCE = 0.01; /* of cost.py, as the next ones */
static const i64 PIPELINE_DEPTH = 16, LEAST_LANES = 2;

enum { PAIRWISE, SPREAD_OUT, FAST, AUTO_SCHEDULE, NUM_KINDS = AUTO_SCHEDULE };
enum { CARRIED, KIND, NUM_STAGES, SLICE_ROWS, NUM_ROUNDS, NUM_SENT, NUM_RECEIVED };

static double nic_seconds(const network_t *net, i64 segments)
{
    return (double)(segments * net->segment_bytes) / net->nic;
}

/* ``simplest`` of cost.py: the first choice within TOLERANCE of the fastest. ``seconds`` makes one
 * and tells its time, which cannot be less than its bound, or -1 without memory. latest: the last
 * one made, which may not be the choice. */
static i64 simplest(network_t *net, i64 count, const double *bound,
                    double (*seconds)(network_t *, i64), i64 *latest)
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
        time[number] = seconds(net, number);
        if (time[number] < 0)
            return -1;
        made[number] = 1;
        *latest = number;
        fastest = min_f(fastest, time[number]);
    }
    double limit = min_f(fastest, skipped) * (1 + TOLERANCE);
    for (i64 number = 0; number < count; number++)
        if (made[number] && time[number] <= limit)
            return number;
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

static double seconds_of_policy(network_t *net, i64 policy)
{
    if (fuscoc_assign(net, policy) < 0)
        return -1;
    double seconds =
        fuscoc_completion(net->n, net->m, net->flows, net->share, net->copies, net->carried,
                          net->wire, net->slice_bytes / net->segment_bytes, PIPELINE_DEPTH);
    return seconds < 0 ? -1 : with_handover(net, seconds);
}

/* ``oracle``. */
static double ideal_seconds(const network_t *net)
{
    i64 n = net->n, m = net->m, busiest = 0;
    for (i64 i = 0; i < n; i++) {
        i64 sent = 0, received = 0;
        for (i64 q = 0; q < n; q++)
            for (i64 a = 0; a < m; a++) {
                sent += net->flows[(i * m + a) * n + q];
                received += net->flows[(q * m + a) * n + i];
            }
        busiest = max64(busiest, max64(sent, received));
    }
    return (double)busiest / (double)m * (double)net->segment_bytes / net->nic;
}

/* ``balance``; -1 without memory. */
static i64 choose_forwarders(network_t *net, i64 policy)
{
    i64 n = net->n, busiest = 0;
    if (policy != AUTO_BALANCE)
        return fuscoc_assign(net, policy);
    for (i64 s = 0; s < n * net->m; s++) {
        i64 sent = 0;
        for (i64 q = 0; q < n; q++)
            sent += net->flows[s * n + q];
        busiest = max64(busiest, sent);
    }
    double latency = busiest ? net->latency : 0.0, ideal = ideal_seconds(net) + latency;
    double alone = max_f(nic_seconds(net, busiest) + latency, ideal);
    double bound[NUM_POLICIES] = {alone, alone, alone, alone, min_f(alone, ideal + net->handover)};
    i64 latest = -1, chosen = simplest(net, NUM_POLICIES, bound, seconds_of_policy, &latest);
    if (chosen < 0)
        return -1;
    return chosen == latest ? 0 : fuscoc_assign(net, chosen);
}

/* ``Assignment.pairs``. Returns the most rows that a rank sends or receives. */
static i64 count_pairs(network_t *net)
{
    i64 n = net->n, m = net->m, ranks = n * m, busiest = 0;
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
        busiest = max64(busiest, max64(sent, received));
    }
    return busiest;
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
    return net->num_stages < 0 ? -1 : 0;
}

/* ``predict_stages``; -1 without memory. */
static double seconds_of_kind(network_t *net, i64 kind)
{
    if (arrange(net, kind) < 0)
        return -1;
    i64 n = net->n, stages = net->num_stages, cells = n * n, total = 0;
    i64 *tile = calloc((size_t)(cells + 2 * n + stages), sizeof(i64));
    double *balance = calloc((size_t)(2 * cells + 2 * n + 2 * stages * n), sizeof(double));
    double seconds = -1;
    if (tile && balance) {
        i64 *node_tile = tile + cells, *local = node_tile + n, *network = local + n;
        double *redistribution = balance + cells, *node_balance = redistribution + cells;
        double *node_redistribution = node_balance + n, *give = node_redistribution + n;
        double *forward = give + stages * n;
        if (fuscoc_loads(n, net->m, net->flows, net->share, net->copies, net->carried, tile,
                         balance, redistribution, node_tile, node_balance, node_redistribution,
                         local) == 0) {
            for (i64 k = 0; k < stages; k++) {
                for (i64 i = 0; i < n; i++) {
                    i64 at = k * n + i, length = net->end[at] - net->begin[at], q = net->peer[at];
                    network[k] = max64(network[k], length);
                    if (!length)
                        continue;
                    double part = (double)length / (double)tile[i * n + q];
                    give[at] = part * balance[i * n + q];
                    forward[k * n + q] = part * redistribution[i * n + q];
                }
                total += network[k];
            }
            i64 most = net->slice_bytes / net->segment_bytes;
            i64 slice = max64(1, min64(most, (total + PIPELINE_DEPTH - 1) / PIPELINE_DEPTH));
            seconds = with_handover(net, fuscoc_pipeline(n, stages, network, give, forward, local,
                                                         net->wire, slice));
        }
    }
    free(tile);
    free(balance);
    return seconds;
}

/* ``arrange_stages``; returns the kind, or -1 without memory. */
static i64 choose_stages(network_t *net, i64 kind)
{
    if (kind == AUTO_SCHEDULE && net->n == 2)
        kind = PAIRWISE;
    i64 latest = -1;
    if (kind == AUTO_SCHEDULE) {
        double ideal = ideal_seconds(net), bound[NUM_KINDS] = {ideal, ideal, ideal};
        kind = simplest(net, NUM_KINDS, bound, seconds_of_kind, &latest);
    }
    return kind < 0 || (kind != latest && arrange(net, kind) < 0) ? -1 : kind;
}

/* ``slice_rows``. */
static i64 rows_of_slice(const network_t *net, i64 total)
{
    double bytes = (double)(total * net->row_bytes), row_bytes = (double)net->row_bytes;
    double best = max_f(row_bytes, sqrt(bytes * net->latency * net->nvlink / 2));
    i64 most = max64(1, net->slice_bytes / max64(1, net->row_bytes)), worthwhile = net->num_lanes;
    if (net->latency > 0)
        worthwhile = (i64)min_f(nic_seconds(net, total) / net->latency, (double)worthwhile);
    i64 lanes = min64(net->num_lanes, max64(LEAST_LANES, worthwhile));
    i64 per_lane = (i64)nearbyint(bytes / ((double)lanes * best));
    per_lane = max64(max64(per_lane, (total + lanes * most - 1) / (lanes * most)), 1);
    return (total + lanes * per_lane - 1) / (lanes * per_lane);
}

/* speeds: bytes a second of a NIC and of NVLink, seconds that a stage and a hand-over cost. sizes:
 * bytes of a segment, of a slice at most and of a row, lanes. The stages have room for
 * ``room_stages``, slices for ``room``, as in rounds.c. pairs: as of ``Assignment``. found: what
 * there is, in the order of the enum; NUM_ROUNDS 0 if nothing crosses. Returns -1 without memory. */
i64 fuscoc_network(i64 n, i64 m, i64 rank, const i64 *flows, const i64 *copies,
                   const double *speeds, const i64 *sizes, i64 policy, i64 kind, i64 num_pairwise,
                   const i64 *pairwise, i64 num_spread_out, const i64 *spread_out, i64 room_stages,
                   i64 room, i64 *share, i64 *pairs, i64 *tile, i64 *stages, i64 *slices,
                   i64 *found)
{
    network_t net = {
        .n = n, .m = m, .flows = flows, .copies = copies,
        .nic = speeds[0], .nvlink = speeds[1], .latency = speeds[2], .handover = speeds[3],
        .segment_bytes = sizes[0], .slice_bytes = sizes[1], .row_bytes = sizes[2],
        .num_lanes = sizes[3],
        .num_orders = {num_pairwise, num_spread_out}, .order = {pairwise, spread_out},
        .share = share, .pairs = pairs, .tile = tile, .peer = stages,
        .begin = stages + room_stages * n, .end = stages + 2 * room_stages * n,
    };
    net.wire[0] = nic_seconds(&net, 1);
    net.wire[1] = (double)net.segment_bytes / net.nvlink;
    net.wire[2] = net.latency;
    memset(found, 0, sizeof(i64) * (NUM_RECEIVED + 1));
    if (choose_forwarders(&net, n == 1 || m == 1 ? NONE : policy) < 0)
        return -1;
    found[CARRIED] = net.carried;
    i64 busiest = count_pairs(&net);
    if (!busiest)
        return 0;
    found[KIND] = choose_stages(&net, kind);
    if (found[KIND] < 0)
        return -1;
    found[NUM_STAGES] = net.num_stages;
    found[SLICE_ROWS] = rows_of_slice(&net, busiest);
    found[NUM_ROUNDS] = fuscoc_slices(n, m, net.num_stages, net.peer, net.begin, net.end, tile,
                                      found[SLICE_ROWS], rank, pairs, room, slices,
                                      slices + 4 * room, found + NUM_SENT);
    return 0;
}
