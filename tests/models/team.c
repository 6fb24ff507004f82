/* A model that several threads run together gives, byte for byte, what one gives. */
#include "engine/team.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "models/tiny.h"

#define N_VOCAB 96

static struct gr_model *open_team(const struct tiny *t, int32_t n_rank)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.n_rank = n_rank;
    cr_assert_eq(gr_model_open(&m, tiny_write(t, NULL), &p), 0, "%s", gr_error());
    return m;
}

Test(team, decodes)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    t.n_layer = 5;
    for (int32_t n = 1; n <= 8; n++) {
        struct gr_model *m = open_team(&t, n), *one = tiny_open(&t);
        struct gr_session_params p = gr_session_params_default();
        p.n_ctx = 256, p.n_ubatch = 7, p.n_seq_max = 3;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(one, &p);
        int32_t id[40];
        for (int i = 0; i < 40; i++)
            id[i] = (5 + 37 * i) % N_VOCAB;
        for (int k = 0; k < 10; k++) {
            struct gr_batch in = {.n_tok = k ? 1 : 40, .token = id + k};
            cr_assert_eq(gr_decode(a, &in), 0, "%s", gr_error());
            cr_assert_eq(gr_decode(b, &in), 0, "%s", gr_error());
            cr_assert_eq(memcmp(gr_logits(a, -1), gr_logits(b, -1), N_VOCAB * sizeof(float)), 0,
                         "%d ranks, step %d", n, k);
        }
        gr_session_close(&a), gr_session_close(&b);
        gr_model_close(&m), gr_model_close(&one);
    }
}
