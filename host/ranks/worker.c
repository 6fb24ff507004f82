#include "ranks/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/pending.h"
#include "engine/state.h"
#include "engine/step.h"
#include "gr/status.h"
#include "model/model.h"
#include "placement/measure.h"
#include "ranks/cache_rows.h"
#include "ranks/command.h"
#include "ranks/params.h"
#include "ranks/pipeline.h"
#include "ranks/rank.h"
#include "ranks/team.h"
#include "ranks/times.h"
#include "ranks/transport.h"

/* ---- answers ---- */

static int answer(struct gr_team *t, uint32_t kind, const void *command)
{
    struct gr_message *m = gr_message_new(t, 0, 1);
    int rc = m ? gr_command_write(&m->bytes, kind, command) : GR_E_NOMEM_HOST;
    return rc ? rc : gr_message_send(t, m, &(struct gr_frame){.kind = kind});
}

/* Answers a command that may fail without losing a rank. */
static int answer_done(struct gr_team *t, int status)
{
    const char *text = status ? gr_error() : "";
    struct gr_command_done c = {
        .status = status, .now_ns = gr_now_ns(), .text = {text, strlen(text)}};
    return answer(t, GR_COMMAND_DONE, &c);
}

/* ---- the model ---- */

static int do_handshake(struct gr_team *t)
{
    struct gr_vec text = {0};
    struct gr_command_rank rank;
    int rc = gr_team_describe(t, &text, &rank);
    if (!rc)
        rc = answer(t, GR_COMMAND_RANK, &rank);
    gr_vec_fini(&text);
    return rc;
}

static int do_join(struct gr_team *t)
{
    struct gr_command_join c;
    int rc = gr_command_read(&c, GR_COMMAND_JOIN, t->body.data, t->body.n);
    return rc ? rc : answer_done(t, gr_team_join_transport(t, &c));
}

static int do_load(struct gr_team *t)
{
    struct gr_command_load c;
    int rc = gr_command_read(&c, GR_COMMAND_LOAD, t->body.data, t->body.n);
    return rc ? rc : answer_done(t, gr_team_load_own(t, &c));
}

static int survey(struct gr_team *t, struct gr_vec *devices)
{
    struct gr_command_survey c;
    struct gr_command_open open;
    struct gr_session_params params;
    struct gr_placement place = {0};
    int rc = gr_command_read(&c, GR_COMMAND_SURVEY, t->body.data, t->body.n);
    if (!rc && c.params.n)
        rc = gr_command_read(&open, GR_COMMAND_OPEN, c.params.p, (size_t)c.params.n);
    if (!rc && c.params.n)
        params = gr_command_open_params(&open);
    if (!rc && c.stage.n)
        rc = gr_team_read_layers(t,
                                 &(struct gr_command_load){.n_stage = c.n_stage,
                                                           .n_shard = c.n_shard,
                                                           .n_cpu_experts = c.n_cpu_experts,
                                                           .stage = {c.stage.p, c.stage.n},
                                                           .device = {c.device.p, c.device.n}},
                                 &place);
    if (rc)
        return rc;
    if (!c.stage.n)
        place.n_cpu_experts = c.n_cpu_experts;
    pthread_mutex_lock(&t->model->lock);
    rc = gr_rank_devices_survey(t->rank_model, c.params.n ? &params : NULL, &place, devices);
    pthread_mutex_unlock(&t->model->lock);
    return rc;
}

static int do_survey(struct gr_team *t)
{
    struct gr_vec devices = {0};
    int rc = survey(t, &devices);
    struct gr_message *m = rc ? NULL : gr_message_new(t, 0, 1);
    int sent =
        m ? gr_vec_append(&m->bytes, devices.data, devices.n * devices.item, 1) : GR_E_NOMEM_HOST;
    if (!rc && !sent)
        sent = gr_message_send(t, m, &(struct gr_frame){.kind = GR_COMMAND_DEVICES});
    gr_vec_fini(&devices);
    return rc ? answer_done(t, rc) : sent;
}

/* ---- sessions ---- */

/* The entry of a session number in t->sessions, which grows as needed. */
static struct gr_session **entry_of(struct gr_team *t, uint32_t id)
{
    struct gr_session *none = NULL;
    while (id < UINT16_MAX && t->sessions.n <= id)
        if (gr_vec_append(&t->sessions, &none, 1, sizeof(struct gr_session *)))
            return NULL;
    return id < t->sessions.n ? (struct gr_session **)t->sessions.data + id : NULL;
}

