/* gr_context_limits, before there is a session. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

/* ---- lengths ---- */

/* Settings of a file and of a session of it, and the length that its positions are good for. */
struct stretch {
    const char *scaling; /* the file's, NULL: it says nothing */
    float factor;
    int32_t n_ctx, n_orig; /* n_orig 0: it does not say */
    enum gr_rope_scaling asked;
    float freq_scale; /* NAN: as the model has it */
    int32_t n_good;
};

static const struct stretch stretches[] = {
    {NULL, 0, 256, 0, GR_SCALING_MODEL, NAN, 256},
    {NULL, 0, 256, 0, GR_SCALING_MODEL, 0, 256},
    {NULL, 0, 256, 0, GR_SCALING_NONE, NAN, 256},
    {NULL, 0, 256, 0, GR_SCALING_YARN, NAN, 256}, /* a word alone stretches nothing */
    {NULL, 0, 256, 0, GR_SCALING_LINEAR, NAN, 256},
    {NULL, 0, 256, 0, GR_SCALING_LONGROPE, NAN, 256},
    {NULL, 0, 256, 0, GR_SCALING_MODEL, 0.25f, 1024}, /* a factor alone does */
    {NULL, 0, 256, 0, GR_SCALING_YARN, 1.f / 3, 768},
    {NULL, 0, 256, 0, GR_SCALING_LINEAR, 2, 128},
    {NULL, 0, 256, 0, GR_SCALING_NONE, 0.25f, 256},
    {NULL, 0, 256, 0, GR_SCALING_LINEAR, 1e-30f, INT32_MAX},
    {"none", 4, 256, 0, GR_SCALING_MODEL, NAN, 256},
    {"none", 4, 256, 0, GR_SCALING_MODEL, 0.25f,
     256}, /* the model's word is that it has no effect */
    {"linear", 4, 256, 0, GR_SCALING_MODEL, NAN, 256}, /* trained with the factor */
    {"linear", 4, 256, 0, GR_SCALING_NONE, NAN, 64},
    {"linear", 4, 256, 0, GR_SCALING_LINEAR, 0.125f, 512},
    {"yarn", 4, 1024, 256, GR_SCALING_MODEL, NAN, 1024},
    {"yarn", 4, 256, 256, GR_SCALING_MODEL, NAN, 1024}, /* the length before scaling as trained */
    {"yarn", 4, 256, 256, GR_SCALING_NONE, NAN, 256},
    {"yarn", 4, 1024, 256, GR_SCALING_NONE, NAN, 256},
    {"yarn", 4, 1024, 256, GR_SCALING_YARN, 0.125f, 2048},
    {"longrope", 0, 1024, 256, GR_SCALING_MODEL, NAN, 1024},
};

static const struct stretch *now;

static void set_rope(struct gr_gguf_writer *w, const struct tiny *t)
{
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", t->arch->name);
    cr_assert_eq(now->scaling ? gr_gguf_set_str(w, key, now->scaling) : 0, 0);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", t->arch->name);
    cr_assert_eq(now->factor > 0 ? gr_gguf_set_f32(w, key, now->factor) : 0, 0);
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", t->arch->name);
    cr_assert_eq(now->n_orig ? gr_gguf_set_u32(w, key, (uint32_t)now->n_orig) : 0, 0);
}

static struct gr_context_limits reach_of(struct gr_model *m, const struct gr_session_params *p)
{
    struct gr_context_limits r;
    cr_assert_eq(gr_context_limits(m, p, &r), 0, "%s: %s", m->arch->name, gr_error());
    return r;
}

Test(context_limits, trained_length_as_far_as_it_is_stretched)
{
    for (size_t i = 0; i < GR_COUNT(stretches); i++) {
        now = &stretches[i];
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
        struct gr_session_params p = gr_session_params_default();
        t.n_ctx = now->n_ctx, t.edit = set_rope, t.no_optional = true;
        struct gr_model *m = tiny_open(&t);
        p.n_ctx = 256, p.rope_scaling = now->asked, p.rope_freq_scale = now->freq_scale;
        struct gr_context_limits r = reach_of(m, &p);
        cr_expect_eq(r.n_good, now->n_good, "%zu: %d, %d expected", i, r.n_good, now->n_good);
        gr_model_close(&m);
    }
}

