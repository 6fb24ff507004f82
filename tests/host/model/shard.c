/* Shards of a model: its matrices when put together again, in whole blocks, with query heads beside
 * their key/value heads. */
#include "model/shard.h"

#include <criterion/criterion.h>

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"
#include "support/tiny.h"

enum { MOST = 8 };

/* Shards of a model, with the memory of all their copies; false when it cannot be split so. */
static bool split(const struct gr_model *m, int n_shard, struct gr_shard *s[MOST])
{
    for (int i = 0; i < n_shard; i++) {
        int rc = gr_shard_new(&s[i], m, i, n_shard);
        cr_assert(rc == 0 || (rc == GR_E_UNSUPPORTED && i == 0), "%s: %s", m->arch->name,
                  gr_error());
        if (rc)
            return false;
        cr_assert_eq(gr_shard_fill(s[i], 0, m->hp.n_layer), 0);
    }
    return true;
}

static void join(int n_shard, struct gr_shard *s[MOST])
{
    for (int i = 0; i < n_shard; i++)
        gr_shard_free(&s[i]);
}

/* ---- where an element comes from ---- */

/* Index j of a shard's range r, in items of `width`; -1: it is behind it. */
static int64_t within(struct gr_extent r, int64_t width, int64_t j)
{
    return j < (r.hi - r.lo) * width ? r.lo * width + j : -1;
}

/* The same behind `before` that a shard has, which begin at `offset` of the file's. */
static int64_t behind(struct gr_extent r, int64_t width, int64_t j, int64_t before, int64_t offset)
{
    return offset + within(r, width, j - before);
}

/* The same of two things of n columns side by side, of which a shard has the same part. */
static int64_t of_two(struct gr_extent r, int64_t n, int64_t j)
{
    return j < r.hi - r.lo ? within(r, 1, j) : behind(r, 1, j, r.hi - r.lo, n);
}

/* The index in the file's dimension of index j of a shard's. */
static int64_t origin(const struct gr_shard *s, enum gr_dim d, int il, int64_t j)
{
    const struct gr_share *a = &s->share;
    const struct gr_hparams *hp = a->whole;
    struct gr_extent q = a->head[il], kv = a->head_kv[il], ff = a->ff[il];
    int64_t n_q = (q.hi - q.lo) * hp->attn.d_k, n_k = (kv.hi - kv.lo) * hp->attn.d_k;
    int64_t all_q = (int64_t)hp->attn.n_head[il] * hp->attn.d_k;
    int64_t all_k = (int64_t)hp->attn.n_head_kv[il] * hp->attn.d_k;
    switch (d) {
    case GR_D_Q:
        return within(q, hp->attn.d_k, j);
    case GR_D_Q_2:
        return within(q, (int64_t)2 * hp->attn.d_k, j);
    case GR_D_Q_MLA:
        return within(q, hp->mla.d_k, j);
    case GR_D_O:
        return within(q, hp->attn.n_head_kv[il] ? hp->attn.d_v : INT32_MAX, j);
    case GR_D_O_MLA:
        return within(q, hp->mla.d_v, j);
    case GR_D_HEADS:
        return within(q, 1, j);
    case GR_D_K:
        return within(kv, hp->attn.d_k, j);
    case GR_D_V:
        return within(kv, hp->attn.d_v, j);
    case GR_D_HEADS_KV:
        return within(kv, 1, j);
    case GR_D_QKV:
    case GR_D_QKV_3:
        return j < n_q         ? within(q, hp->attn.d_k, j)
               : j < n_q + n_k ? behind(kv, hp->attn.d_k, j, n_q, all_q)
                               : behind(kv, hp->attn.d_v, j, n_q + n_k, all_q + all_k);
    case GR_D_FF:
        return within(ff, 1, j);
    case GR_D_FF_2:
        return of_two(ff, hp->ff.n_ff[il], j);
    case GR_D_FF_EXP:
        return within(a->ff_exp, 1, j);
    case GR_D_FF_EXP_2:
        return of_two(a->ff_exp, hp->moe.n_ff_exp, j);
    case GR_D_FF_SHEXP_2:
        return of_two(a->ff_shexp, hp->moe.n_ff_shexp, j);
    case GR_D_KV_B:
        return within(q, hp->mla.d_k - hp->rope.n_rot + hp->mla.d_v, j);
    case GR_D_GATE:
        return within(q, hp->attn.d_gate, j);
    case GR_D_FF_SHEXP:
        return within(a->ff_shexp, 1, j);
    default:
        return j;
    }
}

