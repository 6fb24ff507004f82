/* Steps whose arrays are filled in here and not by a session: positions of three kinds, tokens that
 * see each other without a cache, layers that attend to another layer's keys and values. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "arch/rope.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

enum { N_TOK = 12, N_VOCAB = 96 };

struct step {
    int32_t pos[3][N_TOK]; /* t, y, x */
    int32_t list[N_TOK], span[N_TOK][3];
    int n_pos;
};

static struct step causal(void)
{
    struct step in = {.n_pos = 1};
    for (int i = 0; i < N_TOK; i++) {
        in.pos[0][i] = in.list[i] = i;
        in.span[i][2] = i + 1;
    }
    return in;
}

static void fill(const struct step *in, char *step, const struct gr_step_layout *l)
{
    int32_t *tokens = (int32_t *)(void *)(step + l->offset[GR_STEP_TOKENS]);
    int32_t *cells = (int32_t *)(void *)(step + l->offset[GR_STEP_CELLS]);
    int32_t *out = (int32_t *)(void *)(step + l->offset[GR_STEP_OUT_ROWS]);
    for (int i = 0; i < N_TOK; i++)
        tokens[i] = (5 + 37 * i) % N_VOCAB, cells[i] = out[i] = i;
    memcpy(step + l->offset[GR_STEP_POS], in->pos, (size_t)in->n_pos * sizeof in->pos[0]);
    memcpy(step + l->offset[GR_STEP_LIST], in->list, sizeof in->list);
    memcpy(step + l->offset[GR_STEP_SPAN], in->span, sizeof in->span);
}

/* Runs the step over a session's caches; logits [N_TOK, N_VOCAB], or NULL. */
static void run(struct gr_session *s, const struct step *in, gr_tap_fn *tap, void *user, float *out)
{
    struct gr_backend *b = s->device[0].backend;
    const struct gr_backend_api *api = b->api;
    struct gr_plan_memory memory[GR_MAX_DEVICE] = {s->device[0].memory};
    struct gr_step_shape shape = {
        .n_tok = N_TOK, .n_out = N_TOK, .n_pos = in->n_pos, .n_full = N_TOK, .n_list = N_TOK};
    struct gr_plan p;
    void *exec;
    struct gr_step_layout layout = gr_step_layout(&shape);
    void *step = memory[0].step = api->alloc(b, (size_t)layout.bytes);
    cr_assert_not_null(step);
    fill(in, step, &layout);
    cr_assert_eq(gr_graph_build(&p, &s->env, &shape), 0, "%s", gr_error());
    void *arena = memory[0].arena = api->alloc(b, (size_t)p.arena_bytes[0]);
    cr_assert_not_null(arena);
    gr_plan_bind(&p, memory);
    cr_assert_eq(p.segment.n, 1);
    const struct gr_plan_segment *seg = p.segment.data;
    cr_assert_eq(api->segment_new(b, &seg->run, &exec), 0, "%s", gr_error());
    cr_assert_eq(api->segment_run(b, exec, tap, user), 0, "%s", gr_error());
    for (int i = 0; i < N_TOK && out; i++)
        memcpy(out + i * N_VOCAB, gr_ten_row(&p.result, 0, i), N_VOCAB * sizeof *out);
    api->segment_free(b, &exec);
    gr_plan_fini(&p);
    api->free(b, arena);
    api->free(b, step);
}

static struct gr_session *session(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.type_k = p.type_v = "f32";
    return tiny_session(m, &p);
}

static struct gr_model *model(const char *arch)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    t.n_expert = tiny_needs_experts(t.arch) ? 3 : 0;
    return tiny_open(&t);
}

