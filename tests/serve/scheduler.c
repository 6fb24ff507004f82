/* Requests side by side against each of them alone, at --cpu-level ref, where results do not depend
 * on what else is in a batch. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(scheduler, .timeout = 120);

static struct client client[MOST_REQUEST];

/* Prompts of any length, some of which begin alike or are equal, that come in while others run. */
static void random_requests(const struct world *w, int n, int32_t most, uint64_t seed)
{
    struct gr_rng rng = gr_rng_new(seed);
    for (int i = 0; i < n; i++) {
        make_client_like(w, client, i, &rng, most);
        submit(w, &client[i]);
        for (int k = (int)gr_rng_below(&rng, 4); k > 0; k--)
            gr_scheduler_step(w->scheduler);
    }
    run(w);
}

static const char *const archs[] = {"llama", "gemma3", "mamba", "jamba"};

Test(scheduler, requests_are_what_they_are_alone)
{
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch(archs[a], path);
        for (int tight = 0; tight < 2; tight++) {
            struct world w = open_world(path, 4, tight ? 512 : 2048);
            random_requests(&w, 16, tight ? 300 : 150, 1 + a);
            for (int i = 0; i < 16; i++) {
                char what[64];
                snprintf(what, sizeof what, "%s, %s, request %d", archs[a],
                         tight ? "few cells" : "many cells", i);
                check_alone(&w, &client[i], what);
            }
            struct gr_scheduler_stats stats = gr_scheduler_stats(w.scheduler);
            cr_expect_eq(stats.n_request, 16);
            cr_expect_eq(stats.n_failed + stats.n_cancelled, 0);
            close_world(&w);
        }
    }
}

/* Answers that grow until cells run out: the last request is stopped and computed again. */
Test(scheduler, a_request_is_preempted)
{
    struct world w = open_world(tiny_model(false), 4, 512);
    struct gr_rng rng = gr_rng_new(5);
    for (int i = 0; i < 4; i++) {
        make_client(&w, &client[i], &rng, 60);
        client[i].n_predict = 150;
        submit(&w, &client[i]);
    }
    run(&w);
    for (int i = 0; i < 4; i++)
        check_alone(&w, &client[i], "preempted");
    cr_expect_gt(gr_scheduler_stats(w.scheduler).n_preempted, 0);
    close_world(&w);
}

/* Equal beginnings that come at once are computed once; a text that goes on begins at its end. */
Test(scheduler, beginnings_are_computed_once)
{
    struct world w = open_world(tiny_model(false), 8, 4096);
    struct gr_rng rng = gr_rng_new(6);
    make_client(&w, &client[0], &rng, 300);
    for (int i = 0; i < 8; i++) {
        if (i) {
            make_client(&w, &client[i], &rng, 300);
            memcpy(client[i].prompt, client[0].prompt, 280 * sizeof *client[0].prompt);
        }
        submit(&w, &client[i]);
    }
    run(&w);
    for (int i = 0; i < 8; i++) {
        check_alone(&w, &client[i], "common beginning");
        cr_expect_eq(client[i].result.n_cached, i ? 280 : 0, "request %d: %d cached", i,
                     client[i].result.n_cached);
    }
    struct client *next = &client[8];
    make_client(&w, next, &rng, 320);
    memcpy(next->prompt, client[3].prompt, 300 * sizeof *next->prompt);
    memcpy(next->prompt + 300, client[3].token, (size_t)client[3].n * sizeof *next->prompt);
    submit(&w, next);
    run(&w);
    check_alone(&w, next, "the next turn");
    cr_expect_eq(next->result.n_cached, 300 + client[3].n - 1); /* the last one was not decoded */
    close_world(&w);
}

/* Recurrent states are kept at the end of a prompt: an answer can be written again. */
Test(scheduler, states_are_kept_at_the_end_of_a_prompt)
{
    const char *path = tiny_path("model.gguf");
    tiny_write_arch("mamba", path);
    struct world w = open_world(path, 2, 1024);
    struct gr_rng rng = gr_rng_new(7);
    make_client(&w, &client[0], &rng, 100);
    submit(&w, &client[0]);
    run(&w);
    make_client(&w, &client[1], &rng, 140);
    memcpy(client[1].prompt, client[0].prompt, 100 * sizeof *client[0].prompt);
    submit(&w, &client[1]);
    run(&w);
    check_alone(&w, &client[1], "state");
    cr_expect_eq(client[1].result.n_cached, 100);
    close_world(&w);
}

