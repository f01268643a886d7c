/* The inner loops of the network plan: FAST's balancing and staging, and LPT.
 *
 * Written from the published algorithm (Lei et al., "FAST", NSDI '26, sections 4.1-4.2 and 4.4);
 * what is computed, and why, is told in docs/scheduling.md. Compiled at first use, see library.py.
 */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* share[s][q][l]: of flow (s -> node q), what local rank l of the sender's node carries, so that
 * the ranks of a node send equally much (within one segment) to every other node.
 * tile[i][q]: the most that one rank of node i sends to node q. */
void fuscoc_rebalance(i64 n, i64 m, const i64 *flows, i64 *share, i64 *tile)
{
    memset(share, 0, (size_t)(n * m * n * m) * sizeof(i64));
    for (i64 i = 0; i < n; i++)
        for (i64 q = 0; q < n; q++) {
            const i64 *flow = flows + i * m * n + q; /* of local rank a: flow[a * n] */
            i64 *out = share + (i * m * n + q) * m;  /* from a by carrier l: out[a * n * m + l] */
            i64 total = 0;
            for (i64 a = 0; a < m; a++)
                total += flow[a * n];
            i64 base = total / m, extra = total % m;
            tile[i * n + q] = base + (extra > 0);
            if (!total)
                continue;
            /* The odd segments stay, as far as possible, where nothing needs to move for them;
             * the first candidate differs from tile to tile, so that they add up evenly. */
            i64 kept[m], lacking[m], spare[m];
            for (i64 t = 0; t < m; t++) {
                i64 a = (i + q + t) % m, own = flow[a * n], quota = base;
                if (own > base && extra > 0) {
                    quota++;
                    extra--;
                }
                kept[a] = min64(own, quota);
                spare[a] = own - kept[a];
                lacking[a] = quota - kept[a];
            }
            for (i64 t = 0; t < m && extra > 0; t++) {
                i64 a = (i + q + t) % m;
                if (flow[a * n] <= base) {
                    lacking[a]++;
                    extra--;
                }
            }
            for (i64 a = 0, l = 0; a < m; a++) {
                out[a * n * m + a] += kept[a];
                while (spare[a] > 0) {
                    i64 moved = min64(spare[a], lacking[l]);
                    out[a * n * m + l] += moved;
                    spare[a] -= moved;
                    lacking[l] -= moved;
                    l += lacking[l] == 0;
                }
            }
        }
}

typedef struct {
    i64 amount, source;
} flow_t;

static int longer_first(const void *a, const void *b)
{
    const flow_t *x = a, *y = b;
    if (x->amount != y->amount)
        return x->amount < y->amount ? 1 : -1;
    return (x->source > y->source) - (x->source < y->source);
}

/* share[s][q][l] = the whole flow (s -> node q) for one l: longest flow first, each to the rank of
 * node q that receives least so far. Returns -1 without memory. */
i64 fuscoc_lpt(i64 n, i64 m, const i64 *flows, i64 *share)
{
    flow_t *queue = malloc((size_t)(n * m) * sizeof(flow_t));
    if (!queue)
        return -1;
    memset(share, 0, (size_t)(n * m * n * m) * sizeof(i64));
    for (i64 q = 0; q < n; q++) {
        i64 load[m];
        memset(load, 0, sizeof load);
        for (i64 s = 0; s < n * m; s++)
            queue[s] = (flow_t){flows[s * n + q], s};
        qsort(queue, (size_t)(n * m), sizeof(flow_t), longer_first);
        for (i64 k = 0; k < n * m && queue[k].amount > 0; k++) {
            i64 least = 0;
            for (i64 l = 1; l < m; l++)
                if (load[l] < load[least])
                    least = l;
            load[least] += queue[k].amount;
            share[(queue[k].source * n + q) * m + least] = queue[k].amount;
        }
    }
    free(queue);
    return 0;
}

/* A bipartite graph rows -> columns as bit sets, and a matching in it. */
typedef struct {
    i64 n, words;
    u64 *edges;      /* [n][words] */
    u64 *seen;       /* [words] columns visited by the search */
    i64 *column_of;  /* [n] the column matched to a row, or -1 */
    i64 *row_of;     /* [n] the row matched to a column, or -1 */
    i64 *parent;     /* [n] the row from which a column was reached */
    i64 *queue;      /* [n] rows to visit */
} graph_t;

/* Breadth-first search for an augmenting path from an unmatched row; flips it. 0: there is none. */
static int augment(graph_t *g, i64 root)
{
    i64 head = 0, tail = 0;
    memset(g->seen, 0, (size_t)g->words * sizeof(u64));
    g->queue[tail++] = root;
    while (head < tail) {
        i64 row = g->queue[head++];
        for (i64 w = 0; w < g->words; w++) {
            u64 fresh = g->edges[row * g->words + w] & ~g->seen[w];
            g->seen[w] |= fresh;
            for (; fresh; fresh &= fresh - 1) {
                i64 column = w * 64 + __builtin_ctzll(fresh);
                g->parent[column] = row;
                if (g->row_of[column] >= 0) {
                    g->queue[tail++] = g->row_of[column];
                    continue;
                }
                for (i64 next; column >= 0; column = next) {
                    i64 from = g->parent[column];
                    next = g->column_of[from];
                    g->column_of[from] = column;
                    g->row_of[column] = from;
                }
                return 1;
            }
        }
    }
    return 0;
}

