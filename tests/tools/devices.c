/* Commands and flags of GPUs, on a machine that may have none: what is said, and in which shape. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tiny.h"

TestSuite(devices, .timeout = 120);

#define TINY tiny_model(false), "-t", "1"

static json_t *parsed(const char *text)
{
    json_error_t e;
    json_t *o = json_loads(text, 0, &e);
    cr_assert_not_null(o, "%s: %s", e.text, text);
    return o;
}

Test(devices, listed_or_said_why_there_is_none)
{
    struct outcome o = GPURUN(NULL, "devices"), same = GPURUN(NULL, "--list-devices");
    cr_expect_eq(o.exit_code, 0);
    cr_expect_eq(same.exit_code, 0);
    cr_expect_gt(o.n_out, 10);
    struct outcome j = GPURUN(NULL, "devices", "--json");
    json_t *all = parsed(j.out), *list = json_object_get(all, "devices");
    cr_assert(json_is_array(list));
    cr_expect_eq(json_array_size(list) == 0, json_is_string(json_object_get(all, "why_none")));
    cr_expect_eq(json_array_size(list) == 0, strstr(o.out, "no GPU: ") != NULL);
    json_t *cuda = json_object_get(all, "cuda"), *needed = json_object_get(cuda, "needed");
    cr_assert(json_is_string(needed) && json_object_get(cuda, "driver") &&
              json_object_get(cuda, "compiler") && json_object_get(cuda, "needed_driver"));
    const char *line = strstr(o.out, "CUDA driver: ");
    cr_expect(line && strstr(line, json_string_value(needed)), "%s", o.out);
    const char *level = json_string_value(json_object_get(all, "cpu_level"));
    cr_assert_not_null(level);
    cr_expect(strstr(o.out, "CPU: instructions ref") && strstr(o.out, level), "%s", o.out);
    const char *net = json_string_value(json_object_get(all, "nccl_what"));
    cr_assert_not_null(net);
    cr_expect_not_null(strstr(o.out, net), "%s", o.out);
    cr_expect_eq(json_is_true(json_object_get(all, "nccl")),
                 strstr(o.out, "GPUs of several processes: by NCCL ") != NULL, "%s", o.out);
    const char *matmul = json_string_value(json_object_get(all, "cublaslt_what"));
    cr_assert_not_null(matmul);
    cr_expect_not_null(strstr(o.out, matmul), "%s", o.out);
    cr_expect_eq(json_is_true(json_object_get(all, "cublaslt")),
                 strstr(o.out, "--matmul cublas: by cuBLASLt ") != NULL, "%s", o.out);
    json_decref(all);
}

/* The plan loads nothing, and its command runs. */
Test(devices, fit_says_what_is_taken_where)
{
    struct outcome o = GPURUN(NULL, "fit", TINY, "-ngl", "0", "-c", "512");
    const char *command = strstr(o.out, "gpurun run -m ");
    char model[512], k[8], v[8];
    int ngl, c, ub;
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_assert(command && strstr(o.out, "CPU"), "%s", o.out);
    cr_assert_eq(sscanf(command, "gpurun run -m %511s -ngl %d -c %d -ub %d -ctk %7s -ctv %7s",
                        model, &ngl, &c, &ub, k, v),
                 6, "%s", command);
    cr_expect(ngl == 0 && c == 512 && !strcmp(k, "f16"));
    struct outcome j = GPURUN(NULL, "fit", TINY, "-dev", "none", "--json", "-ctk", "f32");
    json_t *fit = parsed(j.out), *cpu = json_array_get(json_object_get(fit, "devices"), 0);
    cr_expect_eq(json_integer_value(json_object_get(fit, "gpu_layers")), 0);
    cr_expect_eq(json_integer_value(json_object_get(cpu, "layers")),
                 json_integer_value(json_object_get(fit, "layers")));
    cr_expect_gt(json_integer_value(json_object_get(cpu, "weights")), 30000);
    cr_expect_gt(json_integer_value(json_object_get(cpu, "cache")), 10000);
    cr_expect_gt(json_integer_value(json_object_get(cpu, "work")), 1000);
    json_decref(fit);
}

