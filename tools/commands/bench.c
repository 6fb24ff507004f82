/* gpurun bench: times prompts ("pp512"), generated tokens of one text ("tg128") or of several at
 * once ("tg128x16"), and both ("pp512+tg128"), for each requested setting.
 *
 * Where several ranks share the model, batches follow each other through its stages: pieces of a
 * prompt, and as many groups of texts as there are stages. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "stages.h"
#include "tools/cli/flags.h"
#include "tools/cli/model.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"
#include "tools/cli/together.h"
#include "trace.h"

#define MOST_TEXTS 256 /* -np */
#define MOST_STAGES 64
#define FOLLOWED 128 /* tokens of a prompt from which on showing progress costs nothing */

struct bench {
    const struct gr_options *o; /* options of the command line */
    struct gr_options setting;  /* the same with one value of each list */
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_session *session;
    struct gr_trace *trace;
    struct gr_bench_old *old;
    struct gr_fit fit;
    int32_t device;     /* index in `fit` of the device named in rows */
    int32_t *ids, *seq; /* [n_ids] tokens of a prompt (arbitrary), and their sequences */
    int32_t n_ids;
    int64_t *step;       /* [repetitions * longest generation * groups] ns between tokens */
    int64_t *ns, *first; /* [repetitions] */
    int32_t n_step;
    int32_t n_stage;   /* stages with layers */
    int32_t n_pending; /* pending batches */
    int64_t load_ns;
    struct gr_bench_test kept; /* test that the cache was filled for; n_seq 0: none */
    bool printed;
};

/* Times of the tokens of a pass. */
struct clock {
    int64_t start[MOST_TEXTS], *step; /* time of each group's last token; steps so far */
    int32_t n_step, n_end, n_group;   /* batches ended */
};

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int32_t longest(const struct gr_int_list *list)
{
    int32_t most = 0;
    for (int i = 0; i < list->n; i++)
        most = list->v[i] > most ? list->v[i] : most;
    return most;
}

/* ---- tests of a setting ---- */

/* Parses "512,128" (-pg). */
static int read_pair(const char *text, int32_t *n_prompt, int32_t *n_gen)
{
    char rest;
    if (sscanf(text, "%7d,%7d%c", n_prompt, n_gen, &rest) == 2 && *n_prompt > 0 && *n_gen > 0)
        return 0;
    gr_say_error(
        "-pg is '%s': a prompt and a generation are expected, both at least 1: -pg 512,128", text);
    return GR_EXIT_USAGE;
}

/* Calls fn for each test of a setting, until one returns other than 0. */
static int each_test(struct bench *b, int32_t n_depth, int32_t n_other,
                     int (*fn)(struct bench *b, const struct gr_bench_test *t))
{
    const struct gr_options *o = b->o;
    int rc = 0;
    for (int i = 0; i < o->n_prompt.n && !rc; i++) {
        struct gr_bench_test t = {o->n_prompt.v[i], 0, 1, n_depth, n_other};
        rc = t.n_prompt ? fn(b, &t) : 0;
    }
    for (int i = 0; i < o->n_gen.n * o->n_parallel.n && !rc; i++) {
        struct gr_bench_test t = {0, o->n_gen.v[i / o->n_parallel.n],
                                  o->n_parallel.v[i % o->n_parallel.n], n_depth, n_other};
        rc = t.n_gen ? fn(b, &t) : 0;
    }
    for (int i = 0; i < o->prompt_gen.n && !rc; i++) {
        struct gr_bench_test t = {.n_seq = 1, .n_depth = n_depth, .n_other = n_other};
        rc = read_pair(o->prompt_gen.v[i], &t.n_prompt, &t.n_gen);
        rc = rc ? rc : fn(b, &t);
    }
    return rc;
}

/* Cells needed by the longest text, and by all together. */
struct room {
    int64_t each, all;
    int32_t n_prompt, n_gen; /* the longest */
};

static int room_of(const struct gr_options *o, struct room *room)
{
    int32_t depth = longest(&o->depths), n_seq = longest(&o->n_parallel);
    *room = (struct room){.n_prompt = longest(&o->n_prompt), .n_gen = longest(&o->n_gen)};
    int64_t most = (int64_t)n_seq * (depth + room->n_gen);
    int64_t one = depth + (room->n_prompt > room->n_gen ? room->n_prompt : room->n_gen);
    for (int i = 0; i < o->prompt_gen.n; i++) {
        int32_t p, n;
        int rc = read_pair(o->prompt_gen.v[i], &p, &n);
        if (rc)
            return rc;
        room->n_prompt = p > room->n_prompt ? p : room->n_prompt;
        room->n_gen = n > room->n_gen ? n : room->n_gen;
        one = depth + p + n > one ? depth + p + n : one;
    }
    int32_t n_other = longest(&o->others);
    room->each = one > n_other ? one : n_other;
    room->all = (most > one ? most : one) + n_other;
    room->n_prompt = depth > room->n_prompt ? depth : room->n_prompt;
    room->n_prompt = n_other > room->n_prompt ? n_other : room->n_prompt;
    return 0;
}

