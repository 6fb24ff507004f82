#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "ops/state.h"

#define U 0x1p-24 /* half a unit in the last place of 1 */

struct shape {
    int first, n_seq;
    int64_t per, n_head, n_head_kv, d_k, d_v;
    int decay;
    bool bias, own, erase, rest; /* own: with `first` */
};

/* A head of one sequence as it goes: S [d_k][d_v] and, for each of its columns, bounds of the
 * length of what it is off by. Of a token: its vectors, and what bounds need of them. */
struct head {
    const struct gr_args_linear_attn *a;
    int64_t h, d_k, d_v;
    double *s, *k, *decay, *erase, *rate, *ref, *fast;
    const double *q, *first;
    double grow, power, k_length, q_length, most_rate, most_first;
};

static double length_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* The exponent of a decay; *power: by how many units it may be off, times what it is. */
static double exponent(const struct head *h, double x, double *power)
{
    double e = -(double)h->a->slope * exp2(-8 * (double)(h->h + 1) / (double)h->a->n_head);
    if (h->a->decay == GR_DECAY_EXP)
        e = -exp(x);
    if (h->a->decay == GR_DECAY_SIGMOID)
        e = -0.606531 / (1 + exp(-x));
    *power = (24 + 3 * fabs(x)) * fabs(e);
    return e;
}

static void prepare(struct head *h, const double *k, const double *w, const double *bias,
                    const double *erase, const double *rate)
{
    double largest = 0, e_length = erase ? sqrt(pow(length_of(erase, h->d_k), 2) + 1e-24) : 1;
    h->power = h->most_rate = h->most_first = 0;
    for (int64_t i = 0; i < h->d_k; i++) {
        double power, e = exponent(h, (w ? w[i] : 0) + (bias ? bias[i] : 0), &power);
        h->decay[i] = exp(e);
        h->k[i] = k[i] * (h->a->rest ? 1 - exp(e) : 1);
        h->erase[i] = erase ? erase[i] / e_length : 0;
        h->rate[i] = erase ? rate[i] * h->erase[i] : 0;
        largest = fmax(largest, exp(e)), h->power = fmax(h->power, power);
        h->most_rate = fmax(h->most_rate, erase ? fabs(rate[i]) : 0);
        h->most_first = fmax(h->most_first, h->first ? fabs(h->first[i]) : 0);
    }
    h->grow = largest + h->most_rate;
    h->k_length = length_of(k, h->d_k), h->q_length = length_of(h->q, h->d_k);
}

/* Column j. An error of length e becomes at most (largest decay + largest rate) * e; the rounding
 * of this step comes on top: ref rounds the state; fast the decays by `power`, sums of d_k products
 * and a few single operations. */
static void column(struct head *h, int64_t j, double v, double *y, double *tol)
{
    double known = 0, before = 0, after = 0, scale = fabs((double)h->a->scale);
    for (int64_t i = 0; i < h->d_k; i++) {
        known += h->s[i * h->d_v + j] * h->erase[i];
        before += pow(h->s[i * h->d_v + j], 2);
    }
    *y = 0;
    for (int64_t i = 0; i < h->d_k; i++) {
        double *s = &h->s[i * h->d_v + j], old = *s;
        *s = h->decay[i] * old + h->k[i] * v - h->rate[i] * known;
        *y += h->q[i] * (h->first ? old + h->first[i] * h->k[i] * v : *s) * (double)h->a->scale;
        after += pow(*s, 2);
    }
    double size = sqrt(before) * (1 + h->most_rate) + fabs(v) * h->k_length + sqrt(after);
    double n = (double)h->d_k + 24 + h->power, ref = h->ref[j], fast = h->fast[j];
    h->ref[j] = h->grow * ref + U * sqrt(after) + 1e-12 * size;
    h->fast[j] = h->grow * fast + U * n * size + 0x1p-126 * size;
    size += h->most_first * h->k_length * fabs(v);
    tol[0] = scale * h->q_length * (ref + h->ref[j] + 1e-12 * size);
    tol[1] = scale * h->q_length * (fast + h->fast[j] + U * 2 * n * size);
}

static const double *maybe(struct ops_case *c, const struct gr_ten *t)
{
    return gr_ten_is(t) ? ops_values(c, t) : NULL;
}

static const double *at(const double *x, int64_t i)
{
    return x ? x + i : NULL;
}