Test(devices, profile_prints_lines_to_paste)
{
    struct outcome o = GPURUN(NULL, "profile", "-m", "a b.gguf", "-p", "it's", "-n", "9");
    cr_expect_eq(o.exit_code, 0, "%s", o.err);
    cr_expect(strstr(o.out, "gpurun run -m 'a b.gguf' -p 'it'\\''s' -n 9 --profile-steps 20:24\n"),
              "%s", o.out);
    cr_expect(strstr(o.out, "\nnsys profile ") && strstr(o.out, "--capture-range=cudaProfilerApi"));
    cr_expect(strstr(o.out, "\nncu ") && strstr(o.out, "--no-cuda-graph\n"));
}

/* An event for every operation of each token, one after the other. */
Test(devices, trace_and_times)
{
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_path("trace.json"));
    struct outcome plain = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--temp", "0");
    struct outcome o =
        GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--temp", "0", "--op-times", "--trace", path);
    json_error_t e;
    json_t *trace = json_load_file(path, 0, &e), *events = json_object_get(trace, "traceEvents");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_str_eq(o.out, plain.out);
    cr_expect(strstr(o.err, "operation") && strstr(o.err, "matmul") && strstr(o.err, "attn"), "%s",
              o.err);
    cr_assert_not_null(trace, "%s", e.text);
    double end = 0;
    int n = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        double ts = json_number_value(json_object_get(event, "ts"));
        cr_expect_geq(ts, end - 0.001);
        end = ts + json_number_value(json_object_get(event, "dur"));
        n++;
    }
    cr_expect(n > 4 * 2 * 8, "%d events", n);
    json_decref(trace);
    o = GPURUN(NULL, TINY, "-p", "a", "-n", "1", "--trace", "/nonexistent/t.json");
    cr_expect_eq(o.exit_code, 6, "%s", o.err);
}

/* A trace of several ranks has the stages of each. */
Test(devices, trace_of_ranks)
{
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_path("trace.json"));
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--ranks", "2", "--trace", path);
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    json_error_t e;
    json_t *trace = json_load_file(path, 0, &e);
    cr_assert_not_null(trace, "%s", e.text);
    const json_t *events = json_object_get(trace, "traceEvents");
    int of_rank[2] = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (json_integer_value(json_object_get(event, "pid")) == 2 && json_object_get(event, "dur"))
            of_rank[json_integer_value(json_object_get(event, "tid")) == 1]++;
    }
    cr_expect(of_rank[0] > 4 && of_rank[1] > 4, "%d and %d spans", of_rank[0], of_rank[1]);
    json_decref(trace);
}

Test(devices, flags_of_gpus_do_no_harm_without_one)
{
    struct outcome plain = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--temp", "0", "-dev", "none");
    struct outcome o =
        GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--temp", "0", "-ngl", "0", "-nkvo",
               "--no-cuda-graph", "--nvtx", "layer", "--profile-steps", "1:3", "-mg", "0");
    cr_expect_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_str_eq(o.out, plain.out);
    o = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--profile-steps", "3:3");
    cr_expect_eq(o.exit_code, 2, "%s", o.err);
    o = GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-dev", "tpu");
    cr_expect_eq(o.exit_code, 2, "%s", o.err);
}

/* ---- several ranks ---- */