static void unpack(const struct gr_ten *t, int64_t batch, int64_t row, float *x)
{
    gr_quant_find(t->dtype)->dequantize(gr_ten_row(t, batch, row), x, (size_t)t->cols);
}

/* Times that the shards have each element of a tensor of the file. */
struct seen {
    const struct gr_ten *file;
    int32_t *times; /* [batch, rows, cols] */
    float *want, *found;
};

/* Every element of a shard's tensor is the file's; dim: of columns, rows, matrices. */
static void compare(const struct gr_shard *s, const struct seen *seen, const struct gr_ten *t,
                    const enum gr_dim dim[3], int il)
{
    const struct gr_ten *f = seen->file;
    cr_assert_eq(t->dtype, f->dtype);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t r = 0; r < t->rows; r++) {
            int64_t of_b = origin(s, dim[2], il, b), of_r = origin(s, dim[1], il, r);
            unpack(t, b, r, seen->found);
            unpack(f, of_b, of_r, seen->want);
            for (int64_t c = 0; c < t->cols; c++) {
                int64_t of_c = origin(s, dim[0], il, c);
                cr_assert(of_c >= 0 && of_c < f->cols);
                cr_assert_float_eq(seen->found[c], seen->want[of_c], 0, "%s, dimensions %d, %d",
                                   s->model->arch->name, (int)dim[0], (int)dim[1]);
                seen->times[(of_b * f->rows + of_r) * f->cols + of_c]++;
            }
        }
}

static bool by_kv(enum gr_dim d)
{
    return d == GR_D_K || d == GR_D_V || d == GR_D_HEADS_KV || d == GR_D_QKV || d == GR_D_QKV_3;
}

/* Puts a tensor of all shards together. whole: no dimension is split. */
static void check_tensor(struct gr_shard *s[MOST], int n, size_t at, bool bias,
                         const enum gr_dim dim[3], int il)
{
    const struct gr_ten *file = bias ? &s[0]->model->bias[at] : &s[0]->model->weight[at];
    if (!gr_ten_is(file))
        return;
    size_t count = (size_t)(file->batch * file->rows * file->cols);
    struct seen seen = {file, gr_calloc(count, sizeof(int32_t)),
                        gr_calloc((size_t)file->cols, sizeof(float)),
                        gr_calloc((size_t)file->cols, sizeof(float))};
    bool is_split = false, kv = by_kv(dim[0]) || by_kv(dim[1]);
    for (int i = 0; i < n; i++) {
        const struct gr_ten *t = bias ? &s[i]->bias[at] : &s[i]->weight[at];
        int64_t size[3] = {t->cols, t->rows, t->batch};
        if (!gr_ten_is(t)) { /* a bias that one of them adds */
            cr_assert(bias && i > 0);
            is_split = true;
            continue;
        }
        for (int k = 0; k < 3; k++)
            cr_assert_eq(size[k], gr_dim_value(&s[i]->hp, dim[k], il), "%s, slot %zu",
                         s[0]->model->arch->name, at % GR_N_SLOT);
        is_split |= t->batch * t->rows * t->cols < (int64_t)count;
        compare(s[i], &seen, t, dim, il);
    }
    for (size_t i = 0; i < count; i++)
        cr_assert(is_split ? kv ? seen.times[i] >= 1 : seen.times[i] == 1 : seen.times[i] == n,
                  "%s, slot %zu, element %zu: %d times", s[0]->model->arch->name, at % GR_N_SLOT, i,
                  seen.times[i]);
    gr_free(seen.times);
    gr_free(seen.want);
    gr_free(seen.found);
}