static void expect(struct ops_case *c, const struct gr_args_linear_attn *a)
{
    int64_t d_k = a->q.cols / a->n_head, d_v = a->v.cols / a->n_head_kv, n = a->state.cols;
    int64_t n_seq = a->src.cols, per = a->v.rows / n_seq, size = d_k * d_v;
    const double *q = ops_values(c, &a->q), *k = ops_values(c, &a->k), *v = ops_values(c, &a->v);
    const double *w = maybe(c, &a->w), *bias = maybe(c, &a->w_bias), *first = maybe(c, &a->first);
    const double *erase = maybe(c, &a->erase), *rate = maybe(c, &a->rate);
    struct ops_out *state = state_expect(c, &a->state), *o = ops_expect(c, &a->y);
    double *tol = ops_doubles(c, 2 * ops_count(&a->y));
    struct head h = {.a = a, .d_k = d_k, .d_v = d_v};
    h.k = ops_doubles(c, d_k), h.decay = ops_doubles(c, d_k);
    h.erase = ops_doubles(c, d_k), h.rate = ops_doubles(c, d_k);
    for (int64_t r = 0; r < n_seq; r++) {
        double *all = state_from(c, &a->state, ((const int32_t *)a->src.data)[r]);
        double *ref = ops_doubles(c, n), *fast = ops_doubles(c, n);
        for (h.h = 0; h.h < a->n_head; h.h++) {
            int64_t kv = h.h / (a->n_head / a->n_head_kv);
            h.s = all + h.h * size, h.first = at(first, h.h * d_k);
            h.ref = ops_doubles(c, d_v), h.fast = ops_doubles(c, d_v);
            for (int64_t t = r * per; t < (r + 1) * per; t++) {
                int64_t col = t * a->q.cols + h.h * d_k;
                h.q = q + col;
                prepare(&h, k + t * a->k.cols + kv * d_k, at(w, col), at(bias, h.h * d_k),
                        at(erase, col), at(rate, col));
                for (int64_t j = 0; j < d_v; j++) {
                    int64_t i = t * a->y.cols + h.h * d_v + j;
                    column(&h, j, v[t * a->v.cols + kv * d_v + j], &o->want[i], &tol[2 * i]);
                }
            }
            for (int64_t i = 0; i < size; i++)
                ref[h.h * size + i] = h.ref[i % d_v] + 0x1p-149,
                                 fast[h.h * size + i] = h.fast[i % d_v] + 0x1p-149;
        }
        state_set(state, ((const int32_t *)a->dst.data)[r], all, ref, fast);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++)
        o->tol_ref[i] += tol[2 * i], o->tol_fast[i] += tol[2 * i + 1];
}

static void init(struct ops_case *c, const struct shape *s, enum ops_data data)
{
    ops_case_init(c, GR_OP_LINEAR_ATTN, 25,
                  "%d x %lld tokens, %lld/%lld heads of %lld x %lld, decay %d, data %d", s->n_seq,
                  (long long)s->per, (long long)s->n_head, (long long)s->n_head_kv,
                  (long long)s->d_k, (long long)s->d_v, s->decay, data);
    int64_t n_tok = s->n_seq * s->per, n = s->n_head * s->d_k;
    struct gr_args_linear_attn *a = &c->node.a.linear_attn;
    *a = (struct gr_args_linear_attn){
        .q = ops_random(c, GR_F32, 1, n_tok, n, data),
        .k = ops_random(c, GR_F32, 1, n_tok, s->n_head_kv * s->d_k, data),
        .v = ops_random(c, GR_F32, 1, n_tok, s->n_head_kv * s->d_v, data),
        .src = state_array(c, state_src, s->first, s->n_seq),
        .dst = state_array(c, state_dst, s->first, s->n_seq),
        .n_head = s->n_head,
        .n_head_kv = s->n_head_kv,
        .scale = 0.3f,
        .slope = 0.7f,
        .decay = s->decay,
        .rest = s->rest};
    if (s->decay != GR_DECAY_SLOPE)
        a->w = ops_random(c, GR_F32, 1, n_tok, n, OPS_NORMAL);
    if (s->bias)
        a->w_bias = ops_random(c, GR_F32, 1, 1, n, OPS_NORMAL);
    if (s->own)
        a->first = ops_random(c, GR_F32, 1, 1, n, OPS_NORMAL);
    if (s->erase) {
        a->erase = ops_random(c, GR_F32, 1, n_tok, n, data);
        a->rate = ops_random(c, GR_F32, 1, n_tok, n, OPS_NORMAL);
    }
    a->state = ops_random(c, GR_F32, 1, STATE_ROWS, n * s->d_v, data);
    a->y = ops_new(c, GR_F32, 1, n_tok, s->n_head * s->d_v);
}