/* ---- a session ---- */

static int take_memory(struct bench *b)
{
    struct room room;
    int rc = room_of(b->o, &room);
    if (rc)
        return rc;
    size_t n_rep = (size_t)b->o->repetitions, n_group = (size_t)longest(&b->o->n_parallel);
    n_group = n_group < MOST_STAGES ? n_group : MOST_STAGES;
    b->n_ids = room.n_prompt > 2 ? room.n_prompt : 2;
    b->ids = malloc((size_t)b->n_ids * sizeof *b->ids);
    b->seq = malloc((size_t)b->n_ids * sizeof *b->seq);
    b->step = malloc((n_rep * (size_t)room.n_gen * n_group + 1) * sizeof *b->step);
    b->ns = malloc(n_rep * sizeof *b->ns);
    b->first = malloc(n_rep * sizeof *b->first);
    if (b->ids && b->seq && b->step && b->ns && b->first)
        return 0;
    gr_say_error("no memory for a prompt of %d tokens and the times of %d repetitions", b->n_ids,
                 b->o->repetitions);
    return 5;
}

static int open_model(struct bench *b)
{
    int64_t start = now_ns(CLOCK_MONOTONIC);
    int rc = gr_open_model(&b->setting, false, &b->model);
    if (rc)
        return rc;
    gr_model_info(b->model, &b->info);
    uint64_t x = 1;
    for (int32_t i = 0; i < b->n_ids; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        b->ids[i] = (int32_t)((x >> 33) % (uint64_t)b->info.n_vocab);
    }
    b->load_ns = now_ns(CLOCK_MONOTONIC) - start;
    return 0;
}

static int open_session(struct bench *b)
{
    const struct gr_options *o = b->o;
    struct gr_session_params p = gr_session_options(&b->setting);
    struct room room;
    int rc = room_of(o, &room);
    if (rc)
        return rc;
    p.n_seq_max = (uint32_t)(longest(&o->n_parallel) + (longest(&o->others) > 0));
    int64_t n_ctx = p.kv_unified ? room.all + p.n_seq_max : (room.each + 1) * p.n_seq_max;
    if (n_ctx > INT32_MAX) {
        gr_say_error("%lld cells are too many; smaller -d, -np, -n or -do need fewer",
                     (long long)n_ctx);
        return GR_EXIT_USAGE;
    }
    p.n_ctx = (uint32_t)n_ctx;
    b->setting.threads = p.n_threads;
    int64_t start = now_ns(CLOCK_MONOTONIC);
    rc = gr_session_open(&b->session, b->model, &p);
    if (rc)
        return gr_say_status(rc);
    b->load_ns += now_ns(CLOCK_MONOTONIC) - start;
    b->kept = (struct gr_bench_test){0};
    gr_model_info(b->model, &b->info); /* the layers on the GPU are known now */
    rc = gr_session_fit(b->session, &b->fit);
    for (b->device = 0; b->fit.n_gpu_layers && b->device < b->fit.n_device - 1 &&
                        !b->fit.device[b->device].total_bytes;)
        b->device++; /* the first GPU */
    b->n_stage = gr_count_stages(b->session);
    return rc ? gr_say_status(rc) : gr_trace_begin(&b->trace, &b->setting, b->session);
}

/* ---- a pass ---- */

/* Ends batches until at most `most` are pending; c records the times of the groups' tokens. */
static int end_batches(struct bench *b, int32_t most, struct clock *c)
{
    int rc = 0;
    while (b->n_pending > most && !rc) {
        rc = gr_decode_end(b->session);
        b->n_pending--;
        if (c && !rc) {
            int64_t now = now_ns(CLOCK_MONOTONIC), *last = &c->start[c->n_end++ % c->n_group];
            c->step[c->n_step++] = now - *last;
            *last = now;
        }
    }
    return rc;
}

/* Begins a batch once at most `most` are pending including it. */
static int begin(struct bench *b, const struct gr_batch *batch, int32_t most, struct clock *c)
{
    int rc = end_batches(b, most - 1, c);
    if (!rc)
        rc = gr_decode_begin(b->session, batch);
    b->n_pending += !rc;
    return rc;
}