static int do_open(struct gr_team *t, uint32_t id)
{
    struct gr_command_open c;
    struct gr_session **at = entry_of(t, id), *s = NULL;
    int rc = gr_command_read(&c, GR_COMMAND_OPEN, t->body.data, t->body.n);
    if (!rc && (!at || *at))
        rc = gr_fail(GR_E_CORRUPT, "command OPEN: session %u cannot be opened", id);
    if (rc)
        return rc;
    struct gr_session_params p = gr_command_open_params(&c);
    gr_world_doing(t->world, GR_DOING_LOAD);
    return answer_done(t, gr_team_open_own(&s, t, &p, id));
}

static void close_session(struct gr_team *t, uint32_t id)
{
    struct gr_session *s = id < t->sessions.n ? ((struct gr_session **)t->sessions.data)[id] : NULL;
    gr_session_close(&s);
}

/* ---- batches ---- */

static int check_batch(const struct gr_session *s, const struct gr_command_decode *c)
{
    uint64_t n = c->token.n, ids = 0;
    bool good = n >= 1 && n <= INT32_MAX / 4 && c->pos.n == n && c->n_seq.n == n &&
                c->logits.n == n && (!c->pos_yx.n || c->pos_yx.n == 2 * n) &&
                (!c->embd.n || c->embd.n == n * (uint64_t)s->model->hp.n_embd);
    for (uint64_t i = 0; good && i < n; i++) {
        good = c->n_seq.p[i] >= 1;
        ids += good ? (uint64_t)c->n_seq.p[i] : 0;
    }
    return good && ids == c->seq.n ? 0 : gr_fail(GR_E_CORRUPT, "command DECODE: no such batch");
}

/* Checks and reserves a batch. Rank 0 has accepted it, so this must succeed here too. */
static int reserve(struct gr_session *s, struct gr_pending_batch *pending,
                   const struct gr_command_decode *c, int32_t *n_ub)
{
    const struct gr_batch batch = {.n_tok = (int32_t)c->token.n,
                                   .token = c->embd.n ? NULL : c->token.p,
                                   .embd = c->embd.n ? c->embd.p : NULL,
                                   .pos = c->pos.p,
                                   .n_seq = c->n_seq.p,
                                   .seq = c->seq.p,
                                   .logits = c->logits.p,
                                   .pos_yx = c->pos_yx.n ? c->pos_yx.p : NULL};
    pending->sampled = c->rows.n > 0;
    int rc = gr_batch_reserve(s, &batch, pending, n_ub);
    if (!rc && pending->sampled && c->rows.n != (uint64_t)pending->n_out)
        rc = gr_fail(GR_E_CORRUPT, "command DECODE: %llu samples for %d rows",
                     (unsigned long long)c->rows.n, pending->n_out);
    if (!rc && pending->sampled)
        rc = gr_device_sampling_copy(s, c->rows.p, (size_t)c->rows.n, c->edits.p,
                                     (size_t)c->edits.n, c->masks.p, (size_t)c->masks.n);
    if (!rc && c->table && gr_cache_table_hash(&s->cache) != c->table)
        rc = gr_stage_compare(s, c->table);
    return rc;
}

static int run_batch(struct gr_session *s, const struct gr_command_decode *c)
{
    struct gr_pending_batch *pending = &s->results.pending[0];
    int32_t n_ub;
    int rc = reserve(s, pending, c, &n_ub);
    if (rc)
        return rc;
    gr_batch_range(s);
    rc = gr_stage_run(s, pending, n_ub);
    gr_session_range_end(s);
    if (!rc && pending->status)
        gr_batch_rollback(s, pending->status);
    else if (!rc)
        gr_cache_commit(&s->cache);
    return rc;
}

static int do_decode(struct gr_session *s)
{
    struct gr_team *t = s->rank->team;
    struct gr_command_decode c;
    int rc = gr_command_read(&c, GR_COMMAND_DECODE, t->body.data, t->body.n);
    if (!rc)
        rc = check_batch(s, &c);
    if (!rc && c.encode && !s->cache.encodes)
        rc = gr_fail(GR_E_CORRUPT, "command DECODE: the model has no encoder");
    const struct gr_team_test *test = gr_team_testing();
    if (++t->n_batch == test->spoil_at && t->world->rank == test->spoil_rank)
        s->cache.hash++;
    s->cache.encoding = !rc && c.encode;
    if (!rc)
        rc = run_batch(s, &c);
    s->cache.encoding = false;
    return rc;
}

/* ---- cells ---- */

