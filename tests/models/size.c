/* Memory of a session, for every architecture. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/session.h"
#include "support/tiny.h"

/* A session takes the sizes that gr_session_size computes before. */
Test(size, S3_8_is_known_before)
{
    for (int i = 0; gr_arch_at(i); i++)
        for (int kind = 0; kind < 4; kind++) {
            struct tiny t = tiny_default(gr_arch_at(i));
            struct gr_model *m = tiny_open(&t);
            struct gr_session_params p = gr_session_params_default();
            struct gr_session_size size;
            p.n_ctx = 1024, p.type_v = "f32", p.n_seq_max = 4, p.kv_unified = kind & 1,
            p.swa_full = kind & 2;
            cr_assert_eq(gr_session_size(m, &p, &size), 0, "%s", gr_error());
            struct gr_session *s = tiny_session(m, &p);
            cr_expect_eq(size.total, s->memory.total, "%s", t.arch->name);
            cr_expect_eq(size.k + size.v + size.state, size.total, "%s", t.arch->name);
            uint64_t sum = 0;
            for (int l = 0; l < m->hp.n_layer * GR_N_CACHE_TENSOR; l++)
                if (m->hp.attn.kv_of[l % m->hp.n_layer] == l % m->hp.n_layer ||
                    l / m->hp.n_layer >= GR_T_CONV)
                    sum += (uint64_t)(s->tensors[l].rows * s->tensors[l].row_bytes);
            cr_expect_eq(sum, size.total, "%s", t.arch->name);
            gr_session_close(&s);
            gr_model_close(&m);
        }
}

/* A plan knows what memory the machine has for it. */
Test(size, a_fit_knows_the_host)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    struct gr_fit fit;
    cr_assert_eq(gr_model_fit(m, NULL, &fit), 0, "%s", gr_error());
    cr_expect_gt(fit.host_free, (uint64_t)1 << 20);
    cr_expect_lt(fit.host_free, (uint64_t)1 << 50);
    gr_model_close(&m);
}

static char log_text[8192];

static void keep_line(enum gr_log_level level, const char *line, void *user)
{
    (void)level, (void)user;
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", line);
}

/* A context that is no whole number of blocks is rounded up, and that is said. */
Test(size, C13_rounding)
{
    static const uint32_t n_ctx[][2] = {{8000, 8192}, {30016, 30208}, {8192, 8192}, {1, 256}};
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    gr_log_set(keep_line, NULL);
    for (size_t i = 0; i < sizeof n_ctx / sizeof *n_ctx; i++) {
        struct gr_session_params p = gr_session_params_default();
        char line[64];
        *log_text = 0;
        p.n_ctx = n_ctx[i][0];
        struct gr_session *s = tiny_session(m, &p);
        cr_expect_eq(gr_session_n_ctx(s), n_ctx[i][1]);
        snprintf(line, sizeof line, "context of %u cells rounded up to %u\n", n_ctx[i][0],
                 n_ctx[i][1]);
        cr_expect_eq(strstr(log_text, line) != NULL, n_ctx[i][0] != n_ctx[i][1], "%s", log_text);
        gr_session_close(&s);
    }
    gr_log_set(NULL, NULL);
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 8192, p.n_seq_max = 6, p.kv_unified = false;
    struct gr_session *s = tiny_session(m, &p);
    cr_expect_eq(gr_session_n_ctx_seq(s), 1536, "each pool is whole blocks");
    cr_expect_eq(gr_session_n_ctx(s), 6 * 1536);
    gr_session_close(&s);
    gr_model_close(&m);
}
