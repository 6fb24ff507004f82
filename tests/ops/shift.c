/* A K-shift: K stored at position p and then moved by d is K stored at p + d, whatever the rope,
 * its scaling and the cache's type; and the sum of errors of many shifts of rounded K. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "arch/rope.h"
#include "base/checked.h"
#include "model/model.h"
#include "ops/ops.h"
#include "quant/planes.h"
#include "quant/quant.h"

enum { N_TOK = 4, MAX_D = 96, MAX_N = 2 * MAX_D, MAX_TEN = 16 };

/* ---- a few tensors on a backend ---- */

struct bench {
    struct gr_backend *b;
    void *memory[MAX_TEN];
    int n;
};

static struct gr_ten put(struct bench *u, uint32_t dtype, int64_t rows, int64_t cols,
                         const void *data)
{
    bool planes = gr_planes_are(dtype);
    struct gr_ten t = {.batch = 1,
                       .rows = rows,
                       .cols = cols,
                       .row_bytes = planes ? gr_planes_row(dtype, cols)
                                           : (int64_t)gr_row_bytes(dtype, (uint64_t)cols),
                       .dtype = dtype,
                       .planes = planes};
    cr_assert(u->n < MAX_TEN);
    t.data = u->memory[u->n++] = u->b->api->alloc(u->b, (size_t)(rows * t.row_bytes));
    cr_assert_not_null(t.data);
    if (data)
        cr_assert_eq(u->b->api->upload(u->b, t.data, data, (size_t)(rows * t.row_bytes)), 0);
    return t;
}

static void get(struct bench *u, const struct gr_ten *t, double *out)
{
    char bytes[MAX_N * 4 * 16];
    float row[MAX_N];
    cr_assert((size_t)(t->rows * t->row_bytes) <= sizeof bytes && t->cols <= MAX_N);
    cr_assert_eq(u->b->api->download(u->b, bytes, t->data, (size_t)(t->rows * t->row_bytes)), 0);
    for (int64_t r = 0; r < t->rows; r++) {
        if (t->planes)
            gr_planes_load(t->dtype, t->cols, bytes + r * t->row_bytes, 0, t->cols, row);
        else
            gr_quant_find(t->dtype)->dequantize(bytes + r * t->row_bytes, row, (size_t)t->cols);
        for (int64_t i = 0; i < t->cols; i++)
            out[r * t->cols + i] = (double)row[i];
    }
}

static void run(struct bench *u, const struct gr_node *node, int n)
{
    struct gr_segment seg = {node, n, NULL, 0};
    void *exec;
    cr_assert_eq(u->b->api->segment_new(u->b, &seg, &exec), 0);
    cr_assert_eq(u->b->api->segment_run(u->b, exec, NULL, NULL), 0);
    u->b->api->segment_free(u->b, &exec);
}

static void clear(struct bench *u)
{
    while (u->n)
        u->b->api->free(u->b, u->memory[--u->n]);
}

static struct gr_node table(struct gr_ten pos, struct gr_ten freq, struct gr_ten section,
                            struct gr_ten cs, float mag)
{
    return (struct gr_node){.op = GR_OP_ROPE_TABLE, .a.rope_table = {pos, freq, section, cs, mag}};
}

/* ---- random ropes ---- */

struct rope {
    int kind;
    int64_t d, n_head, n_rot;
    uint32_t type;
    bool sections;
    int32_t section[MAX_D / 2];
    double freq[MAX_D / 2];
    float mag;
    char label[160];
};

static double uniform(struct gr_rng *r, double lo, double hi)
{
    return lo + (hi - lo) * gr_rng_below(r, 1u << 30) / (double)(1u << 30);
}

static int32_t below(struct gr_rng *r, int64_t n)
{
    return (int32_t)gr_rng_below(r, (uint32_t)n);
}