static void check_weights(struct gr_shard *s[MOST], int n)
{
    const struct gr_arch *arch = s[0]->model->arch;
    for (int i = 0; i < arch->n_spec; i++)
        for (int il = 0; il < s[0]->hp.n_layer; il++) {
            if (!gr_spec_applies(&s[0]->model->hp, &arch->spec[i], il))
                continue;
            const enum gr_dim *d = arch->spec[i].dim;
            size_t at = (size_t)(il + 1) * GR_N_SLOT + arch->spec[i].slot;
            enum gr_dim of_bias[3] = {d[1] ? d[1] : d[0], d[1] ? d[2] : GR_D_NONE, GR_D_NONE};
            check_tensor(s, n, at, false, d, il);
            check_tensor(s, n, at, true, of_bias, il);
        }
}

/* Ranges that follow each other from 0 to n. */
static void check_output(struct gr_shard *s[MOST], int n)
{
    const struct gr_ten *w = &s[0]->model->weight[GR_W_OUTPUT];
    int32_t at = 0;
    for (int i = 0; i < n && gr_ten_is(w); i++) { /* encoders have none */
        const struct gr_ten *t = &s[i]->weight[GR_W_OUTPUT];
        cr_assert_eq(s[i]->share.vocab.lo, at);
        cr_assert_eq(t->rows, s[i]->share.vocab.hi - at);
        cr_assert_eq(t->data, gr_ten_row(w, 0, at));
        cr_assert(i == n - 1 || t->rows == s[0]->weight[GR_W_OUTPUT].rows);
        at = s[i]->share.vocab.hi;
    }
    cr_assert_eq(at, gr_ten_is(w) ? w->rows : 0, "%s: %d of %lld rows", s[0]->model->arch->name, at,
                 (long long)w->rows);
}

/* Query heads look at the key/value heads that are there. */
static void check_groups(struct gr_shard *s[MOST], int n)
{
    for (int i = 0; i < n; i++)
        for (int il = 0; il < s[i]->hp.n_layer; il++) {
            const struct gr_share *a = &s[i]->share;
            int32_t n_kv = s[i]->hp.attn.n_head_kv[il], n_head = s[i]->hp.attn.n_head[il];
            if (a->whole->attn.n_head_kv[il] == 0)
                continue;
            int32_t group = a->whole->attn.n_head[il] / a->whole->attn.n_head_kv[il];
            cr_assert(n_kv > 0 && n_head > 0 && n_head % n_kv == 0);
            for (int j = 0; j < n; j++) { /* each knows what the others have */
                struct gr_extent k = gr_shard_k(s[j], i, il);
                cr_assert_eq(k.lo, a->head_kv[il].lo * a->whole->attn.d_k);
                cr_assert_eq(k.hi, a->head_kv[il].hi * a->whole->attn.d_k);
            }
            for (int32_t h = 0; h < n_head; h++)
                cr_assert_eq((a->head[il].lo + h) / group, a->head_kv[il].lo + h / (n_head / n_kv));
        }
}

static int check_all(const struct tiny *t)
{
    int n_split = 0;
    struct gr_model *m = tiny_open(t);
    for (int n = 2; n <= 4; n++) {
        struct gr_shard *s[MOST];
        if (!split(m, n, s))
            continue;
        check_weights(s, n);
        check_output(s, n);
        check_groups(s, n);
        join(n, s);
        n_split++;
    }
    gr_model_close(&m);
    return n_split;
}

static bool has_dim(const struct gr_arch *a, enum gr_dim d)
{
    for (int i = 0; i < a->n_spec; i++)
        if (a->spec[i].dim[0] == d || a->spec[i].dim[1] == d)
            return true;
    return false;
}

/* Every architecture; those with nothing to split, or with a norm over all heads, are refused. */
Test(shard, parts_make_the_whole)
{
    for (int i = 0; gr_arch_at(i); i++) {
        int n_split = 0;
        for (int fused = 0; fused < 2; fused++) {
            struct tiny t = tiny_default(gr_arch_at(i));
            t.n_head = 8, t.n_head_kv = 4;
            if (has_dim(t.arch, GR_D_QKV_3)) /* all of one size, and of the model's */
                t.n_head_kv = 8, t.d_head = t.n_embd / 8;
            t.fused = fused;
            n_split += check_all(&t) > 0;
        }
        cr_assert_eq(n_split > 0, tiny_can_be_split(gr_arch_at(i)), "%s", gr_arch_at(i)->name);
    }
}

