/* Several steps in flight: requests get what they get alone, whatever ends between the beginning of
 * a step and its end. With one rank a step is computed when it begins, but its results are not used
 * before it ends; with several it goes on in the others meanwhile. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(flight, .timeout = 120);

static struct client client[MOST_REQUEST];

/* Submits n requests of any length, half of which begin as another one does, between steps. Some
 * are cancelled in the midst of it. */
static void random_requests(struct world *w, int n, int32_t most, bool *cancelled, uint64_t seed)
{
    struct gr_rng rng = gr_rng_new(seed);
    memset(cancelled, 0, (size_t)n * sizeof *cancelled);
    for (int i = 0; i < n; i++) {
        make_client_like(w, client, i, &rng, most);
        submit(w, &client[i]);
        for (int k = (int)gr_rng_below(&rng, 6); k > 0; k--)
            gr_scheduler_step(w->scheduler);
        uint32_t which = gr_rng_below(&rng, 5 * (uint32_t)(i + 1));
        if (which <= (uint32_t)i) {
            gr_scheduler_cancel(w->scheduler, client[which].id);
            cancelled[which] = true;
        }
    }
    run(w);
}

static void check_all(const struct world *w, int n, const bool *cancelled, const char *what)
{
    for (int i = 0; i < n; i++) {
        if (cancelled[i])
            cr_expect_eq(client[i].n_result, 1, "%s, request %d", what, i);
        else
            check_alone(w, &client[i], what);
    }
    cr_expect_eq(gr_scheduler_stats(w->scheduler).n_failed, 0, "%s", what);
}

static const char *const archs[] = {"llama", "gemma3", "mamba"};

Test(flight, requests_are_what_they_are_alone)
{
    static const int32_t flights[] = {2, 5};
    bool cancelled[24];
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch(archs[a], path);
        for (int i = 0; i < 4; i++) {
            struct world w = load_world(path, 6, i / 2 ? 512 : 2048);
            char what[64];
            w.p.n_flight = flights[i % 2];
            snprintf(what, sizeof what, "%s, %s, %d steps", archs[a],
                     i / 2 ? "few cells" : "many cells", w.p.n_flight);
            start_world(&w);
            random_requests(&w, 24, i / 2 ? 300 : 150, cancelled, 1 + a);
            check_all(&w, 24, cancelled, what);
            close_world(&w);
        }
    }
}

Test(flight, stages_of_ranks)
{
    bool cancelled[24];
    const char *path = tiny_path("model.gguf");
    tiny_write_arch("llama", path);
    for (int tight = 0; tight < 2; tight++) {
        struct world w = load_ranks(path, 6, tight ? 512 : 2048, 2);
        w.p.n_flight = 2;
        start_world(&w);
        random_requests(&w, 24, tight ? 300 : 150, cancelled, 9);
        check_all(&w, 24, cancelled, tight ? "two ranks, few cells" : "two ranks");
        close_world(&w);
    }
}

/* Texts are divided among the steps, and pieces of a prompt follow each other without an end
 * between them. */
Test(flight, groups_form)
{
    struct world w = load_world(tiny_model(false), 8, 4096);
    struct gr_rng rng = gr_rng_new(3);
    w.p.n_flight = 4;
    start_world(&w);
    for (int i = 0; i < 8; i++) {
        make_client(&w, &client[i], &rng, 1);
        client[i].n_predict = 40, client[i].seed = ENDLESS;
        submit(&w, &client[i]);
    }
    run(&w);
    struct gr_scheduler_stats stats = gr_scheduler_stats(w.scheduler);
    for (int i = 0; i < 8; i++)
        check_alone(&w, &client[i], "a group");
    cr_expect_eq(stats.n_step, 4 * 40, "%lld steps", (long long)stats.n_step);
    cr_expect_eq(stats.last.n_answer, 2);

    planted = (struct planted){0};
    make_client(&w, &client[0], &rng, 40 + 3 * 48); /* four steps of at most 48 tokens */
    submit(&w, &client[0]);
    for (int i = 0; i < 4; i++)
        gr_scheduler_step(w.scheduler);
    cr_expect_eq(planted.n_call, 4);
    cr_expect_eq(client[0].n, 0); /* the first of them has ended */
    run(&w);
    check_alone(&w, &client[0], "a long prompt");
    close_world(&w);
}

/* A step that fails at its end takes its own texts with it; what they had is not used again. */
Test(flight, a_step_fails_at_its_end)
{
    struct world w = load_world(tiny_model(false), 8, 4096);
    struct gr_rng rng = gr_rng_new(4);
    int n_failed = 0;
    w.p.n_flight = 4;
    start_world(&w);
    for (int i = 0; i < 8; i++) {
        make_client(&w, &client[i], &rng, 30);
        client[i].n_predict = 60, client[i].seed = ENDLESS;
        submit(&w, &client[i]);
    }
    while (client[7].n < 20)
        gr_scheduler_step(w.scheduler);
    planted = (struct planted){.status = GR_E_NOMEM_DEV, .left = 1, .at_end = true};
    run(&w);
    planted = (struct planted){0};
    for (int i = 0; i < 8; i++) {
        n_failed += client[i].result.end == GR_FINISH_FAILED;
        if (client[i].result.end == GR_FINISH_FAILED)
            cr_expect_eq(client[i].result.status, GR_E_NOMEM_DEV);
        else
            check_alone(&w, &client[i], "beside the step that failed");
    }
    cr_expect_eq(n_failed, 2);
    for (int i = 0; i < 8; i++) {
        struct client again = {.n_prompt = 30, .n_predict = 20, .seed = ENDLESS};
        memcpy(again.prompt, client[i].prompt, sizeof again.prompt);
        bool failed = client[i].result.end == GR_FINISH_FAILED;
        submit(&w, &again);
        run(&w);
        check_alone(&w, &again, "again");
        cr_expect_eq(again.result.n_cached, failed ? 0 : 29);
    }
    close_world(&w);
}

/* The device is lost with steps in flight: all requests end, and nothing is waited for. */
Test(flight, a_device_is_lost)
{
    for (int at_end = 0; at_end < 2; at_end++) {
        struct world w = load_world(tiny_model(false), 8, 4096);
        struct gr_rng rng = gr_rng_new(5);
        w.p.n_flight = 3;
        start_world(&w);
        for (int i = 0; i < 12; i++) {
            make_client(&w, &client[i], &rng, 30);
            submit(&w, &client[i]);
        }
        for (int i = 0; i < 5; i++)
            gr_scheduler_step(w.scheduler);
        planted = (struct planted){.status = GR_E_DEVICE, .left = 1000, .at_end = at_end};
        run(&w);
        for (int i = 0; i < 12; i++) {
            cr_expect_eq(client[i].n_result, 1);
            cr_expect_eq(client[i].result.end, GR_FINISH_FAILED);
        }
        cr_expect_eq(gr_scheduler_status(w.scheduler), GR_E_DEVICE);
        planted = (struct planted){0};
        close_world(&w);
    }
}
