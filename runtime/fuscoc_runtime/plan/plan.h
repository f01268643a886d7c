/* What the C files of the planner share. All matrices are row-major int64. n nodes of m ranks each;
 * rank = node * m + local rank. Amounts are segments. Every choice is made in index order, so equal
 * inputs give equal outputs.
 */
#ifndef FUSCOC_PLAN_H
#define FUSCOC_PLAN_H

#include <stdint.h>

typedef int64_t i64;
typedef uint64_t u64;

static inline i64 min64(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 max64(i64 a, i64 b) { return a > b ? a : b; }
static inline double min_f(double a, double b) { return a < b ? a : b; }
static inline double max_f(double a, double b) { return a > b ? a : b; }

/* The policies of balance.py, in its order. */
enum { NONE, GREEDY, LPT, SPLIT, REBALANCE, AUTO_BALANCE, NUM_POLICIES = AUTO_BALANCE };

/* ``Loads`` of cost.py. */
typedef struct {
    i64 *tile, *node_tile, *local;
    double *balance, *redistribution, *node_balance, *node_redistribution;
} loads_t;

/* The network hop of one plan. */
typedef struct {
    i64 n, m;
    const i64 *flows, *copies; /* of ``Demand`` */
    /* Of ``CostModel``. */
    double nic, nvlink, latency, handover, wire[3];
    i64 segment_bytes, slice_bytes;
    /* Stages of a fixed order, by kind: how many, and the node to which each node sends. */
    i64 num_orders[2];
    const i64 *order[2];
    /* What is made: ``share`` of ``Assignment``, and its ``pairs``; ``Schedule``. */
    i64 *share, *pairs, *tile, *peer, *begin, *end, carried, num_stages;
    /* Meanwhile: the policy and the kind of stages made last, or -1; the most rows that a rank
     * sends or receives; the rule for stages; and what it chose for a policy. */
    i64 policy, kind, busiest, rule, kind_of[NUM_POLICIES];
    loads_t loads;
} network_t;

/* balance.c */
i64 fuscoc_assign(network_t *net, i64 policy);

/* choose.c */
double fuscoc_nic_seconds(const network_t *net, i64 segments);
i64 fuscoc_choose(network_t *net, i64 policy, i64 kind);

/* fast.c */
void fuscoc_rebalance(i64 n, i64 m, const i64 *flows, i64 *share, i64 *tile);
i64 fuscoc_lpt(i64 n, i64 m, const i64 *flows, i64 *share);
i64 fuscoc_decompose(i64 n, const i64 *tile, i64 grain, i64 *peer, i64 *begin, i64 *end);

/* cost.c */
i64 fuscoc_loads(i64 n, i64 m, const i64 *flows, const i64 *share, const i64 *copies, i64 carried,
                 i64 *tile, double *balance, double *redistribution, i64 *node_tile,
                 double *node_balance, double *node_redistribution, i64 *local);
double fuscoc_pipeline(i64 n, i64 stages, const i64 *network, const double *balance,
                       const double *redistribution, const i64 *local, const double *wire,
                       i64 slice);

/* stages.c */
i64 fuscoc_stages(i64 n, i64 m, const i64 *pairs, i64 num_orders, const i64 *order, i64 *tile,
                  i64 *peer, i64 *begin, i64 *end);

#endif
