/* Sessions of one model in several threads at once: each gives, to the bit, what one alone does. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

#define N_THREAD 3
#define N_TOK 30
#define N_VOCAB 96

struct job {
    struct gr_model *model;
    int which;
    float logits[N_TOK * N_VOCAB];
    int rc;
};

/* Opens a session, decodes, is refused once, shifts, decodes again. */
static void *work(void *p)
{
    struct job *j = p;
    struct gr_session_params sp = gr_session_params_default();
    struct gr_session *s = NULL;
    int32_t id[N_TOK], bad = N_VOCAB;
    int8_t all[N_TOK];
    sp.n_ctx = 256, sp.n_threads = 1 + j->which % 2, sp.n_ubatch = 7 + (uint32_t)j->which;
    for (int i = 0; i < N_TOK; i++)
        id[i] = (j->which + 37 * i) % N_VOCAB, all[i] = 1;
    j->rc = gr_session_open(&s, j->model, &sp);
    for (int round = 0; round < 2 && !j->rc; round++) {
        gr_kv_clear(s);
        j->rc = gr_decode(s, &(struct gr_batch){.n_tok = 20, .token = id, .logits = all});
        for (int i = 0; i < 20 && !j->rc; i++)
            memcpy(j->logits + i * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof(float));
        if (!j->rc && gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &bad}) != GR_E_INVALID)
            j->rc = -1;
        if (!j->rc)
            j->rc = strstr(gr_error(), "96 found") ? 0 : -2;
        if (!j->rc && !tiny_keeps_states(j->model))
            j->rc = gr_kv_seq_add(s, 0, 3, -1, 2);
        for (int i = 20; i < N_TOK && !j->rc; i++) {
            j->rc = gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = id + i});
            if (!j->rc)
                memcpy(j->logits + i * N_VOCAB, tiny_row(s, 0), N_VOCAB * sizeof(float));
        }
    }
    gr_session_close(&s);
    return NULL;
}

static void share_models(void)
{
    static struct job alone[N_THREAD], together[N_THREAD];
    for (int i = 0; gr_arch_at(i); i += 3) {
        struct tiny t = tiny_default(gr_arch_at(i));
        if (t.arch->no_cache)
            continue;
        struct gr_model *m = tiny_open(&t);
        pthread_t thread[N_THREAD];
        for (int k = 0; k < N_THREAD; k++) {
            alone[k] = together[k] = (struct job){.model = m, .which = k};
            work(&alone[k]);
        }
        for (int k = 0; k < N_THREAD; k++)
            cr_assert_eq(pthread_create(&thread[k], NULL, work, &together[k]), 0);
        for (int k = 0; k < N_THREAD; k++) {
            pthread_join(thread[k], NULL);
            cr_expect(!alone[k].rc && !together[k].rc, "%s: %d, %d", t.arch->name, alone[k].rc,
                      together[k].rc);
            cr_expect_eq(memcmp(alone[k].logits, together[k].logits, sizeof alone[k].logits), 0,
                         "%s, session %d", t.arch->name, k);
        }
        gr_model_close(&m);
    }
}

Test(share, one_model_in_several_threads)
{
    share_models();
}

Test(share, one_model_on_a_device_in_several_threads)
{
    fake_use(1, 64u << 20);
    share_models();
    cr_expect(fake_runs(0) > 100);
    cr_expect_eq(fake_used(0, NULL), 0);
}