Test(scheduler, owners_share_nothing)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(8);
    make_client(&w, &client[0], &rng, 100);
    client[1] = client[2] = client[0];
    for (int i = 0; i < 3; i++) {
        struct gr_request r = request_of(&w, &client[i]);
        r.owner = i == 2 ? 1 : (uint64_t)i;
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[i].id), 0);
        run(&w);
    }
    cr_expect_eq(client[1].result.n_cached, 0);
    cr_expect_eq(client[2].result.n_cached, 99);
    close_world(&w);
}

/* Requests that wait, read their prompt or are answered end with the next step. */
Test(scheduler, a_request_is_cancelled)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(9);
    for (int i = 0; i < 4; i++) {
        make_client(&w, &client[i], &rng, i == 1 ? 200 : 8);
        client[i].n_predict = 100;
        submit(&w, &client[i]);
    }
    gr_scheduler_step(w.scheduler);
    gr_scheduler_step(w.scheduler);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(client[i].n_result, 0);
        gr_scheduler_cancel(w.scheduler, client[i].id);
    }
    gr_scheduler_step(w.scheduler);
    for (int i = 0; i < 3; i++)
        cr_expect(client[i].n_result == 1 && client[i].result.end == GR_FINISH_CANCELLED, "%d", i);
    gr_scheduler_cancel(w.scheduler, client[0].id); /* has ended */
    run(&w);
    check_alone(&w, &client[3], "beside cancelled ones");
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_cancelled, 3);
    close_world(&w);
}

/* One request at a time: priorities first, then the owner who has had none, then the oldest. */
Test(scheduler, order)
{
    struct world w = open_world(tiny_model(false), 1, 1024);
    struct gr_rng rng = gr_rng_new(10);
    static const int priority[] = {0, 0, 2, 1, 0};
    static const int expected[] = {2, 3, 0, 1, 4};
    for (int i = 0; i < 5; i++) {
        make_client(&w, &client[i], &rng, 8);
        struct gr_request r = request_of(&w, &client[i]);
        r.priority = priority[i];
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[i].id), 0);
    }
    run(&w);
    for (int i = 0; i < 5; i++)
        cr_expect_eq(client[expected[i]].order, i);
    close_world(&w);
}

Test(scheduler, owners_get_fair_parts)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(11);
    for (int i = 0; i < 6; i++) { /* five of one owner, then one of another */
        make_client(&w, &client[i], &rng, 8);
        struct gr_request r = request_of(&w, &client[i]);
        r.owner = i == 5;
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[i].id), 0);
    }
    run(&w);
    cr_expect_lt(client[5].order, 2);
    close_world(&w);
}

Test(scheduler, refused)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(12);
    struct client *c = &client[0];
    make_client(&w, c, &rng, 8);
    struct gr_request r = request_of(&w, c), bad = r;
    bad.n_prompt = 0;
    cr_expect_eq(gr_scheduler_submit(w.scheduler, &bad, &c->id), GR_E_INVALID);
    bad.n_prompt = MOST_TEXT + 1;
    cr_expect_eq(gr_scheduler_submit(w.scheduler, &bad, &c->id), GR_E_INVALID);
    bad = r, bad.n_probs = GR_MAX_PROBS + 1;
    cr_expect_eq(gr_scheduler_submit(w.scheduler, &bad, &c->id), GR_E_INVALID);
    for (int i = 1; i <= MOST_REQUEST - 1; i++) {
        make_client(&w, &client[i], &rng, 4);
        client[i].n_predict = 1;
        submit(&w, &client[i]);
    }
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &c->id), 0);
    struct gr_request more = request_of(&w, c);
    cr_expect_eq(gr_scheduler_submit(w.scheduler, &more, &c->id), GR_E_TOO_LARGE);
    gr_scheduler_stop(w.scheduler, false);
    cr_expect_eq(gr_scheduler_submit(w.scheduler, &more, &c->id), GR_E_CANCELLED);
    gr_sampler_free(&more.sampler);
    gr_scheduler_run(w.scheduler); /* those that were accepted end as they should */
    for (int i = 0; i < MOST_REQUEST; i++)
        cr_expect(client[i].n_result == 1 && client[i].result.end <= GR_FINISH_LENGTH, "%d", i);
    close_world(&w);
}

