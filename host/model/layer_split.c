#include "model/layer_split.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

/* ---- shares ---- */

/* Reads "24", "0.5", ".5" or "3.", as in C, independent of the locale. */
static bool read_share(const char *p, size_t n, float *out)
{
    double value = 0, unit = 1;
    bool digits = false, point = false;
    for (size_t i = 0; i < n; i++) {
        bool digit = p[i] >= '0' && p[i] <= '9';
        if (!digit && (p[i] != '.' || point))
            return false;
        point |= !digit;
        digits |= digit;
        if (digit)
            value = value * 10 + (p[i] - '0'), unit *= point ? 10 : 1;
    }
    *out = (float)(value / unit);
    return digits && value < 1e15 && unit < 1e15;
}

int gr_split_parse(const char *text, float share[GR_MAX_RANK_DEVICE], int32_t *n)
{
    float sum = 0;
    size_t len;
    *n = 0;
    for (const char *p = text; *p; p += len, p += *p != 0) {
        len = strcspn(p, ",/");
        if (*n == GR_MAX_RANK_DEVICE)
            return gr_fail(GR_E_INVALID, "tensor split: more than %d shares", GR_MAX_RANK_DEVICE);
        if (!read_share(p, len, &share[*n]))
            return gr_fail(GR_E_INVALID,
                           "tensor split: numbers from 0 on expected, as in 3,1, or auto; %s found",
                           gr_quote(p, len));
        sum += share[(*n)++];
    }
    return sum > 0 ? 0
                   : gr_fail(GR_E_INVALID,
                             "tensor split: a share above 0 expected, %s found; leave it out for "
                             "shares in proportion to free memory",
                             *text ? "none" : "nothing");
}

int gr_split_read(struct gr_split_request *w, const struct gr_model_params *p)
{
    const char *text = p->tensor_split;
    *w = (struct gr_split_request){.mode = p->split_mode};
    if (w->mode < GR_SPLIT_MODE_LAYER || w->mode > GR_SPLIT_MODE_TENSOR)
        return gr_fail(GR_E_INVALID, "unknown split mode %d", (int)w->mode);
    w->even_memory = text && !strcasecmp(text, "auto");
    return !text || w->even_memory ? 0 : gr_split_parse(text, w->share, &w->n_share);
}

void gr_split_shares(int32_t n_layer, int32_t n_gpu, const float *share, int32_t n_device,
                     int32_t *cut)
{
    float until[GR_MAX_RANK_DEVICE] = {0}, sum = 0;
    int32_t n = GR_MAX(0, GR_MIN(n_gpu, n_layer + 1)), first = n_layer + 1 - n, k = 0;
    for (int32_t i = 0; i < n_device; i++)
        until[i] = sum += share[i];
    cut[0] = first;
    for (int32_t il = first; il <= n_layer; il++) {
        float at = (float)(il - first) / (float)n;
        while (k < n_device - 1 && until[k] / sum <= at)
            cut[++k] = il;
    }
    while (k < n_device)
        cut[++k] = n_layer + 1;
}

/* ---- the best split ---- */

/* Tables over [device][layer - lo]. */
struct search {
    const struct gr_split_problem *p;
    int32_t n; /* layers */
    /* [n_device + 1][n + 1]: smallest maximum fraction in use, when the devices before k have the
     * layers before i; fewest bytes moved after the start of device k, if that is at i. */
    double *least;
    uint64_t *bytes;
};

static size_t at(const struct search *s, int32_t k, int32_t i)
{
    return (size_t)k * (size_t)(s->n + 1) + (size_t)i;
}

static bool may_begin(const struct search *s, int32_t k, int32_t i)
{
    return k == 0 || k == s->p->n_device || s->p->may_cut(s->p->user, k, s->p->lo + i);
}

static double used(const struct search *s, int32_t k, int32_t i, int32_t end)
{
    return i < end ? s->p->used(s->p->user, k, s->p->lo + i, s->p->lo + end) : 0;
}

static void find_least(struct search *s)
{
    for (int32_t k = 0; k <= s->p->n_device; k++)
        for (int32_t i = 0; i <= s->n; i++)
            s->least[at(s, k, i)] = k || i ? NAN : 0; /* NAN: impossible */
    for (int32_t k = 0; k < s->p->n_device; k++)
        for (int32_t i = 0; i <= s->n; i++) {
            double before = s->least[at(s, k, i)];
            if (isnan(before) || !may_begin(s, k, i))
                continue;
            for (int32_t end = i; end <= s->n; end++) {
                double *least = &s->least[at(s, k + 1, end)];
                double most = fmax(before, used(s, k, i, end));
                if (!(*least <= most))
                    *least = most;
            }
        }
}

/* Bytes moved from the start of device k + 1 on if device k has [i, end); UINT64_MAX: no split. */
static uint64_t bytes_with(const struct search *s, int32_t k, int32_t i, int32_t end, double most)
{
    uint64_t rest = s->bytes[at(s, k + 1, end)];
    if (rest == UINT64_MAX || !may_begin(s, k + 1, end) || !(used(s, k, i, end) <= most))
        return UINT64_MAX;
    return rest +
           (k + 1 < s->p->n_device ? s->p->moved(s->p->user, k + 1, s->p->lo + end) : (uint64_t)0);
}

static void find_bytes(struct search *s, double most)
{
    for (int32_t i = 0; i <= s->n; i++)
        s->bytes[at(s, s->p->n_device, i)] = i == s->n ? 0 : UINT64_MAX;
    for (int32_t k = s->p->n_device; k-- > 0;)
        for (int32_t i = 0; i <= s->n; i++) {
            uint64_t *best = &s->bytes[at(s, k, i)];
            *best = UINT64_MAX;
            for (int32_t end = i; end <= s->n; end++)
                *best = GR_MIN(*best, bytes_with(s, k, i, end, most));
        }
}

static void take_cuts(const struct search *s, double most, int32_t *cut)
{
    int32_t i = 0;
    cut[0] = s->p->lo;
    for (int32_t k = 0; k < s->p->n_device; k++) {
        int32_t end = s->n;
        while (end > i && bytes_with(s, k, i, end, most) != s->bytes[at(s, k, i)])
            end--;
        cut[k + 1] = s->p->lo + end;
        i = end;
    }
}

int gr_split_best(const struct gr_split_problem *p, int32_t *cut, double *most)
{
    struct search s = {.p = p, .n = p->hi - p->lo};
    size_t n = at(&s, p->n_device + 1, 0);
    s.least = gr_calloc(n, sizeof *s.least);
    s.bytes = gr_calloc(n, sizeof *s.bytes);
    int rc = s.least && s.bytes ? 0 : GR_E_NOMEM_HOST;
    if (!rc) {
        find_least(&s);
        *most = s.least[at(&s, p->n_device, s.n)];
        rc = isnan(*most) ? gr_fail(GR_E_INVALID, "the layers cannot be divided") : 0;
    }
    if (!rc) {
        find_bytes(&s, *most);
        take_cuts(&s, *most, cut);
    }
    gr_free(s.least);
    gr_free(s.bytes);
    return rc;
}