/* K of the first layer: each pair is turned by the position of its section. */
static void check_turns(const char *arch)
{
    struct gr_model *m = model(arch);
    struct gr_session *s = session(m);
    struct step in = causal();
    const struct gr_ten *k = &s->env.k_cache[0];
    const double *freq = s->env.rope[0].freq.data;
    int n = m->hp.rope.n_rot / 2;
    int32_t section[64];
    static float plain[N_TOK][64];
    cr_assert(gr_rope_sections(&m->hp, section) && k->cols <= 64);
    memset(in.pos, 0, sizeof in.pos);
    run(s, &in, NULL, NULL, NULL);
    for (int t = 0; t < N_TOK; t++)
        memcpy(plain[t], gr_ten_row(k, 0, t), (size_t)k->cols * sizeof(float));
    in.n_pos = 3;
    for (int i = 0; i < N_TOK; i++)
        in.pos[0][i] = 3 + i, in.pos[1][i] = 50 - 2 * i, in.pos[2][i] = i * i;
    run(s, &in, NULL, NULL, NULL);
    for (int t = 0; t < N_TOK; t++)
        for (int c = 0; c < k->cols / m->hp.attn.d_k * n; c++) {
            int i = c % n, at = c / n * m->hp.attn.d_k + i;
            double angle = in.pos[section[i]][t] * freq[i];
            const float *turned = gr_ten_row(k, 0, t), *a = &plain[t][at], *b = a + n;
            double x = (double)*a * cos(angle) - (double)*b * sin(angle);
            double y = (double)*a * sin(angle) + (double)*b * cos(angle);
            cr_assert(fabs((double)turned[at] - x) < 1e-5 &&
                          fabs((double)turned[at + n] - y) < 1e-5,
                      "%s: token %d, pair %d", arch, t, i);
        }
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(by_hand, positions_of_three_kinds)
{
    check_turns("qwen2vl");
    check_turns("qwen3vl");
    check_turns("qwen3vlmoe");
}

/* Three positions that are equal are one. */
Test(by_hand, equal_positions)
{
    static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];
    struct gr_model *m = model("qwen3vl");
    struct gr_session *s = session(m);
    struct step in = causal();
    run(s, &in, NULL, NULL, want);
    in.n_pos = 3;
    for (int i = 1; i < 3; i++)
        memcpy(in.pos[i], in.pos[0], sizeof in.pos[0]);
    run(s, &in, NULL, NULL, got);
    cr_expect_eq(memcmp(want, got, sizeof want), 0);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Two sequences whose tokens alternate, each seeing all of its own: the rows of the step beside
 * cells that hold them. */
Test(by_hand, tokens_that_see_each_other)
{
    static const char *const arch[] = {"llama", "qwen3", "gpt2", "falcon"};
    static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];
    for (size_t a = 0; a < GR_COUNT(arch); a++) {
        struct gr_model *m = model(arch[a]);
        struct gr_session *s = session(m);
        struct step in = causal();
        for (int i = 0; i < N_TOK; i++) {
            int seq = i % 3 == 1, n_first = N_TOK - N_TOK / 3; /* tokens 1 4 7 10 are the second */
            in.list[seq ? n_first + i / 3 : i - (i + 1) / 3] = i;
            in.span[i][0] = in.span[i][1] = seq ? n_first : 0;
            in.span[i][2] = seq ? N_TOK : n_first;
        }
        run(s, &in, NULL, NULL, want);
        memset(s->env.k_cache[0].data, 0xff, (size_t)(s->env.k_cache[0].row_bytes * N_TOK));
        m->rank_model[0]->hp.no_cache = true;
        run(s, &in, NULL, NULL, got);
        cr_expect(tiny_nmse(want, got, N_TOK * N_VOCAB) < 1e-12, "%s", arch[a]);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

struct seen {
    float q[N_TOK][64], attn[N_TOK][64];
};

static void keep_last_layer(const struct gr_tap *tap, const struct gr_ten *t, void *user)
{
    struct seen *s = user;
    if (tap->kind != GR_TAP_RESULT)
        return;
    float(*to)[64] = strcmp(tap->name, "q") == 0      ? s->q
                     : strcmp(tap->name, "attn") == 0 ? s->attn
                                                      : NULL;
    cr_assert(!to || t->cols == 64);
    for (int i = 0; to && tap->layer == 2 && i < N_TOK; i++)
        memcpy(to[i], gr_ten_row(t, 0, i), sizeof *to);
}

/* Attention of one head of one token over the first t + 1 cells, as the textbook has it. */
static void head_by_hand(const struct gr_hparams *hp, const float *q, const struct gr_ten *k,
                         const struct gr_ten *v, int t, int h, double *y)
{
    double p[N_TOK], sum = 0;
    memset(y, 0, (size_t)hp->attn.d_v * sizeof *y);
    for (int j = 0; j <= t; j++) {
        const float *key = (const float *)gr_ten_row(k, 0, j) + h * hp->attn.d_k;
        p[j] = 0;
        for (int c = 0; c < hp->attn.d_k; c++)
            p[j] += (double)q[c] * (double)key[c];
        sum += p[j] = exp(p[j] / sqrt(hp->attn.d_k));
    }
    for (int j = 0; j <= t; j++)
        for (int c = 0; c < hp->attn.d_v; c++)
            y[c] += p[j] / sum * (double)((const float *)gr_ten_row(v, 0, j))[h * hp->attn.d_v + c];
}

/* The third layer attends to the keys and values of the second; its own cache is not touched, and
 * the shift turns each cache once. */
Test(by_hand, layers_that_share_keys_and_values)
{
    static struct seen seen;
    struct tiny t = tiny_default(gr_arch_at(0));
    t.n_layer = 3, t.n_expert = 0;
    struct gr_model *m = tiny_open(&t);
    struct gr_session *s = session(m);
    struct step in = causal();
    struct gr_hparams *hp = &m->rank_model[0]->hp;
    const struct gr_ten *k = s->env.k_cache, *v = s->env.v_cache;
    size_t bytes = (size_t)(k[2].row_bytes * k[2].rows);
    hp->attn.kv_of[2] = 1;
    memset(k[2].data, 0xff, bytes);
    run(s, &in, keep_last_layer, &seen, NULL);
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(((const uint8_t *)k[2].data)[i], 0xff);
    for (int tok = 0; tok < N_TOK; tok++)
        for (int h = 0; h < hp->attn.n_head[2]; h++) {
            double y[64];
            int group = hp->attn.n_head[2] / hp->attn.n_head_kv[1];
            head_by_hand(hp, &seen.q[tok][h * hp->attn.d_k], &k[1], &v[1], tok, h / group, y);
            for (int c = 0; c < hp->attn.d_v; c++)
                cr_assert_float_eq((double)seen.attn[tok][h * hp->attn.d_v + c], y[c], 1e-5);
        }
    struct gr_step_shape shape = {.n_pos = 1, .n_delta = 32};
    struct gr_plan p;
    int n_shift = 0;
    cr_assert_eq(gr_graph_build_shift(&p, &s->env, &shape), 0, "%s", gr_error());
    for (size_t i = 0; i < p.node.n; i++)
        n_shift += ((const struct gr_node *)p.node.data)[i].op == GR_OP_KV_SHIFT;
    cr_expect_eq(n_shift, 2);
    gr_plan_fini(&p);
    gr_session_close(&s);
    gr_model_close(&m);
}