/* Limits of an answer: none at all, the context, a stop string that tokens cut. */
Test(scheduler, ends)
{
    struct world w = open_world(tiny_model(false), 4, 2048);
    struct gr_rng rng = gr_rng_new(13);
    for (int i = 0; i < 4; i++)
        make_client(&w, &client[i], &rng, i == 3 ? 8 : 30);
    client[0].n_predict = 0;
    client[1].n_predict = -1;
    client[2].n_predict = 40, client[2].seed = 4;
    for (int i = 0; i < 3; i++)
        submit(&w, &client[i]);
    run(&w);
    cr_expect_eq(client[0].n, 0);
    cr_expect_eq(client[0].result.end, GR_FINISH_LENGTH);
    cr_expect(client[1].n_prompt + client[1].n == MOST_TEXT ||
              client[1].result.end == GR_FINISH_TOKEN);
    const char *at = client[2].text; /* two letters, which are two tokens */
    while (*at && !(at[0] > 0 && at[1] > 0))
        at++;
    cr_assert(at[0] && at[1]);
    char stop[3] = {at[0], at[1], 0}, expected[8 * MOST_TEXT] = "";
    const char *strings[] = {stop};
    strncat(expected, client[2].text, (size_t)(at - client[2].text));
    struct client *c = &client[3];
    *c = client[2];
    c->n = c->n_result = 0, c->text[0] = 0;
    struct gr_request r = request_of(&w, c);
    cr_assert_eq(gr_stop_new(&r.stop, strings, NULL, 1), 0);
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &c->id), 0);
    run(&w);
    cr_expect_str_eq(c->text, expected);
    cr_expect_eq(c->result.end, GR_FINISH_STRING);
    cr_expect_eq(c->result.stop, 0);
    close_world(&w);
}

/* Probabilities against sums in double of the logits of a session. */
Test(scheduler, probabilities)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_session *s = open_session(&w, 512, 1);
    struct gr_rng rng = gr_rng_new(14);
    struct client *c = &client[0];
    make_client(&w, c, &rng, 20);
    c->seed = 3; /* draws */
    struct gr_request r = request_of(&w, c);
    r.n_probs = 3;
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &c->id), 0);
    run(&w);
    struct gr_batch batch = {.n_tok = c->n_prompt, .token = c->prompt};
    for (int32_t i = 0; i < c->n; i++) {
        cr_assert_eq(gr_decode(s, &batch), 0);
        const float *logits = gr_logits(s, -1);
        double sum = 0;
        int better = 0;
        for (int32_t v = 0; v < w.n_vocab; v++)
            sum += exp((double)logits[v]);
        cr_expect_float_eq(c->logprob[i], (double)logits[c->token[i]] - log(sum), 1e-5);
        for (int32_t v = 0; v < w.n_vocab; v++)
            better += logits[v] > logits[c->top[i][2].id];
        cr_expect_eq(better, 2);
        for (int k = 0; k < 3; k++)
            cr_expect_float_eq(c->top[i][k].logprob, (double)logits[c->top[i][k].id] - log(sum),
                               1e-5);
        cr_expect(c->top[i][0].logprob >= c->top[i][1].logprob &&
                  c->top[i][1].logprob >= c->top[i][2].logprob);
        batch = (struct gr_batch){.n_tok = 1, .token = &c->token[i]};
    }
    gr_session_close(&s);
    close_world(&w);
}

/* Logits that are not finite end a request, not the scheduler. */
Test(scheduler, a_broken_model_is_said)
{
    struct world w = open_world(tiny_model(true), 2, 1024);
    struct gr_rng rng = gr_rng_new(15);
    for (int i = 0; i < 3; i++) {
        make_client(&w, &client[i], &rng, 8);
        submit(&w, &client[i]);
    }
    run(&w);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(client[i].result.end, GR_FINISH_FAILED);
        cr_expect_eq(client[i].result.status, GR_E_CHECK);
    }
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_active, 0);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_failed, 3);
    close_world(&w);
}

/* ---- threads ---- */

static void *run_thread(void *w)
{
    gr_scheduler_run(((struct world *)w)->scheduler);
    return NULL;
}

