/* Slices of texts, lists, tuples and ranges, as in Python. */
#include "base/checked.h"
#include "chat/value.h"

/* A bound of a slice over n items, as Python clamps it. False after an error. */
static bool bound(struct gr_render *r, struct gr_val v, int64_t n, bool back, int64_t otherwise,
                  int64_t *out)
{
    if (v.type == GR_VAL_NONE) {
        *out = otherwise;
        return true;
    }
    if (!gr_is_int(v)) {
        gr_render_fail(r, "slice indices must be integers or None");
        return false;
    }
    int64_t i = gr_int_of(v);
    if (i < 0)
        i += n;
    int64_t lo = back ? -1 : 0, hi = back ? n - 1 : n;
    *out = i < lo ? lo : i > hi ? hi : i;
    return true;
}

/* Offsets of all code points of s and of its end. */
static size_t *offsets(struct gr_render *r, const struct gr_string *s, int64_t n)
{
    size_t *at = gr_render_alloc(r, (size_t)n + 1, sizeof *at), k = 0;
    gr_render_step(r, s->n / 32);
    for (size_t i = 0; at && i < s->n; i++) {
        if ((s->p[i] & 0xc0) != 0x80)
            at[k++] = i;
    }
    if (at)
        at[k] = s->n;
    return at;
}

/* Offset of code point i. */
static size_t offset(const struct gr_string *s, int64_t i)
{
    size_t at = 0;
    while (at < s->n && (i > 0 || (s->p[at] & 0xc0) == 0x80))
        i -= (s->p[at++] & 0xc0) != 0x80;
    while (at < s->n && (s->p[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static struct gr_val slice_str(struct gr_render *r, const struct gr_string *s, int64_t start,
                               int64_t stop, int64_t step, int64_t n)
{
    gr_render_step(r, s->n / 64);
    if (step == 1)
        return start < stop ? gr_str_part(r, s, offset(s, start), offset(s, stop))
                            : gr_str_view(r, "", 0, NULL);
    struct gr_text t = {0};
    const size_t *at = offsets(r, s, n);
    for (int64_t i = start; at && (step > 0 ? i < stop : i > stop) && gr_render_ok(r);) {
        gr_text_put(r, &t, s->p + at[i], at[i + 1] - at[i], s->mark ? s->mark + at[i] : NULL);
        if (!gr_add(&i, i, step))
            break;
    }
    return gr_text_value(r, &t);
}

static struct gr_val slice_list(struct gr_render *r, struct gr_val v, int64_t start, int64_t stop,
                                int64_t step)
{
    struct gr_list *l = gr_list_new(r, 0);
    for (int64_t i = start; (step > 0 ? i < stop : i > stop) && gr_render_step(r, 1);) {
        gr_list_push(r, l, v.list->v[i]);
        if (!gr_add(&i, i, step))
            break;
    }
    return v.type == GR_VAL_LIST ? gr_list_value(l) : gr_tuple_value(l);
}

static struct gr_val slice_range(struct gr_render *r, const struct gr_range *a, int64_t start,
                                 int64_t stop, int64_t step)
{
    struct gr_range *out = gr_render_alloc(r, 1, sizeof *out);
    if (!out)
        return gr_none();
    if (!gr_mul(&out->start, a->step, start) || !gr_add(&out->start, out->start, a->start) ||
        !gr_mul(&out->stop, a->step, stop) || !gr_add(&out->stop, out->stop, a->start) ||
        !gr_mul(&out->step, a->step, step))
        return gr_render_fail(r, "the result of integers does not fit 64 bits");
    int64_t by = step > 0 ? step : -step, span = step > 0 ? stop - start : start - stop;
    if (span > 0 && by > 0)
        out->n = (span - 1) / by + 1;
    return (struct gr_val){.type = GR_VAL_RANGE, .range = out};
}

struct gr_val gr_slice(struct gr_render *r, struct gr_val obj, struct gr_val start,
                       struct gr_val stop, struct gr_val step)
{
    if (obj.type == GR_VAL_UNDEFINED)
        return gr_undefined_fail(r, obj);
    if (!gr_is_str(obj) && !gr_is_sequence(obj) && obj.type != GR_VAL_RANGE)
        return gr_render_fail(r, "'%s' object cannot be sliced", gr_type_name(obj));
    int64_t n = gr_length(obj), k = 1, lo, hi;
    if (step.type != GR_VAL_NONE && !gr_is_int(step))
        return gr_render_fail(r, "slice indices must be integers or None");
    if (step.type != GR_VAL_NONE)
        k = gr_int_of(step);
    if (k == 0)
        return gr_render_fail(r, "slice step cannot be zero");
    k = k == INT64_MIN ? -INT64_MAX : k;
    if (!bound(r, start, n, k < 0, k < 0 ? n - 1 : 0, &lo) ||
        !bound(r, stop, n, k < 0, k < 0 ? -1 : n, &hi))
        return gr_none();
    if (gr_is_str(obj))
        return slice_str(r, obj.str, lo, hi, k, n);
    if (obj.type == GR_VAL_RANGE)
        return slice_range(r, obj.range, lo, hi, k);
    return slice_list(r, obj, lo, hi, k);
}
