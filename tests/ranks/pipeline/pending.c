/* Any number of batches pending, over links that buffer nothing: no stage waits for one behind
 * it, so nothing hangs, and what comes back is what one process computes. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "ranks/team.h"
#include "support/tiny.h"

enum { MOST_STAGE = 8, MOST_GROUP = 2 * MOST_STAGE, N_SEQ = 2, N_STEP = 3, PROMPT = 5 };
enum { N_VOCAB = 96, N_LAYER = 9 };

/* Logits of both sequences after each step of a group. */
static float want[MOST_GROUP][N_STEP][N_SEQ][N_VOCAB];

/* Step 0 is a prompt of several micro-batches for both sequences, the others are a token each. */
static void fill(int g, int step, struct gr_batch *b)
{
    static int32_t token[N_SEQ * PROMPT], seq[N_SEQ * PROMPT];
    static int8_t logits[N_SEQ * PROMPT];
    int n = step ? 1 : PROMPT;
    for (int i = 0; i < N_SEQ * n; i++) {
        token[i] = (7 + 31 * g + 17 * step + 5 * i) % N_VOCAB;
        seq[i] = g * N_SEQ + i / n;
        logits[i] = i % n == n - 1;
    }
    *b = (struct gr_batch){.n_tok = N_SEQ * n, .token = token, .seq = seq, .logits = logits};
}

static void expect_row(struct gr_session *s, int g, int step, int n_stage, int n_group)
{
    for (int q = 0; q < N_SEQ; q++) {
        int n = step ? 1 : PROMPT;
        const float *row = gr_logits(s, q * n + n - 1);
        cr_assert_not_null(row);
        cr_assert_eq(memcmp(row, want[g][step][q], sizeof want[g][step][q]), 0,
                     "%d stages, %d groups: group %d, step %d, sequence %d", n_stage, n_group, g,
                     step, q);
    }
}

static struct gr_session_params session_params(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 1024, p.n_seq_max = MOST_GROUP * N_SEQ, p.n_ubatch = 4, p.n_threads = 1;
    return p;
}

static void compute_alone(const char *path, const struct gr_model_params *mp)
{
    struct gr_session_params p = session_params();
    struct gr_model *m;
    struct gr_session *s;
    struct gr_batch b;
    cr_assert_eq(gr_model_open(&m, path, mp), 0, "%s", gr_error_message());
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error_message());
    for (int i = 0; i < N_STEP * MOST_GROUP; i++) {
        int g = i % MOST_GROUP, step = i / MOST_GROUP;
        fill(g, step, &b);
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error_message());
        for (int q = 0, n = step ? 1 : PROMPT; q < N_SEQ; q++)
            memcpy(want[g][step][q], gr_logits(s, q * n + n - 1), sizeof want[g][step][q]);
    }
    gr_session_close(&s);
    gr_model_close(&m);
}

/* n groups go round and round: each begins again when its last batch has come back. */
static void play(struct gr_session *s, int n_stage, int n)
{
    struct gr_batch b;
    gr_kv_clear(s);
    for (int i = 0; i < (N_STEP + 1) * n; i++) {
        if (i >= n) {
            cr_assert_eq(gr_decode_end(s), 0, "%d stages, %d groups: %s", n_stage, n,
                         gr_error_message());
            expect_row(s, i % n, i / n - 1, n_stage, n);
        }
        if (i < N_STEP * n) {
            fill(i % n, i / n, &b);
            cr_assert_eq(gr_decode_begin(s, &b), 0, "%d stages, %d groups: %s", n_stage, n,
                         gr_error_message());
        }
    }
}

Test(pending, any_number_of_batches_passes_without_buffers, .timeout = 120)
{
    static const struct gr_link_opt sync = {.sync = true};
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = session_params();
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    static char path[256];
    t.n_layer = N_LAYER, t.n_expert = 0;
    strcpy(path, tiny_write(&t, NULL));
    mp.device = "none";
    compute_alone(path, &mp);
    gr_team_test(&(struct gr_team_test){.wrap = &sync});
    for (int n = 2; n <= MOST_STAGE; n++) {
        struct gr_model *m;
        struct gr_session *s;
        mp.n_rank = n;
        cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error_message());
        cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error_message());
        for (int n_group = 1; n_group <= 2 * n; n_group++)
            play(s, n, n_group);
        gr_session_close(&s);
        gr_model_close(&m);
    }
    gr_team_test(NULL);
    unlink(path);
}