static int match_all(graph_t *g)
{
    for (i64 row = 0; row < g->n; row++)
        if (g->column_of[row] < 0 && !augment(g, row))
            return 0;
    return 1;
}

static void take_edges(graph_t *g, const i64 *load, i64 threshold)
{
    memset(g->edges, 0, (size_t)(g->n * g->words) * sizeof(u64));
    for (i64 row = 0; row < g->n; row++)
        for (i64 column = 0; column < g->n; column++)
            g->edges[row * g->words + column / 64] |=
                (u64)(load[row * g->n + column] >= threshold) << (column % 64);
}

/* load = tile in grains, rounded up, and padded until every row and column has the largest sum
 * (returned). Padding goes first where a stage is needed anyway. */
static i64 pad(i64 n, const i64 *tile, i64 grain, i64 *load, i64 *row_sum, i64 *column_sum)
{
    i64 largest = 0;
    memset(row_sum, 0, (size_t)n * sizeof(i64));
    memset(column_sum, 0, (size_t)n * sizeof(i64));
    for (i64 i = 0; i < n; i++)
        for (i64 j = 0; j < n; j++) {
            i64 grains = (tile[i * n + j] + grain - 1) / grain;
            load[i * n + j] = grains;
            row_sum[i] += grains;
            column_sum[j] += grains;
        }
    for (i64 i = 0; i < n; i++) {
        if (row_sum[i] > largest)
            largest = row_sum[i];
        if (column_sum[i] > largest)
            largest = column_sum[i];
    }
    for (int anywhere = 0; anywhere < 2; anywhere++)
        for (i64 i = 0; i < n; i++)
            for (i64 j = 0; j < n && row_sum[i] < largest; j++)
                if (anywhere || load[i * n + j]) {
                    i64 slack = min64(largest - row_sum[i], largest - column_sum[j]);
                    load[i * n + j] += slack;
                    row_sum[i] += slack;
                    column_sum[j] += slack;
                }
    return largest;
}

/* The smallest over rows and columns of their largest entry: no perfect matching can have a larger
 * minimum. */
static i64 first_threshold(i64 n, const i64 *load)
{
    i64 threshold = INT64_MAX;
    for (i64 i = 0; i < n; i++) {
        i64 row = 0, column = 0;
        for (i64 j = 0; j < n; j++) {
            row = load[i * n + j] > row ? load[i * n + j] : row;
            column = load[j * n + i] > column ? load[j * n + i] : column;
        }
        threshold = min64(threshold, min64(row, column));
    }
    return threshold;
}

/* Birkhoff-von-Neumann: tile[i][j] = the sum over stages k with peer[k][i] == j of
 * end[k][i] - begin[k][i], where the ranges of a pair follow one another from 0. Every stage is a
 * partial permutation (peer -1: idle); there are at most (n-1)^2 + 1. Returns their number, or -1
 * without memory.
 *
 * A stage is a perfect matching of the padded matrix among entries of at least `threshold`, which
 * is lowered, by an eighth, only when there is none: large stages first, few stages in all. From
 * one stage to the next only the rows whose matched entry fell below it are matched again. */
i64 fuscoc_decompose(i64 n, const i64 *tile, i64 grain, i64 *peer, i64 *begin, i64 *end)
{
    i64 words = (n + 63) / 64, stages = 0;
    i64 *memory = malloc((size_t)(2 * n * n + 6 * n + n * words + words) * sizeof(i64));
    if (!memory)
        return -1;
    i64 *load = memory, *sent = load + n * n, *row_sum = sent + n * n, *column_sum = row_sum + n;
    graph_t g = {.n = n, .words = words, .column_of = column_sum + n};
    g.row_of = g.column_of + n;
    g.parent = g.row_of + n;
    g.queue = g.parent + n;
    g.edges = (u64 *)(g.queue + n);
    g.seen = g.edges + n * words;

    i64 remaining = pad(n, tile, grain, load, row_sum, column_sum);
    i64 threshold = first_threshold(n, load);
    memset(sent, 0, (size_t)(n * n) * sizeof(i64));
    for (i64 i = 0; i < n; i++)
        g.column_of[i] = g.row_of[i] = -1;
    if (remaining)
        take_edges(&g, load, threshold);
    while (remaining) {
        if (!match_all(&g)) {
            threshold -= threshold / 8 ? threshold / 8 : 1;
            take_edges(&g, load, threshold);
            continue;
        }
        i64 weight = remaining, *to = peer + stages * n;
        int carries = 0;
        for (i64 i = 0; i < n; i++)
            weight = min64(weight, load[i * n + g.column_of[i]]);
        for (i64 i = 0; i < n; i++) {
            i64 j = g.column_of[i], cell = i * n + j;
            i64 amount = min64(tile[cell] - sent[cell], weight * grain);
            to[i] = amount ? j : -1;
            begin[stages * n + i] = amount ? sent[cell] : 0;
            sent[cell] += amount;
            end[stages * n + i] = amount ? sent[cell] : 0;
            carries |= amount > 0;
            load[cell] -= weight;
            if (load[cell] < threshold) {
                g.edges[i * words + j / 64] &= ~((u64)1 << (j % 64));
                g.column_of[i] = g.row_of[j] = -1;
            }
        }
        remaining -= weight;
        stages += carries;
    }
    free(memory);
    return stages;
}
