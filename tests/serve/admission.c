/* How requests begin, and what becomes of them when cells or devices fail. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(admission, .timeout = 120);

static struct client client[MOST_REQUEST];

static void steps(const struct world *w, int n)
{
    for (int i = 0; i < n; i++)
        gr_scheduler_step(w->scheduler);
}

/* Submits with another priority. */
static void submit_before(const struct world *w, struct client *c)
{
    struct gr_request r = request_of(w, c);
    r.priority = 1;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

/* A request that has no room yet does not cost others what they left behind. */
Test(admission, a_request_that_waits_evicts_nothing)
{
    struct world w = open_world(tiny_model(false), 4, 512);
    struct gr_rng rng = gr_rng_new(20);
    make_client(&w, &client[0], &rng, 100);
    submit(&w, &client[0]);
    run(&w);
    make_client(&w, &client[1], &rng, 60);
    client[1].n_predict = 200, client[1].seed = ENDLESS;
    make_client(&w, &client[2], &rng, 370);
    submit(&w, &client[1]);
    steps(&w, 4);
    submit(&w, &client[2]);
    steps(&w, 8);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_waiting, 1);
    client[3] = client[0];
    client[3].n = client[3].n_result = 0, client[3].text[0] = 0;
    submit_before(&w, &client[3]);
    run(&w);
    cr_expect_eq(client[3].result.n_cached, 99);
    for (int i = 0; i < 4; i++)
        check_alone(&w, &client[i], "few cells");
    close_world(&w);
}

/* Cells of a common beginning count once. */
Test(admission, shared_cells_count_once)
{
    struct world w = open_world(tiny_model(false), 8, 1280);
    struct gr_rng rng = gr_rng_new(21);
    int32_t most = 0;
    for (int i = 0; i < 8; i++) {
        make_client(&w, &client[i], &rng, 300);
        memcpy(client[i].prompt, client[0].prompt, 280 * sizeof *client[0].prompt);
        client[i].n_predict = 30, client[i].seed = ENDLESS;
        submit(&w, &client[i]);
    }
    while (gr_scheduler_step(w.scheduler)) {
        int32_t n = gr_scheduler_stats(w.scheduler).n_active;
        most = n > most ? n : most;
    }
    cr_expect_eq(most, 8);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_preempted, 0);
    close_world(&w);
}

/* Processor time of a step beside decoding, with so many requests that cannot begin yet and all
 * begin alike. */
static double step_ns(int n_waiting)
{
    enum { STEPS = 50 };
    struct world w = load_world(tiny_model(false), 16, 1536);
    struct gr_rng rng = gr_rng_new(22);
    static struct client ahead[16], behind;
    w.p.n_queue = n_waiting + 16;
    start_world(&w);
    for (int i = 0; i < 16; i++) {
        make_client(&w, &ahead[i], &rng, 60);
        memcpy(ahead[i].prompt, ahead[0].prompt, 40 * sizeof *ahead[0].prompt);
        ahead[i].n_predict = 340, ahead[i].seed = ENDLESS;
        submit_before(&w, &ahead[i]);
    }
    steps(&w, 30);
    make_client(&w, &behind, &rng, 300);
    memcpy(behind.prompt, ahead[0].prompt, 40 * sizeof *ahead[0].prompt);
    for (int i = 0; i < n_waiting; i++) {
        struct gr_request r = request_of(&w, &behind);
        r.owner = (uint64_t)i % 4, r.piece = NULL, r.result = NULL;
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &behind.id), 0);
    }
    gr_scheduler_cancel(w.scheduler, ahead[3].id); /* one could begin if there were cells */
    steps(&w, 1);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_active, 15);
    int64_t start = thread_ns() - planted.ns;
    steps(&w, STEPS);
    double ns = (double)(thread_ns() - planted.ns - start) / STEPS;
    close_world(&w);
    return ns;
}

Test(admission, requests_that_wait_cost_little)
{
    double few = step_ns(10), many = step_ns(10000);
    fprintf(stderr, "%.0f us a step with 10 requests that wait, %.0f with 10,000\n", few / 1e3,
            many / 1e3);
    cr_expect_lt(many, few + 1e5);
}

/* Adjacent cells are wanted, and those that are free lie between those of others: a text that finds
 * none does not keep the others from their steps. */