/* Each rank has its lines, and together they have every layer once. */
Test(devices, fit_shows_every_rank)
{
    struct outcome o = GPURUN(NULL, "fit", TINY, "-dev", "none", "--ranks", "2", "-ts", "1,2");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_expect(strstr(o.out, "rank device") && strstr(o.out, "\n1    CPU"), "%s", o.out);
    cr_expect(strstr(o.out, " -ts 1,2 --ranks 2 -t 1\n") && strstr(o.out, " -dev none"), "%s",
              o.out);
    struct outcome j =
        GPURUN(NULL, "fit", TINY, "-dev", "none", "--ranks", "2", "-ts", "auto", "--json");
    json_t *fit = parsed(j.out), *list = json_object_get(fit, "devices");
    json_int_t next = 0;
    cr_assert_eq(json_array_size(list), 2, "%s", j.out);
    for (size_t i = 0; i < 2; i++) {
        const json_t *d = json_array_get(list, i);
        cr_expect_eq(json_integer_value(json_object_get(d, "rank")), (json_int_t)i);
        cr_expect_eq(json_integer_value(json_object_get(d, "first_layer")), next);
        next += json_integer_value(json_object_get(d, "layers"));
        cr_expect_gt(json_integer_value(json_object_get(d, "weights")), 1000);
    }
    cr_expect_eq(next, json_integer_value(json_object_get(fit, "layers")));
    json_decref(fit);
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* The same text on several ranks; what is said is no more than six lines. */
Test(devices, run_on_several_ranks)
{
    struct outcome plain = GPURUN(NULL, TINY, "-p", "a", "-n", "6", "--temp", "0", "-dev", "none");
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-n", "6", "--temp", "0", "-dev", "none",
                              "--ranks", "2", "-ts", "1/1");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_str_eq(o.out, plain.out);
    cr_expect(strstr(o.err, "run: layers 0-") && strstr(o.err, " on CPU of rank 0, ") &&
                  strstr(o.err, " on CPU of rank 1, "),
              "%s", o.err);
    cr_expect(strstr(o.err, "\nstages, ms busy/waiting/transfer: rank 0 (CPU) ") &&
                  strstr(o.err, " | rank 1 (CPU) "),
              "%s", o.err);
    cr_expect_leq(count_lines(o.err), 6, "%s", o.err);
    o = GPURUN(NULL, TINY, "-p", "a", "-n", "6", "--temp", "0", "-dev", "none", "--ranks", "5");
    cr_expect_str_eq(o.out, plain.out);
    cr_expect(strstr(o.err, "\nstages: 5 ranks | busiest: rank "), "%s", o.err);
    struct outcome j =
        GPURUN(NULL, TINY, "-p", "a", "-n", "2", "-dev", "none", "--ranks", "3", "--json");
    json_t *run = parsed(j.out), *stages = json_object_get(run, "stages");
    cr_expect_eq(json_array_size(stages), 3, "%s", j.out);
    cr_expect_gt(json_real_value(json_object_get(json_array_get(stages, 0), "busy_s")), 0);
    json_decref(run);
}

Test(devices, flags_that_do_not_go_together)
{
    static const char *const bad[][5] = {{"-sm", "row", NULL, NULL, "what row was for"},
                                         {"-sm", "none", "--ranks", "2", "--split-mode none"},
                                         {"--shards", "2", NULL, NULL, "--split-mode tensor"},
                                         {"-ts", "1,x", NULL, NULL, "-ts is '1,x': a list"},
                                         {"-ts", "0,0", NULL, NULL, "one of them above 0"},
                                         {"-ts", "1,1", NULL, NULL, "at most 1 share"},
                                         {"--ranks", "65", NULL, NULL, "1 to 64"},
                                         {"--ranks", "0", NULL, NULL, "1 to 64"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct outcome o = bad[i][2] ? GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-dev", "none",
                                              bad[i][0], bad[i][1], bad[i][2], bad[i][3])
                                     : GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-dev", "none",
                                              bad[i][0], bad[i][1]);
        cr_expect_eq(o.exit_code, 2, "%s %s: %s", bad[i][0], bad[i][1], o.err);
        cr_expect(strstr(o.err, bad[i][4]), "%s %s: %s", bad[i][0], bad[i][1], o.err);
    }
}
