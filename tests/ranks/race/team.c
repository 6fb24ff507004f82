/* A model that several threads run together, under ThreadSanitizer: prompts in pieces, groups in
 * flight, operations, a state, a session of another thread beside it, batches that are cancelled, a
 * rank that is lost. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gr/status.h"
#include "ranks/team.h"

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "team.c:%d: %s: %s\n", __LINE__, #x, gr_error_message());              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { N_SEQ = 4, PROMPT = 40 };

static struct gr_session *open_session(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    struct gr_session *s;
    p.n_ctx = 512, p.n_seq_max = N_SEQ, p.n_ubatch = 16, p.n_threads = 4;
    CHECK(gr_session_open(&s, m, &p) == 0);
    return s;
}

static int begin(struct gr_session *s, int32_t q, int n)
{
    int32_t id[PROMPT], seq[PROMPT];
    for (int i = 0; i < n; i++)
        id[i] = 1 + (7 * i + q) % 90, seq[i] = q;
    return gr_decode_begin(s, &(struct gr_batch){.n_tok = n, .token = id, .seq = seq});
}

/* All groups have a batch in flight. */
static void run_groups(struct gr_session *s)
{
    for (int k = 0; k < 4; k++) {
        for (int32_t q = 0; q < N_SEQ; q++)
            CHECK(begin(s, q, k ? 1 : PROMPT) == 0);
        for (int32_t q = 0; q < N_SEQ; q++)
            CHECK(gr_decode_end(s) == 0 && gr_logits(s, -1));
    }
}

static void *other_thread(void *m)
{
    struct gr_session *s = open_session(m);
    run_groups(s);
    gr_session_close(&s);
    return NULL;
}

static void *cancel(void *s)
{
    for (int i = 0; i < 2000; i++)
        gr_session_cancel(s);
    return NULL;
}

static void use(struct gr_model *m)
{
    struct gr_session *s = open_session(m);
    struct gr_stage stage[GR_MAX_RANK];
    pthread_t thread;
    void *data;
    size_t n;
    CHECK(pthread_create(&thread, NULL, other_thread, m) == 0);
    run_groups(s);
    CHECK(gr_kv_seq_rm(s, 1, -1, -1) == 0 && gr_kv_seq_cp(s, 0, 1, -1, -1) == 0);
    CHECK(gr_kv_seq_add(s, 2, 4, -1, 3) == 0);
    CHECK(gr_state_save(s, -1, NULL, 0, &data, &n) == 0);
    CHECK(gr_session_resize(s, 1024) == 0);
    CHECK(gr_state_load(s, -1, data, n, NULL, NULL) == 0);
    gr_state_free(data);
    pthread_join(thread, NULL);
    CHECK(gr_session_stages(s, stage, GR_MAX_RANK) == 3);
    CHECK(pthread_create(&thread, NULL, cancel, s) == 0);
    for (int i = 0; i < 5; i++) {
        int rc = begin(s, 3, 1);
        CHECK(rc ? rc == GR_E_CANCELLED : gr_decode_end(s) == 0);
    }
    pthread_join(thread, NULL);
    gr_session_close(&s);
}

static void lose(struct gr_model *m)
{
    struct gr_session *s = open_session(m);
    int rc = begin(s, 0, PROMPT); /* it may come that soon */
    CHECK((rc ? rc : gr_decode_end(s)) == GR_E_PEER_LOST && strstr(gr_error_message(), "rank 2"));
    CHECK(begin(s, 0, 1) == GR_E_PEER_LOST);
    gr_session_close(&s);
}

int main(void)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.n_rank = 3, p.device = "none";
    CHECK(gr_model_open(&m, NULL, &p) == 0);
    use(m);
    gr_model_close(&m);
    gr_team_test(&(struct gr_team_test){.spoil_rank = 2, .spoil_at = 1});
    CHECK(gr_model_open(&m, NULL, &p) == 0);
    lose(m);
    gr_model_close(&m);
    return 0;
}
