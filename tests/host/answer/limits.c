/* Latency, limits, time, memory, and failing allocations and receivers. */
#include <jansson.h>
#include <time.h>

#include "host/answer/read.h"

static int count(const struct gr_answer_delta *d, void *user)
{
    *(size_t *)user += d->part == GR_ANSWER_TEXT ? d->n : 0;
    return 0;
}

static struct gr_answer *open_answer(const char *format, gr_answer_fn *fn, void *user)
{
    struct gr_answer *a;
    struct gr_answer_params params = {.format = format, .fn = fn, .user = user};
    cr_assert_eq(gr_answer_new(&a, &params), 0, "%s", gr_error());
    return a;
}

Test(limits, text_is_not_held_back)
{
    static const char text[] = "a<b <tool_x>\xc3\xa9 <think>[TOOL_CALLS]{\"name\"";
    /* bytes that are certain after each byte: all but what can begin <tool_call>, and its blanks */
    static const size_t certain[] = {1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 11, 12, 13, 14};
    size_t seen = 0;
    struct gr_answer *a = open_answer("hermes", count, &seen);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        cr_assert_eq(gr_answer_push(a, text + i, 1), 0);
        if (i < sizeof certain / sizeof *certain)
            cr_expect_eq(seen, certain[i], "byte %zu: %zu", i, seen);
    }
    cr_expect_eq(seen, sizeof text - 1);
    gr_answer_free(&a);
}

Test(limits, arguments_come_as_they_are_written)
{
    static const char text[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"xyz";
    struct reading r = {0};
    struct gr_answer *a = open_answer("hermes", take, &r);
    cr_assert_eq(gr_answer_push(a, text, sizeof text - 1), 0);
    cr_expect_eq(r.arguments[0].n, strlen("{\"a\": \"xyz"));
    gr_answer_free(&a);
    reading_fini(&r);
}

Test(limits, depth_and_names)
{
    for (int deep = 120; deep < 140; deep++) {
        char text[1024] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ";
        struct reading r;
        for (int i = 0; i < deep; i++)
            strcat(text, "[");
        for (int i = 0; i < deep; i++)
            strcat(text, "]");
        strcat(text, "}}</tool_call>");
        read_in_all_ways(&r, "hermes", NULL, NULL, text, strlen(text));
        cr_expect_eq(r.n_done, deep + 2 <= GR_ANSWER_MAX_DEPTH, "%d", deep);
        cr_expect_eq(r.text.n, r.n_done ? 0 : strlen(text));
        reading_fini(&r);
    }
    for (int n = GR_ANSWER_MAX_NAME - 1; n < GR_ANSWER_MAX_NAME + 2; n++) {
        char text[1024], name[512];
        struct reading r;
        memset(name, 'n', sizeof name);
        snprintf(text, sizeof text, "[TOOL_CALLS]%.*s[ARGS]{}", n, name);
        read_in_all_ways(&r, "mistral", NULL, NULL, text, strlen(text));
        cr_expect_eq(r.n_done, n <= GR_ANSWER_MAX_NAME);
        reading_fini(&r);
    }
}

static double seconds_for(const char *format, const char *unit, size_t n_bytes, size_t *peak)
{
    size_t seen = 0, n = strlen(unit), before = gr_alloc_held(peak);
    struct timespec t[2];
    char *text = malloc(n_bytes);
    struct gr_answer *a = open_answer(format, count, &seen);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = unit[i % n];
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t[0]);
    for (size_t i = 0; i < n_bytes; i += 16)
        cr_assert_eq(gr_answer_push(a, text + i, n_bytes - i < 16 ? n_bytes - i : 16), 0);
    cr_assert_eq(gr_answer_end(a), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t[1]);
    gr_answer_free(&a);
    cr_assert_eq(gr_alloc_held(NULL), before, "all memory is given back");
    gr_alloc_held(peak);
    *peak -= before;
    free(text);
    return (double)(t[1].tv_sec - t[0].tv_sec) + (double)(t[1].tv_nsec - t[0].tv_nsec) * 1e-9;
}

static void append(struct gr_vec *v, const char *fmt, int i)
{
    char part[128];
    snprintf(part, sizeof part, fmt, i);
    add_text(v, part);
}

/* A reader that looks through the tools for each parameter takes a minute. */
Test(limits, many_tools_and_parameters, .timeout = 60)
{
    enum { N = 30000 };
    struct gr_vec tools = {0}, text = {0};
    struct reading r;
    clock_t begin = clock();
    for (int i = 0; i < N; i++)
        append(&tools, i ? ", {\"name\": \"f%d\"}" : "[{\"name\": \"f%d\"}", i);
    append(&tools, ", {\"name\": \"g\", \"parameters\": {\"properties\": {\"k%d\": ", N - 1);
    add_text(&tools, "{\"type\": \"string\"}}}}]");
    add_text(&text, "<tool_call><function=g>");
    for (int i = 0; i < N; i++)
        append(&text, "<parameter=k%d>\n1\n</parameter>", i);
    add_text(&text, "</function></tool_call>");
    add(&tools, "", 1);
    read_answer(&r, "qwen3-coder", NULL, tools.data, text.data, text.n, text.n, NULL);
    cr_assert_eq(r.n_done, 1);
    static const char end[] = "\"k29998\": 1, \"k29999\": \"1\"}";
    cr_expect(r.arguments[0].n > sizeof end &&
                  !memcmp((char *)r.arguments[0].data + r.arguments[0].n - (sizeof end - 1), end,
                          sizeof end - 1),
              "the last parameter has its type");
    cr_expect(clock() - begin < 10 * CLOCKS_PER_SEC, "%.1f s",
              (double)(clock() - begin) / CLOCKS_PER_SEC);
    reading_fini(&r);
    gr_vec_fini(&tools);
    gr_vec_fini(&text);
}

