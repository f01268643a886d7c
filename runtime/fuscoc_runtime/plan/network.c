/* The network hop of one plan in one call: who sends and who forwards what, in which stages.
 *
 * The same as choose.py, cost.py and schedule.py say in numpy, choice by choice and in the order of
 * their floating-point operations: every rank chooses for itself, and all have to choose alike.
 */
#include <string.h>

#include "plan.h"

enum { CARRIED, KIND, NUM_STAGES, NUM_FOUND };

/* speeds: bytes a second of a NIC and of NVLink, seconds that a stage and a hand-over cost. sizes:
 * bytes of a segment and of a slice at most. The stages have room for ``room``. pairs: as of
 * ``Assignment``. found: what there is, in the order of the enum; no stages if nothing crosses.
 * Returns -1 without memory. */
i64 fuscoc_network(i64 n, i64 m, const i64 *flows, const i64 *copies, const double *speeds,
                   const i64 *sizes, i64 policy, i64 kind, i64 num_pairwise, const i64 *pairwise,
                   i64 num_spread_out, const i64 *spread_out, i64 room, i64 *share, i64 *pairs,
                   i64 *tile, i64 *stages, i64 *found)
{
    network_t net = {
        .n = n, .m = m, .flows = flows, .copies = copies,
        .nic = speeds[0], .nvlink = speeds[1], .latency = speeds[2], .handover = speeds[3],
        .segment_bytes = sizes[0], .slice_bytes = sizes[1],
        .num_orders = {num_pairwise, num_spread_out}, .order = {pairwise, spread_out},
        .share = share, .pairs = pairs, .tile = tile, .peer = stages,
        .begin = stages + room * n, .end = stages + 2 * room * n,
    };
    net.wire[0] = fuscoc_nic_seconds(&net, 1);
    net.wire[1] = (double)net.segment_bytes / net.nvlink;
    net.wire[2] = net.latency;
    memset(found, 0, sizeof(i64) * NUM_FOUND);
    i64 chosen = fuscoc_choose(&net, n == 1 || m == 1 ? NONE : policy, kind);
    if (chosen < 0)
        return -1;
    found[CARRIED] = net.carried;
    if (net.busiest) {
        found[KIND] = chosen;
        found[NUM_STAGES] = net.num_stages;
    }
    return 0;
}