Test(admission, no_cells_though_some_are_free)
{
    struct world w = load_world(tiny_model(false), 3, 512);
    struct gr_rng rng = gr_rng_new(23);
    int n = 0;
    w.sp.kv_contiguous = true;
    start_world(&w);
    for (int i = 0; i < 3; i++) { /* grow in turn, and one of them ends before the others */
        make_client(&w, &client[i], &rng, 8);
        client[i].n_predict = i ? 220 : 150, client[i].seed = ENDLESS;
        submit(&w, &client[i]);
    }
    make_client(&w, &client[3], &rng, 100);
    submit(&w, &client[3]);
    while (gr_scheduler_step(w.scheduler) && n < 2000)
        n++;
    cr_assert_lt(n, 2000);
    for (int i = 0; i < 4; i++)
        check_alone(&w, &client[i], "adjacent cells");
    cr_expect_gt(gr_scheduler_stats(w.scheduler).n_preempted, 0);
    close_world(&w);
}

/* A lost device ends all requests, and the scheduler; another failure those that it met. */
Test(admission, a_lost_device)
{
    static const int status[] = {GR_E_DEVICE, GR_E_PEER_LOST, GR_E_NOMEM_HOST};
    for (int k = 0; k < 3; k++) {
        struct world w = open_world(tiny_model(false), 2, 1024);
        struct gr_rng rng = gr_rng_new(24);
        for (int i = 0; i < 5; i++) {
            make_client(&w, &client[i], &rng, 20);
            submit(&w, &client[i]);
            steps(&w, i == 1 ? 4 : 0);
        }
        cr_expect_eq(gr_scheduler_status(w.scheduler), 0);
        planted.status = status[k], planted.left = 1;
        if (k == 2)
            run(&w);
        else
            gr_scheduler_run(w.scheduler); /* returns, though nobody stopped it */
        for (int i = 0; i < 5; i++) {
            bool failed = k < 2 || i < 2;
            cr_expect_eq(client[i].n_result, 1);
            cr_expect_eq(client[i].result.end == GR_FINISH_FAILED, failed, "%d, %d", k, i);
            cr_expect_eq(client[i].result.status, failed ? status[k] : 0);
        }
        cr_expect_eq(gr_scheduler_stats(w.scheduler).n_failed, k < 2 ? 5 : 2);
        cr_expect_eq(gr_scheduler_status(w.scheduler), k < 2 ? status[k] : 0);
        struct gr_request r = request_of(&w, &client[0]);
        uint64_t id;
        int rc = gr_scheduler_submit(w.scheduler, &r, &id);
        cr_expect_eq(rc, k < 2 ? status[k] : 0);
        if (rc)
            gr_sampler_free(&r.sampler);
        else
            gr_scheduler_cancel(w.scheduler, id);
        client[0].n_result = 0;
        close_world(&w);
    }
}

/* ---- what is there ---- */

static const struct gr_request_view *view_of(struct gr_scheduler *s, uint64_t id)
{
    static struct gr_request_view view[MOST_REQUEST];
    int32_t n = gr_scheduler_list(s, view, MOST_REQUEST);
    for (int32_t i = 0; i < n; i++) {
        if (view[i].id == id)
            return &view[i];
    }
    return NULL;
}

Test(admission, requests_are_listed)
{
    struct world w = open_world(tiny_model(false), 1, 1024);
    struct gr_rng rng = gr_rng_new(25);
    struct gr_request_view one;
    make_client(&w, &client[0], &rng, 100);
    client[0].n_predict = 5, client[0].seed = ENDLESS;
    client[1] = client[0];
    for (int i = 0; i < 2; i++) {
        struct gr_request r = request_of(&w, &client[i]);
        r.owner = 7;
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[i].id), 0);
    }
    cr_expect_eq(gr_scheduler_list(w.scheduler, &one, 1), 2);
    cr_expect_eq(view_of(w.scheduler, client[0].id)->state, GR_REQUEST_WAITING);
    steps(&w, 2); /* of 48 tokens */
    const struct gr_request_view *v = view_of(w.scheduler, client[0].id);
    cr_expect(v->state == GR_REQUEST_PROMPT && v->n_done == 96 && !v->n_generated);
    cr_expect(v->owner == 7 && v->n_prompt == 100 && !v->n_cached);
    v = view_of(w.scheduler, client[1].id);
    cr_expect(v->state == GR_REQUEST_WAITING && !v->n_done && v->n_prompt == 100);
    steps(&w, 2);
    v = view_of(w.scheduler, client[0].id);
    cr_expect(v->state == GR_REQUEST_ANSWER && v->n_done == 100 && v->n_generated == 2);
    steps(&w, 4);
    cr_expect_null(view_of(w.scheduler, client[0].id));
    v = view_of(w.scheduler, client[1].id);
    cr_expect(v->state == GR_REQUEST_ANSWER && v->n_cached == 99);
    run(&w);
    cr_expect_eq(gr_scheduler_list(w.scheduler, &one, 1), 0);
    close_world(&w);
}