/* A quadratic reader takes minutes for these. */
Test(limits, time_and_memory_are_linear, .timeout = 60)
{
    static const char *const units[] = {" ",
                                        "<",
                                        "x ",
                                        "<tool_call>",
                                        "<tool_call>{\"name\": \"",
                                        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [",
                                        "<tool_call>{\"name\":\"f\"}</tool_call>",
                                        "</think> <think>",
                                        " \n<tool_cal"};
    static const char *const formats[] = {"hermes", "harmony", "qwen3-coder", "json", "mistral"};
    double all = 0;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            size_t peak, n = 1 << 18;
            all += seconds_for(formats[f], units[i], n, &peak);
            cr_expect(peak < 8 * n + 65536, "%s, %s: %zu bytes", formats[f], units[i], peak);
        }
    }
    cr_expect(all < 20, "%.1f s", all);
}

Test(limits, wrong_parameters_are_refused)
{
    struct gr_answer *a = NULL;
    struct gr_answer_params params = {.format = "no\nsuch", .fn = count};
    cr_expect_eq(gr_answer_new(&a, &params), GR_E_INVALID);
    cr_expect(!a && strstr(gr_error(), "no\\x0asuch") && !strchr(gr_error(), '\n'), "%s",
              gr_error());
    params =
        (struct gr_answer_params){.format = "hermes", .fn = count, .tools = "{}", .n_tools = 2};
    cr_expect_eq(gr_answer_new(&a, &params), GR_E_INVALID);
    params.tools = "[", params.n_tools = 1;
    cr_expect_eq(gr_answer_new(&a, &params), GR_E_INVALID);
    cr_expect(!a && strstr(gr_error(), "line 1"), "%s", gr_error());
    gr_answer_free(&a);
    gr_answer_free(NULL);
}

static int refuse(const struct gr_answer_delta *d, void *user)
{
    ++*(size_t *)user;
    return d->part == GR_ANSWER_CALL ? GR_E_CANCELLED : 0;
}

static const char two_calls[] =
    "<think>a</think>b <tool_call>{\"arguments\": {\"x\": \"y\"}, \"name\": \"f\"}</tool_call>"
    "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call> c";

Test(limits, a_receiver_can_end_the_reading)
{
    size_t calls = 0;
    struct gr_answer *a = open_answer("hermes", refuse, &calls);
    cr_expect_eq(gr_answer_push(a, two_calls, sizeof two_calls - 1), GR_E_CANCELLED);
    size_t before = calls;
    cr_expect_eq(gr_answer_push(a, "x", 1), GR_E_CANCELLED);
    cr_expect_eq(gr_answer_end(a), GR_E_CANCELLED);
    cr_expect_eq(calls, before, "nothing comes after it");
    gr_answer_free(&a);
}

static const char some_tools[] =
    "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"string\"}}}}, {}, "
    "{\"name\": \"g\"}]";

Test(limits, every_allocation_may_fail)
{
    static const char qwen[] =
        "<tool_call><function=f><parameter=a>\nx\n</parameter></function></tool_call>";
    static const char gemma[] = "<|tool_call>call:f{a:<|\"|>x<|\"|>,b:1}<tool_call|>";
    static const struct {
        const char *format, *answer;
    } cases[] = {{"hermes", two_calls}, {"qwen3-coder", qwen}, {"gemma4", gemma}};
    for (int i = 0; i < 3; i++) {
        bool done = false;
        for (uint64_t k = 1; !done && k < 1000; k++) {
            size_t seen = 0, held = gr_alloc_held(NULL);
            struct gr_answer *a = NULL;
            struct gr_answer_params params = {.format = cases[i].format,
                                              .tools = some_tools,
                                              .n_tools = sizeof some_tools - 1,
                                              .fn = count,
                                              .user = &seen};
            gr_alloc_fail_at(k, 0);
            int rc = gr_answer_new(&a, &params);
            if (!rc)
                rc = gr_answer_push(a, cases[i].answer, strlen(cases[i].answer));
            if (!rc)
                rc = gr_answer_end(a);
            done = gr_alloc_fail_at(0, 0) < k;
            cr_expect_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %d", (int)k);
            gr_answer_free(&a);
            cr_expect_eq(gr_alloc_held(NULL), held);
        }
        cr_expect(done);
    }
}