/* A random model and what a session asks of it, resolved by the code that sessions use. */
static void random_freqs(struct gr_rng *r, struct rope *o)
{
    static struct gr_hparams hp;
    struct gr_session_params p = gr_session_params_default();
    struct gr_rope_opt opt;
    struct gr_rope_mag mag;
    float factors[MAX_D / 2];
    memset(&hp, 0, sizeof hp);
    hp.rope.n_rot = hp.rope.n_rot_swa = (int32_t)o->n_rot, hp.rope.interleaved = below(r, 2);
    for (int i = 0; i < 4 && o->sections; i++)
        hp.rope.section[i] = (i == 0) + below(r, o->n_rot / 2);
    hp.rope.freq_base = (float)pow(10, uniform(r, 2, 7)), hp.rope.freq_base_swa = 10000;
    hp.rope.freq_scale = (float)(1 / uniform(r, 1, 32)), hp.rope.freq_scale_swa = 1;
    hp.rope.scaling = (enum gr_scaling)below(r, 4), hp.rope.n_ctx_orig = 64 << below(r, 10);
    hp.rope.attn_factor = 1, hp.rope.yarn_attn_factor = (float)uniform(r, 0.5, 2);
    hp.rope.yarn_ext_factor = -1, hp.rope.yarn_beta_fast = 32, hp.rope.yarn_beta_slow = 1;
    p.rope_scaling = (enum gr_rope_scaling)below(r, 5);
    p.yarn_ext_factor = below(r, 2) ? NAN : (float)uniform(r, 0, 1);
    for (int64_t i = 0; i < o->n_rot / 2; i++)
        factors[i] = (float)uniform(r, 0.5, 16);
    gr_rope_resolve(&opt, &hp, &p);
    gr_rope_freqs(&opt, &hp, below(r, 4) == 0, below(r, 2) ? factors : NULL, o->freq, &mag);
    o->mag = mag.rope;
    if (o->sections)
        gr_rope_sections(&hp, o->section);
}

static void random_rope(struct gr_rng *r, struct rope *o)
{
    *o = (struct rope){.kind = below(r, 2) ? GR_ROPE_NEOX : GR_ROPE_NORM};
    o->d = 32 * (1 + below(r, 3)), o->n_head = 1 + below(r, 2);
    o->n_rot = below(r, 2) ? o->d : 2 * (1 + below(r, o->d / 2));
    o->type = (uint32_t)ops_cache_types[below(r, 5)];
    o->sections = below(r, 4) == 0;
    random_freqs(r, o);
    snprintf(o->label, sizeof o->label, "kind %d, %lld of %lld rotated, type %u, %s, mag %g",
             o->kind, (long long)o->n_rot, (long long)o->d, o->type,
             o->sections ? "M-RoPE" : "one position", (double)o->mag);
}

/* cos and sin of a token with these three positions, times mag. */
static void exact_cs(const struct rope *o, const int32_t pos[3], double mag, double *cs)
{
    for (int64_t i = 0; i < o->n_rot / 2; i++) {
        int32_t s = o->sections ? o->section[i] : 0;
        double angle = (s < 3 ? pos[s] : 0) * o->freq[i];
        cs[2 * i] = mag * cos(angle), cs[2 * i + 1] = mag * sin(angle);
    }
}

/* ---- K stored at p and moved by d, and K stored at p + d ---- */

struct keys {
    struct rope o;
    float k[N_TOK][MAX_N];
    int32_t pos[N_TOK][3], delta[N_TOK]; /* t, y, x */
};

static void random_keys(struct gr_rng *r, struct keys *q)
{
    random_rope(r, &q->o);
    for (int t = 0; t < N_TOK; t++) {
        int32_t least = INT32_MAX;
        for (int k = 0; k < 3; k++) {
            q->pos[t][k] = q->o.sections || !k ? below(r, 100000) : q->pos[t][0];
            least = GR_MIN(least, q->pos[t][k]);
        }
        q->delta[t] = below(r, 100000 + least) - least; /* no position turns negative */
        for (int64_t i = 0; i < q->o.d * q->o.n_head; i++)
            q->k[t][i] = gr_rng_normal(r) * (below(r, 20) ? 1 : 10);
    }
    q->delta[below(r, N_TOK)] = 0;
}

