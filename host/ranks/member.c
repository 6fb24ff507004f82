#include "ranks/member.h"

#include <stdio.h>
#include <string.h>

#include "engine/session_devices.h"
#include "engine/state.h"
#include "engine/step.h"
#include "engine/times.h"
#include "gr/status.h"
#include "model/rank_model.h"
#include "ranks/broadcast.h"
#include "ranks/cache_rows.h"
#include "ranks/pipeline.h"
#include "ranks/team.h"
#include "ranks/transport.h"

/* ---- batches ---- */

static int check(const struct gr_session *s)
{
    return gr_team_check(s->rank->team);
}

/* Logs rank 0's cells, once, after another rank was lost because its decisions differ; that rank
 * has logged its own cells. */
static void log_own_cells(struct gr_session *s)
{
    char why[800];
    struct gr_team *t = s->rank->team;
    if (t->cells_logged || !strstr(gr_error(), GR_TEAM_DIFFERS))
        return;
    snprintf(why, sizeof why, "%s", gr_error());
    gr_stage_log_cells(s);
    t->cells_logged = true;
    gr_fail(GR_E_PEER_LOST, "%s", why);
}

static int run(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub)
{
    struct gr_team *t = s->rank->team;
    gr_team_lock(t);
    int rc = gr_apply_shift(s);
    if (!rc)
        rc = gr_team_broadcast_batch(s, pending);
    pending->n_ubatch = 0;
    if (!rc)
        rc = gr_stage_run(s, pending, n_ub);
    if (pending->n_ubatch)
        gr_team_enqueue(t, pending);
    if (rc && pending->n_ubatch && gr_team_collect(t, pending))
        rc = GR_E_PEER_LOST;
    gr_team_unlock(t);
    if (rc == GR_E_PEER_LOST)
        log_own_cells(s);
    return rc;
}

static int collect(struct gr_session *s, struct gr_pending_batch *pending)
{
    int rc = gr_team_collect(s->rank->team, pending);
    if (rc == GR_E_PEER_LOST)
        log_own_cells(s);
    return rc;
}

/* ---- cells ---- */

/* The callback of rank 0's caches (struct gr_cache). */
static int broadcast_op(void *user, const struct gr_kv_op *op)
{
    struct gr_session *s = user;
    struct gr_command_op c = {.kind = (int32_t)op->kind,
                              .seq = op->seq,
                              .dst = op->dst,
                              .p0 = op->p0,
                              .p1 = op->p1,
                              .by = op->by};
    return gr_team_broadcast(s->rank->team, s, GR_COMMAND_OP, &c);
}

static int broadcast(struct gr_session *s, enum gr_broadcast change, uint64_t hash)
{
    static const enum gr_command_kind kind[] = {[GR_BROADCAST_SHIFT] = GR_COMMAND_SHIFT,
                                                [GR_BROADCAST_PACK] = GR_COMMAND_PACK,
                                                [GR_BROADCAST_CLEAR] = GR_COMMAND_CLEAR};
    struct gr_rank_session *own = s->rank;
    return gr_team_is_root(own->team)
               ? gr_team_broadcast_or_lose(own->team, own->id, kind[change], NULL, hash)
               : 0;
}

static int restore(struct gr_session *s, const struct gr_state_cells *cells, uint64_t hash)
{
    enum { STATES = GR_STATE_PART_STATES };
    struct gr_command_restore c = {
        .seq = cells->seq,
        .table = gr_cache_table_hash(&s->cache),
        .full = {cells->block[GR_CACHE_FULL], cells->bytes[GR_CACHE_FULL]},
        .swa = {cells->block[GR_CACHE_SWA], cells->bytes[GR_CACHE_SWA]},
        .states = {cells->block[STATES], cells->bytes[STATES]}};
    return gr_team_broadcast_or_lose(s->rank->team, s->rank->id, GR_COMMAND_RESTORE, &c, hash);
}

/* ---- membership ---- */

static void leave(struct gr_session *s)
{
    struct gr_rank_session *own = s->rank;
    struct gr_team *t = own->team;
    gr_team_lock(t);
    if (gr_team_is_root(t) && !gr_team_collect(t, NULL))
        (void)gr_team_broadcast_or_lose(t, own->id, GR_COMMAND_CLOSE, NULL, s->cache.hash);
    ((struct gr_session **)t->sessions.data)[own->id] = NULL;
    gr_team_unlock(t);
    (void)gr_session_sync(s);
    gr_stage_fini(s);
    gr_free(own);
    s->rank = NULL, s->ranks = NULL, s->flow = NULL;
}

static const struct gr_ranks_hooks hooks = {.check = check,
                                            .run = run,
                                            .collect = collect,
                                            .broadcast = broadcast,
                                            .restore = restore,
                                            .rows = gr_rows_move_far,
                                            .arrived = gr_transport_wait_received,
                                            .close = leave};

void gr_team_moved(struct gr_session *s)
{
    struct gr_team *t = s->rank->team;
    gr_team_lock(t);
    ((struct gr_session **)t->sessions.data)[s->rank->id] = s;
    gr_team_unlock(t);
    if (gr_team_is_root(t))
        s->cache.before_op = broadcast_op, s->cache.user = s;
}

int gr_team_add_session(struct gr_session *s, struct gr_team *t, uint32_t id)
{
    struct gr_rank_session *own = gr_calloc(1, sizeof *own);
    if (!own)
        return GR_E_NOMEM_HOST;
    own->team = t, own->id = id;
    s->ranks = &hooks, s->rank = own;
    s->flow = &gr_stage_flow;
    gr_timing_init(&s->timing);
    gr_team_moved(s);
    return 0;
}