/* Runs n tokens of text `seq` in batches of -b tokens; an encoder reads them at once. */
static int pass_prompt(struct bench *b, int32_t n, int32_t seq)
{
    int32_t step = b->setting.batch_size;
    int rc = 0;
    for (int32_t i = 0; i < n; i++)
        b->seq[i] = seq;
    gr_bar_watch(n < FOLLOWED ? NULL : b->session);
    if (b->info.has_encoder) {
        rc = gr_encode(b->session, &(struct gr_batch){.n_tok = n, .token = b->ids, .seq = b->seq});
        gr_bar_add(n);
    }
    for (int32_t i = 0; i < n && !rc && !b->info.has_encoder; i += step) {
        struct gr_batch batch = {
            .n_tok = n - i < step ? n - i : step, .token = b->ids + i, .seq = b->seq + i};
        rc = begin(b, &batch, GR_MOST_PENDING, NULL);
        gr_bar_add(batch.n_tok);
    }
    gr_bar_watch(NULL);
    return rc ? rc : end_batches(b, 0, NULL);
}

/* Generates n tokens of each of n_seq texts, in groups that follow each other through the
 * stages. */
static int pass_texts(struct bench *b, int32_t n, int32_t n_seq)
{
    struct clock c = {.step = b->step + b->n_step,
                      .n_group = n_seq < b->n_stage ? n_seq : b->n_stage};
    int32_t token[MOST_TEXTS], seq[MOST_TEXTS], n_group = c.n_group;
    int8_t logits[MOST_TEXTS];
    int rc = 0;
    for (int32_t g = 0; g < n_group; g++)
        c.start[g] = now_ns(CLOCK_MONOTONIC);
    for (int32_t i = 0; i < n * n_group && !rc; i++) {
        int32_t g = i % n_group, lo = g * n_seq / n_group, hi = (g + 1) * n_seq / n_group;
        for (int32_t k = lo; k < hi; k++)
            token[k - lo] = b->ids[(i + k) % b->n_ids], seq[k - lo] = k, logits[k - lo] = 1;
        struct gr_batch batch = {.n_tok = hi - lo, .token = token, .seq = seq, .logits = logits};
        rc = begin(b, &batch, n_group, &c);
        gr_bar_add(batch.n_tok);
    }
    if (!rc)
        rc = end_batches(b, 0, &c);
    b->n_step += c.n_step;
    return rc;
}

/* Truncates the texts in the cache to their depth; false: not possible (recurrent states,
 * encoders), or filled for another test. */
static bool cut_back(struct bench *b, const struct gr_bench_test *t)
{
    if (b->info.has_encoder || !b->kept.n_seq || b->kept.n_depth != t->n_depth ||
        b->kept.n_other != t->n_other)
        return false;
    for (int32_t i = 0; i < b->kept.n_seq; i++)
        if (gr_kv_seq_rm(b->session, i, i < t->n_seq ? t->n_depth : -1, -1))
            return false;
    b->kept.n_seq = t->n_seq < b->kept.n_seq ? t->n_seq : b->kept.n_seq;
    return true;
}

/* Fills the cache for a test: text 0 is run, the others are copies. */
static int fill_cache(struct bench *b, const struct gr_bench_test *t)
{
    int rc = 0;
    if (!cut_back(b, t)) {
        gr_kv_clear(b->session);
        b->kept = (struct gr_bench_test){0};
        gr_bar_extend((double)t->n_other + t->n_depth);
        if (t->n_other)
            rc = pass_prompt(b, t->n_other, longest(&b->o->n_parallel));
        if (t->n_depth && !rc)
            rc = pass_prompt(b, t->n_depth, 0);
        b->kept = rc ? b->kept : *t;
        b->kept.n_seq = !rc;
    }
    for (; b->kept.n_seq < t->n_seq && !rc; b->kept.n_seq += !rc)
        rc = t->n_depth ? gr_kv_seq_dup(b->session, 0, b->kept.n_seq, 0, -1) : 0;
    return rc ? gr_say_status(rc) : 0;
}

/* Runs one measurement; *first receives the time until the prompt's last logits. */
static int pass(struct bench *b, const struct gr_bench_test *t, int64_t *ns, int64_t *first)
{
    int64_t start = now_ns(CLOCK_MONOTONIC);
    int rc = t->n_prompt ? pass_prompt(b, t->n_prompt, 0) : 0;
    *first = t->n_prompt ? now_ns(CLOCK_MONOTONIC) - start : 0;
    if (!rc && t->n_gen)
        rc = pass_texts(b, t->n_gen, t->n_seq);
    *ns = now_ns(CLOCK_MONOTONIC) - start;
    return rc ? gr_say_status(rc) : 0;
}