/* Runs both ways; token t is row cell[t] of the caches. */
static void both_ways(struct bench *u, const struct keys *q, const int32_t *cell, double *moved,
                      double *stored)
{
    const struct rope *o = &q->o;
    int64_t n = o->d * o->n_head;
    int32_t p[3][N_TOK], end[3][N_TOK], by[N_TOK];
    float k[N_TOK * MAX_N];
    for (int t = 0; t < N_TOK; t++) {
        memcpy(k + t * n, q->k[t], (size_t)n * sizeof *k);
        by[cell[t]] = q->delta[t];
        for (int r = 0; r < 3; r++)
            p[r][t] = q->pos[t][r], end[r][t] = q->pos[t][r] + q->delta[t];
    }
    struct gr_ten none = {0}, freq = put(u, GR_F64, 1, o->n_rot / 2, o->freq);
    struct gr_ten section = o->sections ? put(u, GR_I32, 1, o->n_rot / 2, o->section) : none;
    struct gr_ten at = put(u, GR_I32, o->sections ? 3 : 1, N_TOK, p);
    struct gr_ten to = put(u, GR_I32, o->sections ? 3 : 1, N_TOK, end);
    struct gr_ten delta = put(u, GR_I32, 1, N_TOK, by), cells = put(u, GR_I32, 1, N_TOK, cell);
    struct gr_ten keys = put(u, GR_F32, N_TOK, n, k), cs[3], cache[2];
    for (int i = 0; i < 3; i++)
        cs[i] = put(u, GR_F32, N_TOK, o->n_rot, NULL);
    for (int i = 0; i < 2; i++)
        cache[i] = put(u, o->type, N_TOK, n, NULL);
    struct gr_args_kv_store store = {.k = keys, .cells = cells, .d_head_k = o->d, .kind = o->kind};
    struct gr_args_kv_store here = store, there = store;
    here.cs = cs[0], here.k_cache = cache[0], there.cs = cs[2], there.k_cache = cache[1];
    const struct gr_node node[] = {
        table(at, freq, section, cs[0], o->mag),
        {.op = GR_OP_KV_STORE, .a.kv_store = here},
        table(delta, freq, none, cs[1], 1),
        {.op = GR_OP_KV_SHIFT, .a.kv_shift = {cs[1], delta, cache[0], o->d, o->kind}},
        table(to, freq, section, cs[2], o->mag),
        {.op = GR_OP_KV_STORE, .a.kv_store = there},
    };
    run(u, node, GR_COUNT(node));
    get(u, &cache[0], moved);
    get(u, &cache[1], stored);
    clear(u);
}

/* Largest difference of the two: the error of K when it is stored, rotated by d; when it is stored
 * again; and when it is stored at p + d. Cosines, sines, products and sums are rounded to f32 in
 * three rotations: 4 roundings each of the terms. */
static void tolerances(const struct keys *q, int t, double *tol)
{
    const struct rope *o = &q->o;
    int64_t n = o->d * o->n_head;
    int32_t d[3] = {q->delta[t], q->delta[t], q->delta[t]}, end[3];
    double k[MAX_N], cs[MAX_D], y[MAX_N], e[MAX_N], turned[MAX_N], terms[MAX_N], none[MAX_N];
    for (int i = 0; i < 3; i++)
        end[i] = q->pos[t][i] + q->delta[t];
    for (int64_t i = 0; i < n; i++)
        k[i] = (double)q->k[t][i];
    exact_cs(o, q->pos[t], (double)o->mag, cs);
    ops_rotate(k, cs, n, o->d, o->n_rot, o->kind, y, terms);
    for (int64_t i = 0; i < n; i++)
        e[i] = ops_storage_error(o->type, y[i], ops_block_max(y, i)) +
               4 * 0x1p-24 * (terms[i] + fabs(y[i]));
    exact_cs(o, d, 1, cs);
    for (int64_t i = 0; i < o->n_rot; i++)
        cs[i] = fabs(cs[i]);
    ops_rotate(e, cs, n, o->d, o->n_rot, o->kind, none, turned); /* |cos| e + |sin| e' */
    for (int64_t i = 0; i < n; i++)
        turned[i] = i % o->d < o->n_rot ? turned[i] : e[i];
    exact_cs(o, end, (double)o->mag, cs);
    ops_rotate(k, cs, n, o->d, o->n_rot, o->kind, y, terms);
    for (int64_t i = 0; i < n; i++) {
        double m = ops_block_max(y, i), more = ops_block_max(turned, i);
        tol[i] = turned[i] + ops_storage_error(o->type, fabs(y[i]) + turned[i], m + more) +
                 ops_storage_error(o->type, y[i], m) + 12 * 0x1p-24 * (terms[i] + fabs(y[i]) + m) +
                 0x1p-140;
    }
}

