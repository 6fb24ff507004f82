/* Hooks by which a session reaches the other ranks that run its model. host/ranks fills in the
 * table; a session that runs alone has none (s->ranks is NULL). */
#ifndef GR_ENGINE_RANKS_HOOKS_H
#define GR_ENGINE_RANKS_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

struct gr_pending_batch;
struct gr_session;
struct gr_state_cells;

/* Changes to all cells, decided by rank 0. */
enum gr_broadcast { GR_BROADCAST_SHIFT, GR_BROADCAST_PACK, GR_BROADCAST_CLEAR };

struct gr_ranks_hooks {
    /* Returns 0, or GR_E_PEER_LOST when a rank is lost. */
    int (*check)(const struct gr_session *s);
    /* Runs a reserved batch on all ranks, this rank's part by gr_batch_run. */
    int (*run)(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub);
    /* Waits for the results of a batch and of all earlier ones. */
    int (*collect)(struct gr_session *s, struct gr_pending_batch *pending);
    /* Has the other ranks make the change too; does nothing on ranks other than 0. hash: of the
     * decisions before it (struct gr_cache). */
    int (*broadcast)(struct gr_session *s, enum gr_broadcast change, uint64_t hash);
    /* Has the other ranks restore the same cells; their rows follow. */
    int (*restore)(struct gr_session *s, const struct gr_state_cells *cells, uint64_t hash);
    /* gr_rows_move for a tensor that may be on any rank. */
    int (*rows)(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n, char *rows,
                bool get);
    /* Waits until data from other ranks that devices wait for has arrived. */
    int (*arrived)(struct gr_session *s);
    /* Leaves the other ranks, frees s->rank and sets s->ranks to NULL. */
    void (*close)(struct gr_session *s);
};

#endif