static int rising(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int report(struct bench *b, const struct gr_bench_test *t, int64_t start_s, int64_t cpu_ns)
{
    struct gr_bench_result r = {.test = *t,
                                .o = &b->setting,
                                .info = &b->info,
                                .device = &b->fit.device[b->device],
                                .on_gpu = b->fit.n_gpu_layers > 0,
                                .n_threads = b->setting.threads,
                                .load_ns = b->load_ns,
                                .start_s = start_s,
                                .n_rep = b->o->repetitions,
                                .ns = b->ns,
                                .first_ns = b->first,
                                .step_ns = b->step,
                                .n_step = b->n_step,
                                .cpu_ns = cpu_ns};
    qsort(b->step, (size_t)b->n_step, sizeof *b->step, rising);
    if (b->old)
        gr_bench_old_find(b->old, &r);
    int rc = gr_bench_print(&r, !b->printed);
    b->printed = true;
    return rc;
}

/* Begins the progress bar for all passes of a test; tokens that fill the cache are added once
 * known. */
static void begin_bar(const struct bench *b, const struct gr_bench_test *t, int32_t n_warm)
{
    char name[64], what[80];
    double pass = t->n_prompt + (double)t->n_gen * t->n_seq;
    double warm = t->n_prompt + (double)n_warm * t->n_seq;
    snprintf(what, sizeof what, "bench %s", gr_bench_name(t, name, sizeof name));
    gr_bar_begin(what, pass * b->o->repetitions + (b->o->warmup ? warm : 0), GR_BAR_TOKENS);
}

static int measure(struct bench *b, const struct gr_bench_test *t)
{
    struct gr_bench_test warm = *t;
    int64_t cpu = 0, start_s = now_ns(CLOCK_REALTIME) / 1000000000;
    warm.n_gen = t->n_gen > 1 ? 1 : t->n_gen;
    b->n_step = 0;
    begin_bar(b, t, warm.n_gen);
    int rc = b->o->warmup ? fill_cache(b, t) : 0;
    if (b->o->warmup && !rc)
        rc = pass(b, &warm, b->ns, b->first);
    b->n_step = 0;
    for (int32_t i = 0; i < b->o->repetitions && !rc; i++) {
        rc = fill_cache(b, t);
        int64_t before = now_ns(CLOCK_PROCESS_CPUTIME_ID);
        rc = rc ? rc : pass(b, t, &b->ns[i], &b->first[i]);
        cpu += now_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
    }
    gr_bar_end();
    return rc ? rc : report(b, t, start_s, cpu);
}

/* ---- settings ---- */

static int run_setting(struct bench *b)
{
    const struct gr_options *o = b->o;
    int rc = open_session(b);
    for (int i = 0; i < o->depths.n * o->others.n && !rc; i++)
        rc = each_test(b, o->depths.v[i / o->others.n], o->others.v[i % o->others.n], measure);
    int traced = gr_trace_end(&b->trace);
    gr_session_close(&b->session);
    return rc ? rc : traced;
}

/* Runs the settings that share one open model. */
static int run_model(struct bench *b)
{
    int rc = open_model(b);
    for (int i = 0; i < gr_bench_n_session(b->o) && !rc; i++) {
        gr_bench_set_session(&b->setting, i);
        rc = run_setting(b);
    }
    gr_model_close(&b->model);
    return rc;
}

static int check_options(const struct gr_options *o)
{
    if (!longest(&o->n_prompt) && !longest(&o->n_gen) && !o->prompt_gen.n) {
        gr_say_error("nothing to measure: -p N, -n N or -pg P,N above 0 is expected");
        return GR_EXIT_USAGE;
    }
    if (gr_bench_n_model(o) > 1 && gr_together_world()) {
        gr_say_error("of several processes one -m, one -mmp and one -ngl are expected; a bench for "
                     "each of several does");
        return GR_EXIT_USAGE;
    }
    if (o->trace && gr_bench_n_session(o) * gr_bench_n_model(o) > 1) {
        gr_say_error("--trace writes one session into a file, and these flags ask for several");
        return GR_EXIT_USAGE;
    }
    return 0;
}

int gr_tool_bench(const struct gr_options *o)
{
    struct bench b = {.o = o, .setting = *o};
    int rc = check_options(o);
    if (!rc && o->compare)
        rc = gr_bench_old_read(&b.old, o->compare);
    if (!rc)
        rc = take_memory(&b);
    for (int i = 0; i < gr_bench_n_model(o) && !rc; i++) {
        gr_bench_set_model(&b.setting, i);
        rc = run_model(&b);
    }
    if (!rc || b.printed)
        gr_bench_print_end(o, b.printed);
    if (!rc && b.old)
        rc = gr_bench_old_judge(b.old);
    gr_bench_old_free(b.old);
    free(b.ids), free(b.seq), free(b.step), free(b.ns), free(b.first);
    return rc;
}
