#include "ops/state.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gr/status.h"

const int32_t state_src[3] = {-1, 3, 0}, state_dst[3] = {1, 3, 4};

struct gr_ten state_array(struct ops_case *c, const int32_t *rows, int first, int n)
{
    struct gr_ten t = ops_new(c, GR_I32, 1, 1, n);
    memcpy(t.data, rows + first, (size_t)n * sizeof *rows);
    return t;
}

struct gr_ten state_rows(struct gr_ten t, int64_t lo, int64_t hi)
{
    t.data = gr_ten_row(&t, 0, lo), t.rows = hi - lo;
    return t;
}

double *state_from(struct ops_case *c, const struct gr_ten *state, int32_t src)
{
    double *s = ops_doubles(c, state->cols);
    if (src >= 0)
        memcpy(s, ops_values(c, state) + src * state->cols, (size_t)state->cols * sizeof *s);
    return s;
}

struct ops_out *state_expect(struct ops_case *c, const struct gr_ten *state)
{
    struct ops_out *o = ops_expect(c, state);
    for (int64_t i = 0; i < ops_count(state); i++)
        o->want[i] = NAN;
    return o;
}

void state_set(struct ops_out *o, int32_t dst, const double *want, const double *tol_ref,
               const double *tol_fast)
{
    int64_t n = o->ten.cols, at = dst * n;
    memcpy(o->want + at, want, (size_t)n * sizeof *want);
    memcpy(o->tol_ref + at, tol_ref, (size_t)n * sizeof *want);
    memcpy(o->tol_fast + at, tol_fast, (size_t)n * sizeof *want);
}

static const struct ops_buf *last(const struct ops_case *c, int i)
{
    return &c->buf[c->n_buf - 1 - i];
}

static int run_cut(struct ops_case *whole, struct ops_case *one, struct ops_case *two,
                   struct gr_backend *b)
{
    if (!b || ops_try(whole, b) || ops_try(one, b))
        return 1;
    memcpy(last(two, 1)->host, last(one, 1)->result, last(one, 1)->bytes);
    return ops_try(two, b);
}

static void compare_cut(struct ops_case *whole, const struct ops_case *one,
                        const struct ops_case *two, int64_t n, int64_t n_tok)
{
    const size_t row = (last(whole, 0)->bytes - 64) / (size_t)n_tok, first = (size_t)n * row;
    if (memcmp(last(whole, 1)->result, last(two, 1)->result, last(two, 1)->bytes) != 0)
        ops_wrong(whole, "the state differs");
    if (memcmp(last(whole, 0)->result, last(one, 0)->result, first) != 0)
        ops_wrong(whole, "the first step differs");
    if (memcmp(last(whole, 0)->result + first, last(two, 0)->result, (size_t)(n_tok - n) * row) !=
        0)
        ops_wrong(whole, "the second step differs");
}

/* On this backend of the CPU, or on a GPU. */
static void check_cut(void (*make)(struct ops_case *c, int64_t lo, int64_t hi), int64_t n,
                      int64_t n_tok, const char *where, struct gr_backend *b, int device)
{
    struct ops_case whole, one, two;
    make(&whole, 0, n_tok);
    make(&one, 0, n);
    make(&two, n, n_tok);
    const size_t end = strlen(whole.label);
    snprintf(whole.label + end, sizeof whole.label - end, ", cut at %lld, %s", (long long)n, where);
    if (ops_begin(&whole)) {
        if (run_cut(&whole, &one, &two, b ? b : ops_device(&whole, device))) {
            ops_wrong(&whole, "%s%s", one.why, two.why);
            whole.lost |= one.lost || two.lost;
        } else {
            compare_cut(&whole, &one, &two, n, n_tok);
        }
        ops_end(&whole);
    }
    ops_case_fini(&whole);
    ops_case_fini(&one);
    ops_case_fini(&two);
}

void state_check_cut(void (*make)(struct ops_case *c, int64_t lo, int64_t hi), int64_t n,
                     int64_t n_tok)
{
    for (enum gr_cpu_level level = GR_CPU_REF; level < GR_CPU_N_LEVEL; level++) {
        struct gr_backend *b;
        if (!gr_cpu_has(level) || !ops_on_cpu())
            continue;
        cr_assert_eq(gr_cpu_open(&b, 2, 2, level), 0, "%s", gr_error());
        check_cut(make, n, n_tok, gr_cpu_level_name(level), b, 0);
        b->api->close(&b);
    }
    for (int i = 0; i < ops_n_device(); i++)
        check_cut(make, n, n_tok, gr_cuda_devices.name, NULL, i);
}
