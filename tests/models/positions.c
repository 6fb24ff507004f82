/* Learned positions: a model has as many as its table has rows, and what was stored with one of
 * them cannot have another. Every architecture that may have such a table, with it and without. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

enum { N_POS = 256 }; /* of tiny models */

static struct gr_session *session(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 2 * N_POS, p.n_seq_max = 2, p.n_threads = 1;
    return tiny_session(m, &p);
}

static int decode(struct gr_session *s, int n, const int32_t *pos)
{
    static const int32_t id[2 * N_POS];
    struct gr_batch b = {.n_tok = n, .token = id, .pos = pos};
    return gr_decode(s, &b);
}

static void refused(const char *arch, int status, int expected, const char *words)
{
    cr_expect_eq(status, expected, "%s: status %d, %d expected", arch, status, expected);
    cr_expect(strstr(gr_error(), words), "%s: '%s' expected: %s", arch, words, gr_error());
}

/* Positions up to the last one, given by the caller or counted, are computed; the next one is not,
 * alone or behind others, and nothing changes. */
static void ends(struct gr_model *m)
{
    static const char last[] = "position 256, but the model has learned 256 positions (0 to 255)";
    struct gr_session *s = session(m);
    const char *arch = m->arch->name;
    cr_assert_eq(decode(s, 2, (int32_t[]){N_POS - 2, N_POS - 1}), 0, "%s: %s", arch, gr_error());
    gr_kv_clear(s);
    refused(arch, decode(s, 1, (int32_t[]){N_POS}), GR_E_INVALID, last);
    refused(arch, decode(s, 2, (int32_t[]){N_POS - 1, N_POS}), GR_E_INVALID, last);
    refused(arch, decode(s, 1, (int32_t[]){GR_POS_MAX}), GR_E_INVALID, "0 to 255");
    refused(arch, decode(s, N_POS + 1, NULL), GR_E_INVALID, last);
    cr_expect_eq(gr_kv_used(s), 0);
    cr_assert_eq(decode(s, N_POS, NULL), 0, "%s: %s", arch, gr_error());
    if (!m->hp.no_cache) {
        refused(arch, decode(s, 1, NULL), GR_E_INVALID, last);
        cr_expect_eq(gr_kv_seq_pos_max(s, 0), N_POS - 1);
        cr_expect_eq(gr_kv_used(s), N_POS);
    }
    gr_session_close(&s);
}

/* Stored tokens keep their positions, whichever call asks for others. */
static void stays(struct gr_model *m)
{
    static const char words[] = "are part of what it has stored";
    struct gr_session *s = session(m), *window = NULL;
    const char *arch = m->arch->name;
    struct gr_session_params p = gr_session_params_default();
    struct gr_self_extend se = {2, 8, 0}, off = {1, 8, 0};
    int32_t n_past = 20;
    cr_assert_eq(decode(s, 20, NULL), 0, "%s: %s", arch, gr_error());
    refused(arch, gr_kv_seq_add(s, 0, 5, -1, 3), GR_E_UNSUPPORTED, words);
    refused(arch, gr_kv_seq_div(s, 0, 0, -1, 2), GR_E_UNSUPPORTED, words);
    refused(arch, gr_context_shift(s, 0, 0, 0, &n_past), GR_E_UNSUPPORTED, "learned its positions");
    refused(arch, gr_self_extend(s, &se, &n_past), GR_E_UNSUPPORTED, words);
    cr_expect(n_past == 20 && gr_kv_seq_pos_max(s, 0) == 19 && se.i == 0, "%s", arch);
    cr_expect_eq(gr_kv_seq_add(s, 0, 5, -1, 0), 0, "%s: %s", arch, gr_error());
    cr_expect_eq(gr_kv_seq_div(s, 0, 0, -1, 1), 0, "%s: %s", arch, gr_error());
    cr_expect_eq(gr_self_extend(s, &off, &n_past), 0, "%s: %s", arch, gr_error());
    p.n_ctx = 256, p.self_extend_n = 2, p.self_extend_w = 8;
    refused(arch, gr_session_open(&window, m, &p), GR_E_UNSUPPORTED, "no rotary positions");
    gr_session_close(&s);
}

/* Without a table any position is computed, and what was stored moves. */
static void moves(struct gr_model *m)
{
    struct gr_session *s = session(m);
    const char *arch = m->arch->name;
    int32_t n_past;
    cr_assert_eq(decode(s, N_POS + 1, NULL), 0, "%s: %s", arch, gr_error());
    cr_expect_eq(gr_kv_seq_add(s, 0, 5, -1, 3), 0, "%s: %s", arch, gr_error());
    cr_expect_eq(gr_context_shift(s, 0, 0, 0, &n_past), 0, "%s: %s", arch, gr_error());
    cr_expect_eq(decode(s, 1, NULL), 0, "%s: %s", arch, gr_error());
    gr_session_close(&s);
}

static void each_kind(const struct gr_arch *a, bool no_optional, int *n_learned, int *n_free)
{
    struct tiny t = tiny_default(a);
    struct gr_model_info info;
    t.no_optional = no_optional;
    struct gr_model *m = tiny_open(&t);
    bool learned = gr_ten_is(&m->weight[GR_W_POS_EMBD]);
    gr_model_info(m, &info);
    cr_expect_eq(info.n_learned_pos, learned ? N_POS : 0, "%s: %d", a->name, info.n_learned_pos);
    if (learned)
        ends(m);
    if (learned && !m->hp.no_cache)
        stays(m);
    if (!learned)
        moves(m);
    *n_learned += learned, *n_free += !learned;
    gr_model_close(&m);
}

Test(positions, of_every_architecture_that_may_have_learned_them, .timeout = 300)
{
    static const char *const known[] = {"bert", "gpt2", "mpt", "starcoder"};
    const struct gr_arch *a;
    int n = 0, n_learned = 0, n_free = 0;
    for (int i = 0; (a = gr_arch_at(i)); i++) {
        if (!tiny_has(a, GR_W_POS_EMBD))
            continue;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            n += !strcmp(a->name, known[k]);
        each_kind(a, false, &n_learned, &n_free);
        each_kind(a, true, &n_learned, &n_free);
    }
    cr_expect_eq(n, 4, "all that are known are looked at");
    cr_expect(n_learned >= 7 && n_free >= 1, "%d with a table, %d without", n_learned, n_free);
}