static const struct shape shapes[] = {
    {0, 1, 1, 1, 1, 1, 1, GR_DECAY_SLOPE, false, false, false, false},
    {0, 3, 5, 3, 3, 32, 32, GR_DECAY_SLOPE, false, false, false, false},
    {0, 2, 5, 4, 2, 17, 24, GR_DECAY_EXP, true, false, false, true},
    {1, 1, 13, 3, 3, 9, 21, GR_DECAY_EXP, true, true, false, false},
    {0, 3, 4, 2, 2, 64, 40, GR_DECAY_SIGMOID, true, false, true, false},
    {2, 1, 7, 2, 1, 12, 33, GR_DECAY_SIGMOID, false, true, true, false},
    {0, 2, 3, 2, 2, 128, 12, GR_DECAY_EXP, true, false, true, false}, /* keys of each width that */
    {1, 1, 4, 1, 1, 200, 20, GR_DECAY_SIGMOID, true, true, true, false}, /* kernels have */
    {0, 1, 3, 1, 1, 256, 8, GR_DECAY_SLOPE, false, false, false, false},
};

Test(linear_attn, all)
{
    for (size_t i = 0; i < GR_COUNT(shapes); i++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
            struct ops_case c;
            init(&c, &shapes[i], data);
            expect(&c, &c.node.a.linear_attn);
            ops_check(&c);
            ops_case_fini(&c);
        }
}

static void cut(struct ops_case *c, int64_t lo, int64_t hi)
{
    static const struct shape whole = {2,    1,     9,    2,    1, 10, 19, GR_DECAY_EXP,
                                       true, false, true, false};
    init(c, &whole, OPS_NORMAL);
    struct gr_args_linear_attn *a = &c->node.a.linear_attn;
    a->q = state_rows(a->q, lo, hi), a->k = state_rows(a->k, lo, hi),
    a->v = state_rows(a->v, lo, hi);
    a->w = state_rows(a->w, lo, hi), a->erase = state_rows(a->erase, lo, hi);
    a->rate = state_rows(a->rate, lo, hi), a->y = state_rows(a->y, 0, hi - lo);
    *(int32_t *)a->src.data = (lo ? state_dst : state_src)[2];
}

Test(linear_attn, a_cut_changes_no_bit)
{
    for (int64_t n = 1; n < 9; n++)
        state_check_cut(cut, n, 9);
}

static void shift(int first, int n_seq, int64_t per, int64_t n, enum ops_data data)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_TOKEN_SHIFT, 26, "%d x %lld tokens of %lld, data %d", n_seq,
                  (long long)per, (long long)n, data);
    struct gr_args_token_shift *a = &c.node.a.token_shift;
    *a = (struct gr_args_token_shift){.x = ops_random(&c, GR_F32, 1, n_seq * per, n, data),
                                      .src = state_array(&c, state_src, first, n_seq),
                                      .dst = state_array(&c, state_dst, first, n_seq)};
    a->state = ops_random(&c, GR_F32, 1, STATE_ROWS, n, data);
    a->y = ops_new(&c, GR_F32, 1, n_seq * per, n);
    const double *x = ops_values(&c, &a->x);
    struct ops_out *state = state_expect(&c, &a->state), *o = ops_expect(&c, &a->y);
    double *exact = ops_doubles(&c, n);
    for (int64_t r = 0; r < n_seq; r++) {
        double *before = state_from(&c, &a->state, ((const int32_t *)a->src.data)[r]);
        for (int64_t i = r * per * n; i < (r + 1) * per * n; i++) {
            o->want[i] = before[i % n] - x[i];
            before[i % n] = x[i];
        }
        state_set(state, ((const int32_t *)a->dst.data)[r], before, exact, exact);
    }
    ops_round_to_f32(o);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(token_shift, all)
{
    for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
        shift(0, 3, 1, 5, data);
        shift(0, 3, 4, 300, data);
        shift(1, 1, 7, 64, data);
    }
}