struct submitter {
    struct world *w;
    int first;
    int n_done; /* calls, in the scheduler's thread */
};

static void on_call(const struct gr_conversation_result *r, void *user)
{
    (void)r;
    ++*(int *)user;
}

static void *submit_thread(void *user)
{
    struct submitter *s = user;
    for (int i = s->first; i < s->first + 8; i++) {
        submit(s->w, &client[i]);
        if (i % 3 == 2)
            gr_scheduler_cancel(s->w->scheduler, client[i].id);
        struct gr_request_view view[MOST_REQUEST];
        cr_expect_leq(gr_scheduler_list(s->w->scheduler, view, MOST_REQUEST), MOST_REQUEST);
        cr_expect_eq(gr_scheduler_status(s->w->scheduler), 0);
        struct gr_conversation_call call = {
            .op = GR_CONVERSATION_OPEN, .done = on_call, .user = &s->n_done};
        cr_expect_eq(gr_scheduler_call(s->w->scheduler, &call), 0);
    }
    return NULL;
}

Test(scheduler, requests_come_from_threads)
{
    struct world w = open_world(tiny_model(false), 4, 2048);
    struct submitter s[4];
    pthread_t t[4], runner;
    struct gr_rng rng = gr_rng_new(16);
    for (int i = 0; i < 32; i++)
        make_client(&w, &client[i], &rng, 20);
    cr_assert_eq(pthread_create(&runner, NULL, run_thread, &w), 0);
    for (int i = 0; i < 4; i++) {
        s[i] = (struct submitter){&w, 8 * i, 0};
        cr_assert_eq(pthread_create(&t[i], NULL, submit_thread, &s[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    gr_scheduler_stop(w.scheduler, false);
    pthread_join(runner, NULL);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(s[i].n_done, 8);
    for (int i = 0; i < 32; i++) {
        cr_expect_eq(client[i].n_result, 1);
        if (client[i].result.end != GR_FINISH_CANCELLED)
            check_alone(&w, &client[i], "from a thread");
    }
    close_world(&w);
}

/* A request whose time is over fails before it has begun, and its answer ends once it has. */
Test(scheduler, requests_end_in_time)
{
    struct world w = open_world(tiny_model(false), 2, 512);
    struct gr_rng rng = gr_rng_new(50);
    static const int64_t most[] = {0, 1, 200000000, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        make_client(&w, &client[i], &rng, 20);
        client[i].seed = ENDLESS, client[i].n_predict = 100;
        struct gr_request r = request_of(&w, &client[i]);
        r.most_ns = most[i];
        r.priority = i == 2;
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[i].id), 0);
    }
    gr_scheduler_step(w.scheduler);
    cr_expect_eq(client[1].result.end, GR_FINISH_FAILED);
    cr_expect_eq(client[1].result.status, GR_E_CANCELLED);
    while (client[2].n < 3)
        gr_scheduler_step(w.scheduler);
    usleep(200000);
    gr_scheduler_step(w.scheduler);
    cr_expect_eq(client[2].n_result, 1);
    cr_expect_eq(client[2].result.end, GR_FINISH_LENGTH);
    cr_expect_lt(client[2].n, 100);
    cr_expect_eq(client[2].result.n_generated, client[2].n);
    run(&w);
    for (int i = 0; i < 4; i += 3)
        check_alone(&w, &client[i], "beside those that ended");
    cr_expect_eq(client[1].n_result + client[2].n_result, 2);
    close_world(&w);
}

/* A prompt whose time is over is gone on with when it comes again. */
Test(scheduler, a_late_prompt_is_kept)
{
    struct world w = open_world(tiny_model(false), 2, 512);
    struct gr_rng rng = gr_rng_new(51);
    make_client(&w, &client[0], &rng, 300);
    client[1] = client[0];
    struct gr_request r = request_of(&w, &client[0]);
    r.most_ns = 100000000;
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[0].id), 0);
    gr_scheduler_step(w.scheduler);
    usleep(100000);
    gr_scheduler_step(w.scheduler);
    cr_expect_eq(client[0].result.status, GR_E_CANCELLED);
    submit(&w, &client[1]);
    run(&w);
    cr_expect_eq(client[1].result.n_cached, 48);
    check_alone(&w, &client[1], "gone on with");
    close_world(&w);
}