Test(shift, stored_and_moved_is_stored_there)
{
    static struct keys q;
    static double moved[N_TOK * MAX_N], stored[N_TOK * MAX_N];
    struct gr_rng r = gr_rng_new(12);
    int32_t cell[N_TOK] = {2, 0, 3, 1};
    struct gr_backend *b[GR_CPU_N_LEVEL] = {0};
    for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++)
        cr_assert(!gr_cpu_has(l) || !ops_on_cpu() || gr_cpu_open(&b[l], 1, 1, l) == 0);
    for (int round = 0; round < 2000; round++) {
        random_keys(&r, &q);
        for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++) {
            struct bench u = {.b = b[l]};
            double tol[MAX_N];
            if (!b[l])
                continue;
            both_ways(&u, &q, cell, moved, stored);
            for (int t = 0; t < N_TOK; t++) {
                int64_t n = q.o.d * q.o.n_head, at = cell[t] * n;
                tolerances(&q, t, tol);
                for (int64_t i = 0; i < n; i++)
                    cr_assert(fabs(moved[at + i] - stored[at + i]) <= tol[i],
                              "%d [%s]: %s, position %d moved by %d, column %lld: %.9g moved, %.9g "
                              "stored there, +- %.3g",
                              round, gr_cpu_level_name(l), q.o.label, q.pos[t][0], q.delta[t],
                              (long long)i, moved[at + i], stored[at + i], tol[i]);
            }
        }
    }
    for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++)
        if (b[l])
            b[l]->api->close(&b[l]);
}

/* ---- many shifts ---- */

enum { N_CELL = 16, D = 64, BY = -127 };

struct many {
    double cs[D], exact[N_CELL * D], got[N_CELL * D], bound[N_CELL * D];
};

/* The exact values after one more shift, and how far the stored ones may be off: a rotation keeps
 * the length of a pair's error, and storing adds what it may lose of what it is given. */
static void follow(struct many *m, uint32_t type)
{
    double y[D], terms[D], given[D];
    for (int c = 0; c < N_CELL; c++) {
        ops_rotate(m->exact + c * D, m->cs, D, D, D, GR_ROPE_NEOX, y, terms);
        memcpy(m->exact + c * D, y, sizeof y);
        ops_rotate(m->got + c * D, m->cs, D, D, D, GR_ROPE_NEOX, given, terms);
        for (int i = 0; i < D / 2; i++) {
            double e = ops_storage_error(type, given[i], ops_block_max(given, i));
            double f = ops_storage_error(type, given[i + D / 2], ops_block_max(given, i + D / 2));
            m->bound[c * D + i] += hypot(e, f) + 8 * 0x1p-24 * (terms[i] + terms[i + D / 2]);
            m->bound[c * D + i + D / 2] = m->bound[c * D + i];
        }
    }
}

static double nmse(const struct many *m)
{
    double errors = 0, squares = 0;
    for (int i = 0; i < N_CELL * D; i++) {
        errors += (m->got[i] - m->exact[i]) * (m->got[i] - m->exact[i]);
        squares += m->exact[i] * m->exact[i];
    }
    return errors / squares;
}

