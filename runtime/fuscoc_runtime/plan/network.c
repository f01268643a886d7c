/* The network hop of one plan in one call: who sends and who forwards what, in which stages, in
 * which rounds, and a rank's part in them. A rank cannot send before it knows.
 *
 * The same as choose.py, cost.py, schedule.py and rounds.py say in numpy, choice by choice and in
 * the order of their floating-point operations: every rank chooses for itself, and all have to
 * choose alike.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

static const i64 LEAST_LANES = 2; /* of cost.py */

enum { CARRIED, KIND, NUM_STAGES, SLICE_ROWS, NUM_ROUNDS, NUM_SENT, NUM_RECEIVED };

/* ``slice_rows``. */
static i64 rows_of_slice(const network_t *net, i64 total)
{
    double bytes = (double)(total * net->row_bytes), row_bytes = (double)net->row_bytes;
    double best = max_f(row_bytes, sqrt(bytes * net->latency * net->nvlink / 2));
    i64 most = max64(1, net->slice_bytes / max64(1, net->row_bytes)), worthwhile = net->num_lanes;
    if (net->latency > 0)
        worthwhile = (i64)min_f(fuscoc_nic_seconds(net, total) / net->latency, (double)worthwhile);
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
    net.wire[0] = fuscoc_nic_seconds(&net, 1);
    net.wire[1] = (double)net.segment_bytes / net.nvlink;
    net.wire[2] = net.latency;
    memset(found, 0, sizeof(i64) * (NUM_RECEIVED + 1));
    i64 chosen = fuscoc_choose(&net, n == 1 || m == 1 ? NONE : policy, kind);
    if (chosen < 0)
        return -1;
    found[CARRIED] = net.carried;
    if (!net.busiest)
        return 0;
    found[KIND] = chosen;
    found[NUM_STAGES] = net.num_stages;
    found[SLICE_ROWS] = rows_of_slice(&net, net.busiest);
    found[NUM_ROUNDS] = fuscoc_slices(n, m, net.num_stages, net.peer, net.begin, net.end, tile,
                                      found[SLICE_ROWS], rank, pairs, room, slices,
                                      slices + 4 * room, found + NUM_SENT);
    return 0;
}
