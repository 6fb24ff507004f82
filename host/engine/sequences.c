/* The sequence operations of gpurun.h: each one happens in all caches or in none, then the copies
 * that belong to it run. */
#include "engine/self_extend.h"
#include "engine/session.h"
#include "gr/status.h"

/* Whether the positions of what is stored can change at all. */
static int check_movable(const struct gr_session *s)
{
    const struct gr_ten *learned = &s->model->weight[GR_W_POS_EMBD];
    if (!gr_ten_is(learned))
        return 0;
    return gr_fail(GR_E_UNSUPPORTED,
                   "the positions of a %s model are part of what it has stored and cannot be "
                   "changed; remove the tokens and decode them again",
                   s->model->arch->name);
}

static int run_op(struct gr_session *s, const struct gr_kv_op *op)
{
    struct gr_kv_moves moves[GR_N_CACHE_KIND], none[GR_N_CACHE_KIND];
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not change the cells under its batch");
    int rc = gr_cache_op(&s->cache, op, moves);
    if (!rc)
        rc = gr_run_moves(s, moves);
    else
        return rc;
    if (rc) /* cells of dst that nothing was copied to */
        gr_cache_op(&s->cache,
                    &(struct gr_kv_op){.kind = GR_KV_RM, .seq = op->dst, .p0 = -1, .p1 = -1}, none);
    return rc;
}

int gr_kv_seq_rm(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1)
{
    return run_op(s, &(struct gr_kv_op){.kind = GR_KV_RM, .seq = seq, .p0 = p0, .p1 = p1});
}

int gr_kv_seq_cp(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1)
{
    return run_op(s, &(struct gr_kv_op){GR_KV_CP, src, dst, p0, p1, 0});
}

int gr_kv_seq_dup(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1)
{
    return run_op(s, &(struct gr_kv_op){GR_KV_DUP, src, dst, p0, p1, 0});
}

int gr_kv_seq_keep(struct gr_session *s, int32_t seq)
{
    return run_op(s, &(struct gr_kv_op){.kind = GR_KV_KEEP, .seq = seq, .p0 = -1, .p1 = -1});
}

int gr_kv_seq_add(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t delta)
{
    int rc = delta ? check_movable(s) : 0;
    return rc ? rc : run_op(s, &(struct gr_kv_op){GR_KV_ADD, seq, 0, p0, p1, delta});
}

int gr_kv_seq_div(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t d)
{
    int rc = d != 1 ? check_movable(s) : 0;
    return rc ? rc : run_op(s, &(struct gr_kv_op){GR_KV_DIV, seq, 0, p0, p1, d});
}

void gr_kv_clear(struct gr_session *s)
{
    if (!s->running) /* a tap may not pull the cells from under its batch */
        gr_cache_clear(&s->cache);
}

int gr_kv_defrag(struct gr_session *s)
{
    struct gr_kv_moves moves[GR_N_CACHE_KIND] = {{0}};
    int rc = 0;
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not change the cells under its batch");
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (s->cache.kv[k]) {
            rc = gr_kv_pack(s->cache.kv[k], &moves[k]);
            if (rc) /* the other kind's moves still belong to what it says now */
                break;
        }
    int run = gr_run_moves(s, moves);
    if (run) /* cells and data disagree */
        gr_cache_clear(&s->cache);
    return rc ? rc : run;
}

int32_t gr_kv_seq_pos_min(const struct gr_session *s, int32_t seq)
{
    return gr_cache_pos_min(&s->cache, seq);
}

int32_t gr_kv_seq_pos_max(const struct gr_session *s, int32_t seq)
{
    return gr_cache_pos_max(&s->cache, seq);
}

uint32_t gr_kv_used(const struct gr_session *s)
{
    return gr_cache_used(&s->cache);
}

void gr_kv_dump(const struct gr_session *s, FILE *out)
{
    gr_cache_print(&s->cache, out);
}

/* Merged positions bring more cells into a window than a cache of its size holds. */
static int check_groupable(const struct gr_session *s)
{
    const struct gr_kv_params *swa = &s->memory.cache.kv[GR_CACHE_SWA];
    int rc = s->running ? gr_fail(GR_E_INVALID, "a tap may not change the cells under its batch")
                        : check_movable(s);
    if (rc || !s->cache.kv[GR_CACHE_SWA] || swa->n_cell >= s->memory.n_ctx_seq)
        return rc;
    return gr_fail(GR_E_UNSUPPORTED,
                   "Self-Extend: layers with a sliding window keep only %u cells; use --swa-full",
                   swa->n_cell);
}

int gr_self_extend(struct gr_session *s, struct gr_self_extend *se, int32_t *n_past)
{
    int32_t end = gr_kv_seq_pos_max(s, 0) + 1;
    int rc = check_groupable(s);
    if (rc)
        return rc;
    if (*n_past > end)
        return gr_fail(GR_E_INVALID, "Self-Extend: sequence 0 has positions below %d, not %d", end,
                       *n_past);
    return gr_self_extend_cells(&s->cache, 0, se, n_past);
}