/* K of one type shifted n times on a backend; the relative squared error then. */
static double shifted(struct gr_backend *b, uint32_t type, int n)
{
    static struct many m;
    struct bench u = {.b = b};
    struct gr_rng r = gr_rng_new(4);
    double freq[D / 2];
    float k[N_CELL * D];
    int32_t cells[N_CELL], by[N_CELL];
    memset(&m, 0, sizeof m);
    for (int i = 0; i < N_CELL * D; i++)
        m.exact[i] = (double)(k[i] = gr_rng_normal(&r));
    for (int i = 0; i < D / 2; i++) {
        freq[i] = pow(10000, -2.0 * i / D);
        m.cs[2 * i] = cos(BY * freq[i]), m.cs[2 * i + 1] = sin(BY * freq[i]);
    }
    for (int c = 0; c < N_CELL; c++)
        cells[c] = c, by[c] = BY;
    struct gr_ten delta = put(&u, GR_I32, 1, N_CELL, by), cs = put(&u, GR_F32, N_CELL, D, NULL);
    struct gr_ten cache = put(&u, type, N_CELL, D, NULL), f = put(&u, GR_F64, 1, D / 2, freq);
    struct gr_node store = {.op = GR_OP_KV_STORE,
                            .a.kv_store = {.k = put(&u, GR_F32, N_CELL, D, k),
                                           .cells = put(&u, GR_I32, 1, N_CELL, cells),
                                           .k_cache = cache,
                                           .d_head_k = D,
                                           .kind = GR_ROPE_NONE}};
    run(&u, &store, 1);
    for (int i = 0; i < N_CELL * D; i++) {
        double e = ops_storage_error(type, m.exact[i], ops_block_max(m.exact + i / D * D, i % D));
        m.bound[i] = e * sqrt(2); /* of a pair, each within its own: the larger one, twice */
    }
    for (int i = 0; i < N_CELL * D; i++)
        m.bound[i] = fmax(m.bound[i], m.bound[i / D * D + (i + D / 2) % D]);
    struct gr_node shift[] = {
        table(delta, f, (struct gr_ten){0}, cs, 1),
        {.op = GR_OP_KV_SHIFT, .a.kv_shift = {cs, delta, cache, D, GR_ROPE_NEOX}}};
    for (int s = 0; s < n; s++) {
        get(&u, &cache, m.got);
        follow(&m, type);
        run(&u, shift, 2);
    }
    get(&u, &cache, m.got);
    for (int i = 0; i < N_CELL * D; i++)
        cr_assert(fabs(m.got[i] - m.exact[i]) <= m.bound[i],
                  "type %u, %d shifts, %d: %.9g, expected %.9g +- %.3g", type, n, i, m.got[i],
                  m.exact[i], m.bound[i]);
    clear(&u);
    return nmse(&m);
}

/* Errors of separate roundings are as good as independent: their mean squares add. `once`, in units
 * of the mean square of K: a step of q8_0 is m / 127 and of q4_0 m / 8, its error has step^2 / 12,
 * and the largest of 32 normal numbers m^2 = 5 to 6 - so 3e-5 and 7e-3, to which q4_0's clipping
 * adds. With 10 shifts q4_0 has lost a tenth of K, with 100 all of it. */
static const struct {
    uint32_t type;
    double once;
} types[] = {{GR_F32, 1e-13},   {GR_F16, 1e-7},    {GR_BF16, 4e-6},
             {GR_Q8_0, 4e-5},   {GR_Q4_0, 1.2e-2}, {GR_Q4_1, 1e-2},
             {GR_Q5_0, 4.2e-3}, {GR_Q5_1, 2e-3},   {GR_IQ4_NL, 1e-2}};

Test(shift, many_shifts_add_up_to_their_roundings)
{
    for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++) {
        struct gr_backend *b;
        if (!gr_cpu_has(l) || !ops_on_cpu())
            continue;
        cr_assert_eq(gr_cpu_open(&b, 1, 1, l), 0);
        for (size_t k = 0; k < GR_COUNT(types); k++)
            for (int n = 1; n <= 100; n *= 10) {
                double e = shifted(b, types[k].type, n);
                printf("%s, type %2u, %3d shifts: NMSE %.2g\n", gr_cpu_level_name(l), types[k].type,
                       n, e);
                cr_expect(e <= (n + 1) * types[k].once, "%s, type %u, %d shifts: %g",
                          gr_cpu_level_name(l), types[k].type, n, e);
            }
        b->api->close(&b);
    }
}