static int do_op(struct gr_session *s)
{
    struct gr_command_op c;
    struct gr_kv_moves moves[GR_N_CACHE_KIND];
    int rc = gr_command_read(&c, GR_COMMAND_OP, s->rank->team->body.data, s->rank->team->body.n);
    if (!rc && (c.kind < GR_KV_RM || c.kind > GR_KV_DIV))
        rc = gr_fail(GR_E_CORRUPT, "command OP: there is no operation %d", c.kind);
    if (rc)
        return rc;
    const struct gr_kv_op op = {(enum gr_kv_op_kind)c.kind, c.seq, c.dst, c.p0, c.p1, c.by};
    rc = gr_cache_op(&s->cache, &op, moves);
    return rc ? rc : gr_run_moves(s, moves);
}

static int do_pack(struct gr_session *s)
{
    struct gr_kv_moves moves[GR_N_CACHE_KIND];
    int rc = gr_cache_pack(&s->cache, moves);
    return rc ? rc : gr_run_moves(s, moves);
}

static int do_restore(struct gr_session *s)
{
    struct gr_team *t = s->rank->team;
    struct gr_command_restore c;
    int rc = gr_command_read(&c, GR_COMMAND_RESTORE, t->body.data, t->body.n);
    if (rc)
        return rc;
    const struct gr_state_cells cells = {.seq = c.seq,
                                         .block = {c.full.p, c.swa.p, c.states.p},
                                         .bytes = {c.full.n, c.swa.n, c.states.n}};
    rc = gr_state_restore_cells(s, &cells);
    if (rc)
        return rc;
    (void)gr_cache_table_hash(&s->cache);
    return gr_stage_compare(s, c.table);
}

static int do_profile(struct gr_session *s)
{
    struct gr_command_profile c;
    int rc =
        gr_command_read(&c, GR_COMMAND_PROFILE, s->rank->team->body.data, s->rank->team->body.n);
    return rc ? rc : gr_session_profile(s, c.on);
}

/* ---- commands ---- */

static int do_for_session(struct gr_session *s, uint32_t kind)
{
    switch (kind) {
    case GR_COMMAND_DECODE:
        return do_decode(s);
    case GR_COMMAND_OP:
        return do_op(s);
    case GR_COMMAND_CLEAR:
        gr_cache_clear(&s->cache);
        return 0;
    case GR_COMMAND_PACK:
        return do_pack(s);
    case GR_COMMAND_SHIFT:
        return gr_apply_shift(s);
    case GR_COMMAND_PROFILE:
        return do_profile(s);
    case GR_COMMAND_TIMES:
        return gr_timing_answer(s);
    case GR_COMMAND_GET:
        return gr_rows_get(s);
    case GR_COMMAND_PUT:
        return gr_rows_put(s);
    case GR_COMMAND_RESTORE:
        return do_restore(s);
    default:
        return gr_fail(GR_E_CORRUPT, "command %s: not for a session", gr_command_name(kind));
    }
}

static int do_command(struct gr_team *t, const struct gr_frame *f)
{
    struct gr_session **s = t->sessions.data;
    switch (f->kind) {
    case GR_COMMAND_HANDSHAKE:
        return do_handshake(t);
    case GR_COMMAND_SURVEY:
        return do_survey(t);
    case GR_COMMAND_JOIN:
        return do_join(t);
    case GR_COMMAND_LOAD:
        return do_load(t);
    case GR_COMMAND_OPEN:
        return do_open(t, f->session);
    case GR_COMMAND_CLOSE:
        close_session(t, f->session);
        return 0;
    case GR_COMMAND_CLOCK:
        return answer_done(t, 0);
    default:
        if (f->session >= t->sessions.n || !s[f->session])
            return gr_fail(GR_E_CORRUPT, "command %s: there is no session %u",
                           gr_command_name(f->kind), f->session);
        int rc = gr_stage_compare(s[f->session], f->hash);
        return rc ? rc : do_for_session(s[f->session], f->kind);
    }
}

int gr_team_serve(struct gr_team *t)
{
    struct gr_frame f = {0};
    char why[800];
    int rc = 0;
    while (!rc && f.kind != GR_COMMAND_QUIT) {
        gr_world_doing(t->world, GR_DOING_WAIT);
        rc = gr_team_receive(t, &t->command[0], 0, &f);
        if (!rc && f.kind != GR_COMMAND_QUIT && do_command(t, &f))
            rc = gr_team_lose(t, t->world->rank);
    }
    (void)snprintf(why, sizeof why, "%s", gr_error()); /* before closing overwrites it */
    gr_world_doing(t->world, GR_DOING_CLOSE);
    for (uint32_t i = 0; i < t->sessions.n; i++)
        close_session(t, i);
    gr_team_leave_transport(t);
    return rc ? gr_fail(rc, "%s", why) : 0;
}
