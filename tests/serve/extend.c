/* Requests with Self-Extend beside others, against gr_self_extend in a session of their own. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(extend, .timeout = 120);

static struct client client[MOST_REQUEST];

static void submit_extended(const struct world *w, struct client *c, int32_t n, int32_t width)
{
    struct gr_request r = request_of(w, c);
    r.extend_n = n, r.extend_w = width;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

/* The same token by token. */
static void check_extended(const struct world *w, const struct client *c, int32_t n, int32_t width)
{
    struct gr_session *s = open_session(w, 512, 1);
    struct gr_sampler *sampler = open_sampler(w, c->seed);
    struct gr_self_extend se = {.n = n, .w = width};
    int32_t n_past = 0, id = -1, i = 0;
    for (int32_t k = 0; k < c->n_prompt; k++)
        cr_assert_eq(gr_sampler_accept(sampler, c->prompt[k]), 0);
    for (int32_t k = 0; i < c->n_predict && !(id >= 0 && gr_text_is_eog(w->model, id)); k++) {
        struct gr_batch batch = {
            .n_tok = 1, .token = k < c->n_prompt ? &c->prompt[k] : &id, .pos = &n_past};
        cr_assert_eq(gr_self_extend(s, &se, &n_past), 0, "%s", gr_error_message());
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
        n_past++;
        if (k + 1 < c->n_prompt)
            continue;
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &id), 0);
        cr_assert_eq(gr_sampler_accept(sampler, id), 0);
        cr_expect(i < c->n && c->token[i] == id, "%d, %d: token %d is %d, expected %d", n, width, i,
                  i < c->n ? c->token[i] : -1, id);
        i++;
    }
    cr_expect_eq(c->n, i);
    cr_expect_lt(n_past, c->n_prompt + i - 1); /* something was merged */
    gr_sampler_free(&sampler);
    gr_session_close(&s);
}

/* Few cells, so that some are stopped and computed again; the others share cells with none. */
Test(extend, against_a_session)
{
    static const int32_t factor[][2] = {{2, 32}, {4, 64}, {8, 32}, {1, 0}};
    for (int tight = 0; tight < 2; tight++) {
        struct world w = open_world(tiny_model(false), 4, tight ? 512 : 2048);
        struct gr_rng rng = gr_rng_new(60);
        for (int i = 0; i < 12; i++) {
            make_client(&w, &client[i], &rng, 100 + (int32_t)gr_rng_below(&rng, 150));
            memcpy(client[i].prompt, client[0].prompt, 90 * sizeof *client[0].prompt);
            client[i].n_predict = 140;
            submit_extended(&w, &client[i], factor[i % 4][0], factor[i % 4][1]);
            gr_scheduler_step(w.scheduler);
        }
        run(&w);
        for (int i = 0; i < 12; i++) {
            if (i % 4 == 3)
                check_alone(&w, &client[i], "beside Self-Extend");
            else
                check_extended(&w, &client[i], factor[i % 4][0], factor[i % 4][1]);
        }
        cr_expect(!tight || gr_scheduler_stats(w.scheduler).n_preempted > 0);
        close_world(&w);
    }
}

/* A window that cannot be divided is refused at once, a model that cannot do it when it begins. */
Test(extend, refused)
{
    static const char *const archs[] = {"gemma3", "mamba", "jamba", "gpt2"};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch(archs[a], path);
        struct world w = open_world(path, 2, 4096); /* more than windows hold */
        struct gr_rng rng = gr_rng_new(61);
        make_client(&w, &client[0], &rng, 20);
        make_client(&w, &client[1], &rng, 20);
        struct gr_request bad = request_of(&w, &client[0]);
        bad.extend_n = 3, bad.extend_w = 32;
        cr_expect_eq(gr_scheduler_submit(w.scheduler, &bad, &client[0].id), GR_E_INVALID);
        bad.extend_w = 33, bad.conversation = 1;
        cr_expect_eq(gr_scheduler_submit(w.scheduler, &bad, &client[0].id), GR_E_INVALID);
        gr_sampler_free(&bad.sampler);
        submit_extended(&w, &client[0], 4, 64);
        submit(&w, &client[1]);
        run(&w);
        cr_expect_eq(client[0].result.end, GR_FINISH_FAILED, "%s", archs[a]);
        cr_expect_eq(client[0].result.status, GR_E_UNSUPPORTED, "%s", archs[a]);
        check_alone(&w, &client[1], archs[a]);
        close_world(&w);
    }
}
