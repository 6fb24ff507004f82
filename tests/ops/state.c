#include "ops/state.h"

#include <criterion/criterion.h>
#include <math.h>
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

static void check_level(void (*make)(struct ops_case *c, int64_t lo, int64_t hi), int64_t n,
                        int64_t n_tok, struct gr_backend *b)
{
    struct ops_case whole, one, two;
    make(&whole, 0, n_tok);
    make(&one, 0, n);
    make(&two, n, n_tok);
    ops_run(&whole, b);
    ops_run(&one, b);
    memcpy(last(&two, 1)->host, last(&one, 1)->result, last(&one, 1)->bytes);
    ops_run(&two, b);
    cr_expect_eq(memcmp(last(&whole, 1)->result, last(&two, 1)->result, last(&two, 1)->bytes), 0,
                 "%s: the state differs", whole.label);
    size_t row = (last(&whole, 0)->bytes - 64) / (size_t)n_tok;
    cr_expect_eq(memcmp(last(&whole, 0)->result, last(&one, 0)->result, (size_t)n * row), 0,
                 "%s: the first step differs", whole.label);
    cr_expect_eq(memcmp(last(&whole, 0)->result + (size_t)n * row, last(&two, 0)->result,
                        (size_t)(n_tok - n) * row),
                 0, "%s: the second step differs", whole.label);
    ops_case_fini(&whole);
    ops_case_fini(&one);
    ops_case_fini(&two);
}

void state_check_cut(void (*make)(struct ops_case *c, int64_t lo, int64_t hi), int64_t n,
                     int64_t n_tok)
{
    for (enum gr_cpu_level level = GR_CPU_REF; level < GR_CPU_N_LEVEL; level++) {
        struct gr_backend *b;
        if (!gr_cpu_has(level))
            continue;
        cr_assert_eq(gr_cpu_open(&b, 2, 2, level), 0, "%s", gr_error());
        check_level(make, n, n_tok, b);
        b->api->close(&b);
    }
    const char *why;
    bool broken;
    int n_device = gr_cuda_devices.count(&why, &broken);
    for (int i = 0; i < n_device; i++) {
        struct gr_backend *b;
        cr_assert_eq(gr_cuda_devices.open(&b, i, &(struct gr_device_opt){.no_graphs = true}), 0,
                     "%s", gr_error());
        check_level(make, n, n_tok, b);
        b->api->close(&b);
    }
}