/* Positions that are not rotated are not stretched either. */
Test(context_limits, no_rope)
{
    static const char *const arch[] = {"bloom", "gpt2", "mamba", "t5"};
    for (size_t i = 0; i < GR_COUNT(arch); i++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch[i], strlen(arch[i])}));
        struct gr_session_params p = gr_session_params_default();
        struct gr_model *m = tiny_open(&t);
        p.n_ctx = 256, p.rope_scaling = GR_SCALING_YARN, p.rope_freq_scale = 0.25f;
        cr_expect_eq(reach_of(m, &p).n_good, 256, "%s", arch[i]);
        gr_model_close(&m);
    }
}

/* ---- what moves ---- */

enum { N_CELL = 512 };

/* Windows of the sizes that these have are smaller than the context. */
static struct gr_session_params params(bool swa_full)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = N_CELL, p.n_ubatch = 32, p.n_threads = 1, p.swa_full = swa_full;
    return p;
}

static struct gr_session *full_session(struct gr_model *m, const struct gr_session_params *p)
{
    static const int32_t id[N_CELL];
    struct gr_session *s = tiny_session(m, p);
    for (int at = 0; at < N_CELL; at += 32) {
        struct gr_batch b = {.n_tok = 32, .token = id + at};
        cr_assert_eq(gr_decode(s, &b), 0, "%s: %s", m->arch->name, gr_error());
    }
    return s;
}

static void said(const char *arch, const char *what, bool can, int status)
{
    cr_expect_eq(status, can ? 0 : GR_E_UNSUPPORTED, "%s, %s: said %d, status %d: %s", arch, what,
                 can, status, status ? gr_error() : "");
}

/* A full context is shifted, and windows are merged, where that is said. Chunks are windows that
 * begin at their multiples: whether something is missed depends on where the text is. */
static void moves(struct gr_model *m, bool swa_full)
{
    struct gr_session_params p = params(swa_full);
    struct gr_context_limits r = reach_of(m, &p);
    struct gr_session *s = full_session(m, &p);
    struct gr_self_extend se = {4, 64, 0};
    int32_t n_past = N_CELL;
    said(m->arch->name, "Self-Extend", r.can_extend[GR_SELF_EXTEND_CLASSIC],
         gr_self_extend(s, &se, &n_past));
    gr_session_close(&s);
    s = full_session(m, &p);
    int status = gr_context_shift(s, 0, 4, 0, &n_past);
    if (!(m->hp.swa.chunked && !r.can_shift))
        said(m->arch->name, "shift", r.can_shift, status);
    gr_session_close(&s);
}

static void windows(struct gr_model *m)
{
    struct gr_session_params p = params(false);
    struct gr_session *s;
    struct gr_context_limits r = reach_of(m, &p);
    p.self_extend_n = 4, p.self_extend_w = 64;
    said(m->arch->name, "Self-Extend by window", r.can_extend[GR_SELF_EXTEND_WINDOW],
         gr_session_open(&s, m, &p));
    gr_session_close(&s);
}

static void each(const struct gr_arch *a)
{
    struct tiny t = tiny_default(a);
    t.n_ctx = N_CELL;
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params p = params(false);
    windows(m);
    if (!m->hp.no_cache) {
        moves(m, false);
        if (gr_any_window(&m->hp))
            moves(m, true);
    } else {
        struct gr_context_limits r = reach_of(m, &p);
        cr_expect(!r.can_shift && !r.can_extend[GR_SELF_EXTEND_CLASSIC], "%s keeps nothing",
                  a->name);
    }
    gr_model_close(&m);
}

Test(context_limits, what_is_said_of_every_architecture, .timeout = 600)
{
    for (int i = 0; gr_arch_at(i); i++)
        each(gr_arch_at(i));
}

Test(context_limits, what_is_no_session)
{
    struct gr_model_params vocab = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    struct gr_context_limits r;
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model *m = tiny_open(&t);
    p.n_seq_max = 0;
    cr_expect_eq(gr_context_limits(m, &p, &r), GR_E_INVALID);
    cr_expect(!r.n_good && !r.can_shift);
    cr_expect_eq(gr_context_limits(m, NULL, &r), 0, "%s", gr_error());
    cr_expect(r.n_good == 256 && r.can_shift);
    gr_model_close(&m);
    vocab.vocab_only = true;
    cr_assert_eq(gr_model_open(&m, NULL, &vocab), 0, "%s", gr_error());
    cr_expect_eq(gr_context_limits(m, NULL, &r), GR_E_INVALID);
    gr_model_close(&m);
}
