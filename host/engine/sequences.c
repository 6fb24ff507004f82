/* The sequence operations of gpurun.h: each is applied to all caches or to none, then the copies of
 * K and V that it needs are run. */
#include "engine/sequences.h"

#include "base/checked.h"
#include "engine/self_extend.h"
#include "engine/session.h"
#include "engine/step.h"
#include "gr/status.h"

/* Checks that positions of stored cells can change: K can be rotated and ALiBi uses distances only,
 * but learned positions are part of every K and V. */
static int check_movable(const struct gr_session *s)
{
    if (!s->model->hp.embd.n_learned_pos)
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
    if (rc) /* removes cells of dst without contents */
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

void gr_session_clear(struct gr_session *s)
{
    if (s->ranks) /* a failure here is reported by the next call */
        (void)s->ranks->broadcast(s, GR_BROADCAST_CLEAR, s->cache.hash);
    gr_cache_clear(&s->cache);
}

void gr_kv_clear(struct gr_session *s)
{
    if (!s->running) /* a tap must not remove the cells of its batch */
        gr_session_clear(s);
}

int gr_kv_defrag(struct gr_session *s)
{
    struct gr_kv_moves moves[GR_N_CACHE_KIND];
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not change the cells under its batch");
    uint64_t hash = s->cache.hash;
    int rc = gr_cache_pack(&s->cache, moves);
    if (!rc && s->ranks)
        rc = s->ranks->broadcast(s, GR_BROADCAST_PACK, hash);
    if (rc)
        return rc;
    rc = gr_run_moves(s, moves);
    if (rc) /* cells and data disagree */
        gr_session_clear(s);
    return rc;
}

int32_t gr_kv_seq_pos_min(const struct gr_session *s, int32_t seq)
{
    return gr_cache_pos_min(&s->cache, seq);
}

int32_t gr_kv_seq_pos_max(const struct gr_session *s, int32_t seq)
{
    return gr_cache_pos_max(&s->cache, seq);
}

int32_t gr_kv_seq_cut_min(const struct gr_session *s, int32_t seq)
{
    return gr_cache_cut_min(&s->cache, seq);
}

uint32_t gr_kv_used(const struct gr_session *s)
{
    return gr_cache_used(&s->cache);
}

struct gr_kv_count gr_kv_seq_count(const struct gr_session *s, int32_t seq)
{
    const struct gr_cache *cache = &s->cache;
    const struct gr_kv *kv = gr_cache_has_positions(cache, GR_CACHE_FULL) ? cache->kv[GR_CACHE_FULL]
                             : gr_cache_has_positions(cache, GR_CACHE_SWA) ? cache->kv[GR_CACHE_SWA]
                                                                           : NULL;
    int32_t lo, hi;
    if (!kv || seq < 0 || (uint32_t)seq >= cache->n_seq_max)
        return (struct gr_kv_count){0};
    return (struct gr_kv_count){gr_kv_seq_cells(kv, seq), gr_kv_seq_shared(kv, seq),
                                gr_kv_seq_shifts(kv, seq, &lo, &hi)};
}

void gr_kv_dump(const struct gr_session *s, FILE *out)
{
    gr_cache_print(&s->cache, out);
}

/* Checks that no other sequence shares cells of `seq` in [lo, hi): moving them would move them for
 * that one too. */
static int check_own(const struct gr_session *s, int32_t seq, int32_t lo, int32_t hi)
{
    for (int k = 0; k < GR_N_CACHE_KIND; k++) {
        const struct gr_kv *kv = gr_cache_has_positions(&s->cache, k) ? s->cache.kv[k] : NULL;
        bool shares = kv && gr_kv_seq_shared(kv, seq) > 0;
        for (uint32_t i = 0; shares && i < gr_kv_n_cell(kv); i++) {
            struct gr_cell c = gr_kv_cell(kv, i);
            if (c.n_seq > 1 && c.pos >= lo && c.pos < hi && gr_kv_cell_has(kv, i, seq))
                return gr_fail(GR_E_UNSUPPORTED,
                               "context shift: sequence %d shares the cell of position %d with "
                               "another one, which would move too; gr_kv_seq_dup makes it its own",
                               seq, c.pos);
        }
    }
    return 0;
}

/* Removes positions [lo, hi) and moves those in [hi, end) down to lo. The addition is applied to
 * [lo, end): [lo, hi) is empty by then, and windowed caches learn that the cells they had already
 * dropped there are evicted. */
static int discard(struct gr_session *s, int32_t seq, int32_t lo, int32_t hi, int32_t end)
{
    const struct gr_kv_op rm = {.kind = GR_KV_RM, .seq = seq, .p0 = lo, .p1 = hi};
    const struct gr_kv_op add = {GR_KV_ADD, seq, 0, lo, end, lo - hi};
    struct gr_kv_moves none[GR_N_CACHE_KIND];
    int rc = gr_cache_can(&s->cache, &rm);
    if (!rc)
        rc = gr_cache_can(&s->cache, &add);
    if (!rc)
        rc = check_own(s, seq, hi, end);
    if (!rc)
        rc = gr_cache_op(&s->cache, &rm, none);
    return rc ? rc : gr_cache_op(&s->cache, &add, none);
}

/* Checks that the model allows dropping old text. */
static int check_shiftable(const struct gr_session *s)
{
    const char *why = check_movable(s) ? "has learned its positions, which cannot be changed"
                      : s->cache.rs
                          ? "has recurrent states, from which old text cannot be taken away"
                          : NULL;
    return !why ? 0
                : gr_fail(GR_E_UNSUPPORTED,
                          "context shift: a %s model %s; leave it off and give a context for all "
                          "of the text (-c)",
                          s->model->arch->name, why);
}

static int check_shift_args(const struct gr_session *s, int32_t seq, int32_t n_keep)
{
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not change the cells under its batch");
    if (n_keep >= 0 && seq >= 0 && seq < (int32_t)s->params.n_seq_max)
        return 0;
    return gr_fail(GR_E_INVALID,
                   "context shift: a sequence below %u and tokens to keep from 0 on expected, "
                   "%d and %d found",
                   s->params.n_seq_max, seq, n_keep);
}

int gr_context_can_shift(struct gr_session *s, int32_t seq, int32_t n_keep)
{
    int32_t end = (int32_t)s->memory.n_ctx_seq, keep = GR_MIN(n_keep, end - 4);
    int rc = check_shift_args(s, seq, n_keep);
    if (!rc)
        rc = check_shiftable(s);
    for (int k = 0; k < GR_N_CACHE_KIND && !rc; k++)
        if (gr_cache_has_positions(&s->cache, k))
            rc = gr_kv_can_shift(s->cache.kv[k], seq, keep, (end - keep) / 2, end);
    return rc;
}

int gr_context_shift(struct gr_session *s, int32_t seq, int32_t n_keep, int32_t n_discard,
                     int32_t *n_past)
{
    int rc = check_shift_args(s, seq, n_keep);
    if (rc)
        return rc;
    int32_t end = gr_cache_pos_max(&s->cache, seq) + 1;
    int32_t keep = GR_MIN(n_keep, (int32_t)s->memory.n_ctx_seq - 4), left = end - keep;
    if (left < 2)
        return gr_fail(GR_E_INVALID,
                       "context shift: sequence %d has %d positions, %d of which are to be kept: "
                       "there is nothing to discard",
                       seq, end, keep);
    int32_t n = GR_MIN(n_discard > 0 ? n_discard : left / 2, left - 1);
    rc = check_shiftable(s);
    if (!rc)
        rc = discard(s, seq, keep, keep + n, end);
    if (!rc && n_past)
        *n_past = end - n;
    return rc;
}

/* Checks that positions can be divided. A cache of the window's size does not allow it: merged
 * positions bring more cells into a window than it holds. */
static int check_groupable(const struct gr_session *s)
{
    const struct gr_kv_params *swa = &s->memory.cache.kv[GR_CACHE_SWA];
    int rc = check_movable(s);
    if (!rc && s->cache.rs)
        rc = gr_fail(GR_E_UNSUPPORTED,
                     "Self-Extend: a %s model has recurrent states, which positions are part of: "
                     "they cannot be divided; leave it off (-gan 1)",
                     s->model->arch->name);
    if (rc || !s->cache.kv[GR_CACHE_SWA] || swa->n_cell >= s->memory.n_ctx_seq)
        return rc;
    return gr_fail(GR_E_UNSUPPORTED,
                   "Self-Extend: layers with a sliding window keep only %u cells; use --swa-full",
                   swa->n_cell);
}

int gr_self_extend(struct gr_session *s, struct gr_self_extend *se, int32_t *n_past)
{
    int32_t end = gr_kv_seq_pos_max(s, 0) + 1;
    bool off = se->n <= 1; /* allowed for every model */
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not change the cells under its batch");
    int rc = off ? 0 : check_groupable(s);
    if (rc)
        return rc;
    if (!off && *n_past > end)
        return gr_fail(GR_E_INVALID, "Self-Extend: sequence 0 has positions below %d, not %d", end,
                       *n_past);
    return gr_self_extend_cells(&s->cache, 0, se, n_past);
}