/* Two requests with 90 common tokens of 100, then one sequence that is left idle. */
Test(admission, cells_are_shown)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(26);
    struct gr_sequence_view view[8];
    make_client(&w, &client[0], &rng, 100);
    client[0].n_predict = 40, client[0].seed = ENDLESS;
    client[1] = client[0];
    client[1].prompt[90] = (client[0].prompt[90] + 1) % w.n_vocab;
    submit(&w, &client[0]);
    cr_expect_eq(gr_scheduler_look(w.scheduler, view, 8), 0);
    steps(&w, 3);
    submit(&w, &client[1]);
    steps(&w, 2);
    cr_expect_eq(gr_scheduler_look(w.scheduler, view, 8), w.p.n_seq);
    cr_expect_eq(view[0].cells.n_shared, 0);
    steps(&w, 1);
    cr_expect_eq(gr_scheduler_look(w.scheduler, view, 1), w.p.n_seq);
    steps(&w, 1);
    cr_expect_eq(gr_scheduler_look(w.scheduler, view, 8), w.p.n_seq);
    for (int i = 0; i < 2; i++) {
        cr_expect(view[i].busy);
        cr_expect_eq(view[i].cells.n_shared, 90);
        cr_expect_geq(view[i].cells.n_cell, 100);
    }
    struct gr_scheduler_stats stats = gr_scheduler_stats(w.scheduler);
    cr_expect_eq(view[0].cells.n_cell + view[1].cells.n_cell - 90, stats.n_used);
    cr_expect(stats.last.n_answer == 2 && !stats.last.n_prompt && stats.last.ns > 0);
    run(&w);
    gr_scheduler_look(w.scheduler, view, 8);
    steps(&w, 1);
    gr_scheduler_look(w.scheduler, view, 8);
    cr_expect(!view[0].busy && !view[1].busy && view[0].cells.n_cell == 139);
    close_world(&w);
}

/* ---- probabilities of a prompt ---- */

static void submit_told(const struct world *w, struct client *c)
{
    struct gr_request r = request_of(w, c);
    r.prompt_piece = on_prompt_piece, r.n_probs = 1;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

/* Probabilities of the prompt against those of a session that takes it token by token. */
static void check_told(const struct world *w, const struct client *c)
{
    struct gr_session *s = open_session(w, 512, 1);
    cr_expect_eq(c->n_told, c->n_prompt - 1);
    for (int32_t i = 0; i + 1 < c->n_prompt; i++) {
        struct gr_batch batch = {.n_tok = 1, .token = &c->prompt[i]};
        cr_assert_eq(gr_decode(s, &batch), 0);
        const float *logits = gr_logits(s, -1);
        int32_t best = 0;
        double sum = 0;
        for (int32_t v = 0; v < w->n_vocab; v++)
            sum += exp((double)logits[v]), best = logits[v] > logits[best] ? v : best;
        cr_expect_float_eq(c->prompt_logprob[i], (double)logits[c->prompt[i + 1]] - log(sum), 1e-5);
        cr_expect_eq(c->prompt_top[i].id, best);
        cr_expect_float_eq(c->prompt_top[i].logprob, (double)logits[best] - log(sum), 1e-5);
    }
    gr_session_close(&s);
}

/* Beside others, where the prompt is in the cache, without an answer, with one token, and where the
 * request is stopped half-way. */
Test(admission, probabilities_of_a_prompt)
{
    for (int tight = 0; tight < 2; tight++) {
        struct world w = open_world(tiny_model(false), 4, tight ? 512 : 2048);
        struct gr_rng rng = gr_rng_new(26);
        for (int i = 0; i < 6; i++) {
            make_client(&w, &client[i], &rng, i == 4 ? 1 : 150);
            client[i].n_predict = i == 1 ? 0 : i == 0 ? 100 : 12;
        }
        memcpy(client[2].prompt, client[0].prompt, 140 * sizeof *client[0].prompt);
        submit(&w, &client[0]);
        steps(&w, 6);
        for (int i = 1; i < 5; i++)
            submit_told(&w, &client[i]);
        submit(&w, &client[5]);
        run(&w);
        for (int i = 1; i < 5; i++)
            check_told(&w, &client[i]);
        for (int i = 0; i < 6; i++) {
            if (i != 1)
                check_alone(&w, &client[i], "beside probabilities");
        }
        cr_expect_eq(client[2].result.n_cached, 0);
        cr_expect(client[1].n == 0 && client[1].result.end == GR_FINISH_LENGTH);
        close_world(&w);
    }
}
