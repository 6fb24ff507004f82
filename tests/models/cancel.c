/* Cancelling a decode from another thread: whenever it comes, the cache is as before. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_PROMPT 200
#define N_TRY 60
#define STEP 3

struct canceller {
    struct gr_session *s;
    _Atomic int go; /* the try that is under way, from 1 on; -1 = end */
};

static void pause_ns(long ns)
{
    nanosleep(&(struct timespec){0, ns}, NULL);
}

/* Cancels try k some time after it has begun: later from try to try. */
static void *cancel(void *p)
{
    struct canceller *c = p;
    for (int done = 0, k; (k = atomic_load(&c->go)) >= 0;) {
        if (k == done) {
            pause_ns(1000);
            continue;
        }
        pause_ns(20000L * k);
        gr_session_cancel(c->s);
        done = k;
    }
    return NULL;
}

static int decode_one(struct gr_session *s, int32_t id)
{
    return gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &id});
}

static struct gr_session *prompted(struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.type_k = "f32", p.type_v = "f32", p.n_threads = 1;
    struct gr_session *s = tiny_session(m, &p);
    int32_t id[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        id[i] = i * 7 % 96;
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = N_PROMPT, .token = id}), 0, "%s",
                 gr_error());
    return s;
}

/* Each try moves the sequence on, so that the K of every layer is rotated before the token is
 * computed. A K-shift that is left half way would rotate some layers again. */
Test(cancel, never_leaves_a_shift_half_way)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    t.n_layer = 40, t.no_optional = true, t.n_expert = 0;
    struct gr_model *m = tiny_open(&t);
    struct gr_session *a = prompted(m), *b = prompted(m);
    struct canceller c = {a, 0};
    pthread_t thread;
    int n_cancelled = 0;
    cr_assert_eq(pthread_create(&thread, NULL, cancel, &c), 0);
    for (int k = 1; k <= N_TRY; k++) {
        cr_assert_eq(gr_kv_seq_add(a, 0, 0, -1, STEP), 0);
        atomic_store(&c.go, k);
        int rc = decode_one(a, 5);
        cr_assert(rc == 0 || rc == GR_E_CANCELLED, "%d: %s", rc, gr_error());
        n_cancelled += rc != 0;
        cr_expect_eq(gr_kv_used(a), N_PROMPT + (rc == 0));
        cr_expect_eq(rc == 0, tiny_row(a, 0) != NULL);
        cr_assert_eq(gr_kv_seq_rm(a, 0, N_PROMPT + k * STEP, -1), 0);
    }
    atomic_store(&c.go, -1);
    pthread_join(thread, NULL);
    cr_expect(n_cancelled > 0, "nothing was cancelled");
    cr_assert_eq(gr_kv_seq_add(b, 0, 0, -1, N_TRY * STEP), 0);
    cr_assert_eq(decode_one(a, 9), 0, "%s", gr_error());
    cr_assert_eq(decode_one(b, 9), 0, "%s", gr_error());
    double e = tiny_nmse(tiny_row(b, 0), tiny_row(a, 0), 96);
    cr_expect(e < 1e-9, "%d of %d cancelled: logits differ by %g", n_cancelled, N_TRY, e);
    gr_session_close(&a);
    gr_session_close(&b);
    gr_model_close(&m);
}