/* Types with blocks of 1, 32 and 256; uneven shares. */
Test(shard, whole_blocks)
{
    static const char types[][8] = {"f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"};
    for (size_t i = 0; i < GR_COUNT(types); i++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
        t.n_layer = 1, t.n_embd = 256, t.n_head = 8, t.n_head_kv = 4, t.d_head = 128;
        t.n_ff = 1280;
        t.dtype = types[i];
        cr_assert_eq(check_all(&t), 3, "%s", t.dtype);
        t = tiny_default(gr_arch_find((struct gr_str){"qwen3moe", 8}));
        t.n_layer = 1, t.n_embd = 256, t.n_head = 8, t.n_head_kv = 4, t.d_head = 128;
        t.n_ff = 1024;
        t.dtype = types[i];
        cr_assert_eq(check_all(&t), 3, "%s", t.dtype);
    }
}

/* ---- shares ---- */

static struct gr_model *model_of(int n_head, int n_head_kv, int d_head, int n_ff, const char *type)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_embd = 256, t.n_head = n_head, t.n_head_kv = n_head_kv, t.d_head = d_head, t.n_ff = n_ff;
    t.dtype = type, t.n_expert = 0;
    return tiny_open(&t);
}

/* Checks the shares of each of n shards, in layer 0, of heads, key/value heads and feed-forward
 * columns. */
static void expect_shares(struct gr_model *m, int n, const int want[][3])
{
    struct gr_shard *s[MOST];
    cr_assert(split(m, n, s));
    for (int i = 0; i < n; i++) {
        cr_expect_eq(s[i]->hp.attn.n_head[0], want[i][0], "shard %d: %d", i,
                     s[i]->hp.attn.n_head[0]);
        cr_expect_eq(s[i]->hp.attn.n_head_kv[0], want[i][1], "shard %d: %d", i,
                     s[i]->hp.attn.n_head_kv[0]);
        cr_expect_eq(s[i]->hp.ff.n_ff[0], want[i][2], "shard %d: %d", i, s[i]->hp.ff.n_ff[0]);
    }
    join(n, s);
    gr_model_close(&m);
}

static void expect_refused(struct gr_model *m, int n, const char *text)
{
    struct gr_shard *s;
    cr_expect_eq(gr_shard_new(&s, m, 0, n), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), text), "%s", gr_error());
    cr_expect_null(s);
    gr_model_close(&m);
}

Test(shard, uneven)
{
    expect_shares(model_of(16, 8, 16, 96, NULL), 3, (int[][3]){{6, 3, 32}, {6, 3, 32}, {4, 2, 32}});
    expect_shares(model_of(8, 8, 32, 1280, "q4_0"), 3,
                  (int[][3]){{3, 3, 448}, {3, 3, 416}, {2, 2, 416}});
    expect_shares(model_of(16, 8, 64, 1280, "q4_K"), 2, (int[][3]){{8, 4, 768}, {8, 4, 512}});
}

/* Fewer key/value heads than shards: several have the same one. */
Test(shard, shared_keys)
{
    expect_shares(model_of(8, 2, 32, 1280, NULL), 4,
                  (int[][3]){{2, 1, 320}, {2, 1, 320}, {2, 1, 320}, {2, 1, 320}});
    expect_shares(model_of(8, 2, 32, 1280, NULL), 3,
                  (int[][3]){{2, 1, 427}, {2, 1, 427}, {4, 1, 426}});
    expect_shares(model_of(6, 1, 64, 1280, "q8_0"), 4,
                  (int[][3]){{2, 1, 320}, {2, 1, 320}, {1, 1, 320}, {1, 1, 320}});
}

Test(shard, refused)
{
    expect_refused(model_of(8, 8, 32, 1280, "q4_K"), 2,
                   "layer 0: heads can be split by tensors "
                   "among 1 at most");
    expect_refused(model_of(16, 8, 64, 512, "q4_K"), 3,
                   "the feed-forward part can be split by "
                   "tensors among 2 at most, not 3");
    expect_refused(model_of(4, 2, 16, 96, NULL), 5, "among 4 at most");
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"mamba", 5}));
    expect_refused(tiny_open(&t), 2, "architecture mamba cannot be split by tensors");
    t = tiny_default(gr_arch_find((struct gr_str){"olmo2", 5}));
    expect_refused(tiny_open(&t), 2, "blk.0.attn_q_norm.weight is a norm over what several");
}
