/* A caller that listens to the progress of long calls hears all, in order, and can end them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

struct heard {
    int n, n_pass;              /* calls; passes that have begun */
    uint64_t last, total;       /* of the pass under way */
    uint64_t stop_at;           /* false from here on; 0: never */
    uint64_t pass_total[4];     /* of each pass */
    bool unordered, unfinished; /* it fell, or a pass began before the last one had ended */
};

static bool hear(uint64_t done, uint64_t total, void *user)
{
    struct heard *h = user;
    if (done == 0 && (h->n == 0 || h->last)) {
        h->unfinished |= h->n > 0 && h->last != h->total;
        h->pass_total[h->n_pass++ % 4] = total;
        h->last = 0, h->total = total;
    }
    h->unordered |= done < h->last || done > total || total != h->total;
    h->last = done;
    h->n++;
    return !h->stop_at || done < h->stop_at;
}

/* The model's file, "" = it is not there; models are opened from it with a listener. */
struct opened {
    char path[256];
    struct gr_model *m;
    struct heard h;
};

static int open_with(struct opened *x, bool mapped, bool check, int n_gpu)
{
    struct gr_model_params p = gr_model_params_default();
    p.use_mmap = mapped, p.check_tensors = check, p.n_gpu_layers = n_gpu;
    p.progress = hear, p.progress_user = &x->h;
    return gr_model_open(&x->m, x->path, &p);
}

static struct opened write_model(int n_layer)
{
    struct opened x = {.m = NULL};
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = n_layer, t.no_optional = true, t.dir = "/tmp";
    snprintf(x.path, sizeof x.path, "%s", tiny_write(&t, NULL));
    return x;
}

static void expect_passes(const struct heard *h, int n)
{
    cr_expect_eq(h->n_pass, n, "%d passes, %d expected", h->n_pass, n);
    cr_expect(!h->unordered && !h->unfinished);
    cr_expect_eq(h->last, h->total, "%llu of %llu", (unsigned long long)h->last,
                 (unsigned long long)h->total);
}

Test(progress, of_reading_weights)
{
    struct opened x = write_model(4);
    struct gr_model_info info;
    cr_assert_eq(open_with(&x, true, false, 0), 0, "%s", gr_error());
    expect_passes(&x.h, 0); /* nothing is read of a mapped file */
    gr_model_close(&x.m);
    cr_assert_eq(open_with(&x, false, false, 0), 0, "%s", gr_error());
    expect_passes(&x.h, 1);
    gr_model_info(x.m, &info);
    cr_expect_eq(x.h.total, info.n_bytes);
    cr_expect_gt(x.h.n, 10);
    gr_model_close(&x.m);
    x.h = (struct heard){0};
    cr_assert_eq(open_with(&x, true, true, 0), 0, "%s", gr_error());
    expect_passes(&x.h, 1);
    gr_model_close(&x.m);
    x.h = (struct heard){.stop_at = 1};
    cr_expect_eq(open_with(&x, false, false, 0), GR_E_CANCELLED);
    cr_expect_null(x.m);
    unlink(x.path);
}

Test(progress, of_bringing_weights_to_a_device)
{
    struct opened x = write_model(4);
    struct gr_fit fit;
    fake_use(1, (uint64_t)64 << 20);
    cr_assert_eq(open_with(&x, true, false, 99), 0, "%s", gr_error());
    expect_passes(&x.h, 0);
    x.h.stop_at = 1000;
    cr_expect_eq(gr_model_load(x.m, NULL), GR_E_CANCELLED);
    x.h = (struct heard){0};
    cr_assert_eq(gr_model_load(x.m, NULL), 0, "%s", gr_error()); /* it may be tried again */
    expect_passes(&x.h, 1);
    cr_assert_eq(gr_model_fit(x.m, NULL, &fit), 0, "%s", gr_error());
    cr_expect_eq(x.h.total, fit.device[1].weights);
    gr_model_close(&x.m);
    unlink(x.path);
}

enum { N_PROMPT = 100, N_UBATCH = 16 };

static int decode(struct gr_session *s, int32_t n)
{
    int32_t id[N_PROMPT];
    for (int i = 0; i < n; i++)
        id[i] = i * 7 % 96;
    return gr_decode(s, &(struct gr_batch){.n_tok = n, .token = id});
}

static void of_a_prompt(int n_gpu, int least)
{
    struct opened x = write_model(4);
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_ubatch = N_UBATCH, p.n_threads = 2;
    cr_assert_eq(open_with(&x, true, false, n_gpu), 0, "%s", gr_error());
    struct gr_session *s = tiny_session(x.m, &p);
    x.h = (struct heard){0};
    gr_session_progress(s, hear, &x.h);
    cr_assert_eq(decode(s, N_PROMPT), 0, "%s", gr_error());
    expect_passes(&x.h, 1);
    cr_expect_eq(x.h.total, 1000 * N_PROMPT);
    cr_expect_geq(x.h.n, least, "told %d times, %d expected", x.h.n, least);
    x.h = (struct heard){.stop_at = 1000 * N_PROMPT / 2};
    cr_expect_eq(decode(s, N_PROMPT), GR_E_CANCELLED);
    cr_expect_lt(x.h.last, 1000 * N_PROMPT);
    cr_expect_eq(gr_kv_used(s), N_PROMPT);
    x.h = (struct heard){0};
    cr_assert_eq(gr_session_resize(s, 512), 0, "%s", gr_error());
    cr_assert_eq(decode(s, N_PROMPT), 0, "%s", gr_error());
    expect_passes(&x.h, 1);
    cr_expect_geq(x.h.n, least, "after a resize: told %d times, %d expected", x.h.n, least);
    gr_session_progress(s, NULL, NULL);
    x.h = (struct heard){0};
    cr_assert_eq(decode(s, 1), 0, "%s", gr_error());
    cr_expect_eq(x.h.n, 0);
    gr_session_close(&s);
    gr_model_close(&x.m);
    unlink(x.path);
}

/* Seven micro-batches: on the CPU each is told of node by node. */
Test(progress, of_a_prompt)
{
    fake_use(1, (uint64_t)64 << 20);
    of_a_prompt(0, 7 * 20);
    of_a_prompt(2, 7 * 10);
    of_a_prompt(99, 7);
}
