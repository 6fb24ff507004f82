#include "engine/self_extend.h"

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"

static int check(const struct gr_self_extend *se, int32_t n_past)
{
    if (se->n < 1 || se->w < 1 || se->w % se->n)
        return gr_fail(GR_E_INVALID,
                       "Self-Extend: a window that is a multiple of the group factor expected, "
                       "window %d and factor %d found",
                       se->w, se->n);
    if (se->i < 0 || n_past < 0)
        return gr_fail(GR_E_INVALID, "Self-Extend: positions from 0 on expected, %d and %d found",
                       se->i, n_past);
    return 0;
}

static void log_shift(int64_t lo, int64_t hi, int64_t delta)
{
    gr_log(GR_LOG_DEBUG, "shift: [%6d, %6d] + %6d -> [%6d, %6d]", (int)lo, (int)hi, (int)delta,
           (int)(lo + delta), (int)(hi + delta));
}

/* Merges the window that begins at se->i. Positions from there on are first raised by ib * bd, so
 * that dividing by n puts them right after the previous windows; then the positions after the
 * window move down to it. */
static int step(struct gr_cache *cache, int32_t seq, struct gr_self_extend *se, int32_t *n_past)
{
    int64_t n = se->n, w = se->w, i = se->i;
    int64_t ib = n * i / w, bd = w / n * (n - 1), dd = w / n - ib * bd - w;
    int64_t lo = i + ib * bd, hi = lo + w, end = *n_past + ib * bd;
    if (end > GR_POS_MAX)
        return gr_fail(
            GR_E_INVALID,
            "Self-Extend: position %lld exceeds the largest one, %d; use a smaller factor",
            (long long)end, GR_POS_MAX);
    log_shift(i, *n_past, ib * bd);
    gr_log(GR_LOG_DEBUG, "div:   [%6d, %6d] / %6d -> [%6d, %6d]", (int)lo, (int)hi, (int)n,
           (int)(lo / n), (int)(hi / n));
    log_shift(hi, end, dd);
    const struct gr_kv_op op[] = {
        {GR_KV_ADD, seq, 0, se->i, *n_past, (int32_t)(ib * bd)},
        {GR_KV_DIV, seq, 0, (int32_t)lo, (int32_t)hi, se->n},
        {GR_KV_ADD, seq, 0, (int32_t)hi, (int32_t)end, (int32_t)dd},
    };
    struct gr_kv_moves none[GR_N_CACHE_KIND];
    int rc = 0;
    for (unsigned k = 0; k < GR_COUNT(op) && !rc; k++)
        rc = gr_cache_op(cache, &op[k], none);
    if (rc)
        return rc;
    int32_t old = *n_past;
    *n_past -= (int32_t)bd;
    se->i += (int32_t)(w / n);
    gr_log(GR_LOG_DEBUG, "%s", "");
    gr_log(GR_LOG_DEBUG, "n_past_old = %d, n_past = %d, ga_i = %d", old, *n_past, se->i);
    gr_log(GR_LOG_DEBUG, "%s", "");
    return 0;
}

int64_t gr_self_extend_capacity(enum gr_self_extend_mode mode, int32_t n_train, int32_t n,
                                int32_t w)
{
    int64_t t = n_train;
    if (n < 1 || w < 1 || w % n || t < 1)
        return 0;
    if (n == 1 || w > t) /* nothing is ever grouped within the trained range */
        return t;
    /* The largest distance of token i to a key is floor(i / n) + w - w / n. */
    if (mode == GR_SELF_EXTEND_WINDOW)
        return (t - w) * n + w;
    /* After `full` merged windows the next one would end beyond t: the rest of t stays as it is. */
    int64_t full = (t - w) * n / w + 1;
    return full * w + t - full * (w / n);
}

enum { BLOCK = 256 }; /* cells that a session's n_ctx is rounded up to */

int gr_self_extend_choose(enum gr_self_extend_mode mode, int32_t n_train, int32_t n_ctx, int32_t *n,
                          int32_t *w)
{
    int32_t most = GR_MIN(*w, n_train / 4);
    int64_t longest = n_train;
    if (n_ctx <= n_train)
        return *n = 1, 0;
    for (int32_t k = 2; k <= most; k++) {
        int64_t capacity = gr_self_extend_capacity(mode, n_train, k, most / k * k);
        if (capacity >= n_ctx)
            return *n = k, *w = most / k * k, 0;
        longest = GR_MAX(longest, capacity / BLOCK * BLOCK);
    }
    return gr_fail(GR_E_INVALID,
                   "Self-Extend: no group factor makes a context of %d tokens out of the %d that "
                   "the model was trained for, with a window of at most %d; %lld are possible",
                   n_ctx, n_train, most, (long long)longest);
}

int32_t gr_self_extend_remaining(const struct gr_self_extend *se, int32_t n_past)
{
    int64_t left = (int64_t)se->i + se->w - n_past;
    return se->n <= 1 ? INT32_MAX : (int32_t)GR_MAX(1, GR_MIN(left, INT32_MAX));
}

int gr_self_extend_cells(struct gr_cache *cache, int32_t seq, struct gr_self_extend *se,
                         int32_t *n_past)
{
    int rc = check(se, *n_past);
    while (!rc && se->n > 1 && *n_past >= (int64_t)se->i + se->w)
        rc = step(cache, seq, se, n_past);
    return rc;
}
