/* Rows of gpurun bench: fields of llama-bench, followed by those that it lacks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "tools/cli/flags.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

#define PRECISION JSON_REAL_PRECISION(9)

const char *gr_bench_name(const struct gr_bench_test *t, char *buf, size_t n)
{
    char prompt[16] = "", gen[16] = "", side[16] = "", behind[40] = "";
    if (t->n_prompt)
        snprintf(prompt, sizeof prompt, "pp%d", t->n_prompt);
    if (t->n_gen)
        snprintf(gen, sizeof gen, "%stg%d", t->n_prompt ? "+" : "", t->n_gen);
    if (t->n_seq > 1)
        snprintf(side, sizeof side, "x%d", t->n_seq);
    if (t->n_other)
        snprintf(behind, sizeof behind, " @ d%d o%d", t->n_depth, t->n_other);
    else if (t->n_depth)
        snprintf(behind, sizeof behind, " @ d%d", t->n_depth);
    snprintf(buf, n, "%s%s%s%s", prompt, gen, side, behind);
    return buf;
}

double gr_bench_speed(const struct gr_bench_result *r, int32_t i)
{
    double n = r->test.n_prompt + (double)r->test.n_gen * r->test.n_seq;
    return n * 1e9 / (double)(r->ns[i] > 0 ? r->ns[i] : 1);
}

/* Mean and standard deviation of n values; `of` gives value i. */
static double mean_of(const struct gr_bench_result *r,
                      double (*of)(const struct gr_bench_result *, int32_t), double *deviation)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < r->n_rep; i++)
        sum += of(r, i);
    double mean = sum / r->n_rep;
    for (int32_t i = 0; i < r->n_rep; i++)
        squares += (of(r, i) - mean) * (of(r, i) - mean);
    *deviation = r->n_rep > 1 ? sqrt(squares / (r->n_rep - 1)) : 0;
    return mean;
}

double gr_bench_mean(const struct gr_bench_result *r, double *deviation)
{
    return mean_of(r, gr_bench_speed, deviation);
}

static double duration(const struct gr_bench_result *r, int32_t i)
{
    return (double)r->ns[i];
}

static double first(const struct gr_bench_result *r, int32_t i)
{
    return (double)r->first_ns[i];
}

/* Returns the quantile `share` of the step times; 0: there are none. */
static int64_t step_at(const struct gr_bench_result *r, double share)
{
    int32_t i = (int32_t)ceil(share * r->n_step) - 1;
    return r->n_step ? r->step_ns[i > 0 ? i : 0] : 0;
}

/* ---- JSON ---- */

/* "model name" of /proc/cpuinfo. */
static const char *cpu_name(char *buf, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    *buf = 0;
    while (f && !*buf && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!strncmp(line, "model name", 10) && colon)
            snprintf(buf, n, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (f)
        fclose(f);
    return buf;
}

/* Makes a JSON string; in names that are not UTF-8 bytes above 127 become '?'. */
static json_t *text_of(const char *text)
{
    json_t *value = json_string(text);
    char *ascii = value ? NULL : strdup(text);
    for (char *p = ascii; p && *p; p++)
        *p = *p & 0x80 ? '?' : *p;
    value = ascii ? json_string(ascii) : value;
    free(ascii);
    return value;
}

static int set(json_t *row, const char *name, json_t *value)
{
    return json_object_set_new(row, name, value);
}

static json_t *samples(const struct gr_bench_result *r, bool speeds)
{
    json_t *list = json_array();
    for (int32_t i = 0; list && i < r->n_rep; i++)
        json_array_append_new(list,
                              speeds ? json_real(gr_bench_speed(r, i)) : json_integer(r->ns[i]));
    return list;
}

static int set_setting(json_t *row, const struct gr_bench_result *r)
{
    const struct gr_options *o = r->o;
    char cpu[128], type[64];
    snprintf(type, sizeof type, "%s %s", r->info->arch, r->info->file_type);
    json_t *fields = json_pack(
        "{s:s, s:o, s:o, s:s, s:o, s:s, s:I, s:I, s:i, s:i, s:i, s:s, s:s, s:i, s:s, "
        "s:b, s:b, s:b, s:o}",
        "build_commit", gr_version(), "cpu_info", text_of(cpu_name(cpu, sizeof cpu)), "gpu_info",
        text_of(r->on_gpu ? r->device->description : ""), "backends", r->device->name,
        "model_filename", text_of(o->model ? o->model : ""), "model_type", type, "model_size",
        (json_int_t)r->info->n_bytes, "model_n_params", (json_int_t)r->info->n_params, "n_batch",
        o->batch_size, "n_ubatch", o->ubatch_size, "n_threads", r->n_threads, "type_k",
        o->cache_type_k, "type_v", o->cache_type_v, "n_gpu_layers", r->info->n_gpu_layers,
        "split_mode", o->split_mode, "no_kv_offload", !o->kv_offload, "use_mmap", o->mmap,
        "no_op_offload", !o->op_offload, "devices", text_of(o->device ? o->device : "auto"));
    int rc = fields ? json_object_update(row, fields) : -1;
    json_decref(fields);
    return rc;
}

static int set_test(json_t *row, const struct gr_bench_result *r)
{
    const struct gr_bench_test *t = &r->test;
    double dev_ns, dev_ts, ns = mean_of(r, duration, &dev_ns), ts = gr_bench_mean(r, &dev_ts), dev;
    char when[32];
    time_t start = (time_t)r->start_s;
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&start, &utc));
    json_t *fields = json_pack(
        "{s:i, s:i, s:i, s:s, s:I, s:I, s:f, s:f, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:I, "
        "s:i}",
        "n_prompt", t->n_prompt, "n_gen", t->n_gen, "n_depth", t->n_depth, "test_time", when,
        "avg_ns", (json_int_t)ns, "stddev_ns", (json_int_t)dev_ns, "avg_ts", ts, "stddev_ts",
        dev_ts, "n_seq", t->n_seq, "n_depth_others", t->n_other, "ttft_ns",
        (json_int_t)mean_of(r, first, &dev), "itl_p50_ns", (json_int_t)step_at(r, 0.5),
        "itl_p90_ns", (json_int_t)step_at(r, 0.9), "itl_p99_ns", (json_int_t)step_at(r, 0.99),
        "load_ns", (json_int_t)r->load_ns, "ts_each", t->n_gen ? ts / t->n_seq : 0.0, "cpu_ns",
        (json_int_t)(r->cpu_ns / r->n_rep), "reps", r->n_rep);
    int rc = fields ? json_object_update(row, fields) : -1;
    json_decref(fields);
    return rc;
}

json_t *gr_bench_json(const struct gr_bench_result *r)
{
    char name[64];
    json_t *row = json_object();
    int rc = row ? set(row, "test", json_string(gr_bench_name(&r->test, name, sizeof name))) : -1;
    rc = rc || set_setting(row, r) || set_test(row, r);
    if (!rc && r->o->compare)
        rc = set(row, "ratio",
                 json_real(r->was_ts > 0 ? gr_bench_mean(r, &(double){0}) / r->was_ts : 0.0));
    rc =
        rc || set(row, "samples_ns", samples(r, false)) || set(row, "samples_ts", samples(r, true));
    if (rc) {
        json_decref(row);
        return NULL;
    }
    return row;
}

/* ---- CSV, SQL ---- */

/* Prints a quoted text with every quote doubled. */
static void print_quoted(const char *text, char quote)
{
    putchar(quote);
    for (; *text; text++)
        printf(*text == quote ? "%c%c" : "%c", *text, quote);
    putchar(quote);
}

static void print_value(const json_t *v, char quote)
{
    if (json_is_string(v))
        print_quoted(json_string_value(v), quote);
    else if (json_is_boolean(v))
        printf("%d", json_is_true(v));
    else if (json_is_real(v))
        printf("%.9g", json_real_value(v));
    else
        printf("%lld", (long long)json_integer_value(v));
}

/* Part of a row's fields to print; lists are left out. */
enum part { NAMES, TYPED, VALUES };

static void print_fields(json_t *row, enum part part, char quote, const char *between)
{
    const char *name, *before = "";
    json_t *v;
    json_object_foreach(row, name, v)
    {
        if (json_is_array(v))
            continue;
        printf("%s", before);
        if (part == VALUES)
            print_value(v, quote);
        else
            printf("%s", name);
        if (part == TYPED)
            printf(" %s", json_is_string(v) ? "TEXT" : json_is_real(v) ? "REAL" : "INTEGER");
        before = between;
    }
}

static void print_csv(json_t *row, bool head)
{
    if (head) {
        print_fields(row, NAMES, '"', ",");
        printf("\n");
    }
    print_fields(row, VALUES, '"', ",");
    printf("\n");
}

/* The table has llama-bench's name, so that the same queries work. */
static void print_sql(json_t *row, bool head)
{
    if (head) {
        printf("CREATE TABLE IF NOT EXISTS llama_bench (\n  ");
        print_fields(row, TYPED, '\'', ",\n  ");
        printf("\n);\n\n");
    }
    printf("INSERT INTO llama_bench (");
    print_fields(row, NAMES, '\'', ", ");
    printf(") VALUES (");
    print_fields(row, VALUES, '\'', ", ");
    printf(");\n");
}

/* ---- the table ---- */

struct cell {
    const char *head;
    int width; /* negative: to the left */
    char text[64];
};

static struct cell *add(struct cell *c, const char *head, int width)
{
    *c = (struct cell){.head = head, .width = width};
    return c;
}

/* Returns the end of a name that fits into a cell, beginning with a whole character. */
static const char *end_of(const char *name)
{
    size_t n = strlen(name);
    name += n > 63 ? n - 63 : 0;
    while (((unsigned char)*name & 0xc0) == 0x80)
        name++;
    return name;
}

static void put_switch(struct cell *c, const char *head, int width, int x)
{
    snprintf(add(c, head, width)->text, 64, "%d", x);
}

/* Adds cells for settings that differ from the default, or between rows. */
static int setting_cells(const struct gr_bench_result *r, struct cell *c)
{
    const struct gr_options *o = r->o;
    int n = 0;
    if (o->models.n > 1)
        snprintf(add(&c[n++], "file", -24)->text, 64, "%s", end_of(o->model));
    if (o->mmaps.n > 1 || !o->mmap)
        put_switch(&c[n++], "mmap", 4, o->mmap);
    if (o->kv_offloads.n > 1 || !o->kv_offload)
        put_switch(&c[n++], "nkvo", 4, !o->kv_offload);
    if (o->op_offloads.n > 1 || !o->op_offload)
        put_switch(&c[n++], "nopo", 4, !o->op_offload);
    if (o->batch_sizes.n > 1 || o->batch_size != 2048)
        snprintf(add(&c[n++], "n_batch", 7)->text, 64, "%d", o->batch_size);
    if (o->ubatch_sizes.n > 1 || o->ubatch_size != 512)
        snprintf(add(&c[n++], "n_ubatch", 8)->text, 64, "%d", o->ubatch_size);
    if (o->cache_types_k.n > 1 || strcmp(o->cache_type_k, "f16") != 0)
        snprintf(add(&c[n++], "type_k", 6)->text, 64, "%s", o->cache_type_k);
    if (o->cache_types_v.n > 1 || strcmp(o->cache_type_v, "f16") != 0)
        snprintf(add(&c[n++], "type_v", 6)->text, 64, "%s", o->cache_type_v);
    return n;
}

/* Adds a cell with a number, empty where there is none. */
static void put(struct cell *c, const char *head, int width, int digits, double x)
{
    add(c, head, width);
    if (x > 0)
        snprintf(c->text, sizeof c->text, "%.*f", digits, x);
}

static int speed_cells(const struct gr_bench_result *r, struct cell *c)
{
    double dev, ts = gr_bench_mean(r, &dev), none;
    int n = 0;
    snprintf(add(&c[n++], "t/s", 21)->text, 64, "%.2f \u00b1 %.2f", ts, dev);
    if (r->o->n_parallel.n > 1 || r->o->n_parallel.v[0] > 1)
        put(&c[n++], "each t/s", 9, 2, r->test.n_gen ? ts / r->test.n_seq : 0);
    put(&c[n++], "TTFT ms", 9, 2, mean_of(r, first, &none) * 1e-6);
    put(&c[n++], "ITL ms", 9, 2, (double)step_at(r, 0.5) * 1e-6);
    put(&c[n++], "p90", 9, 2, (double)step_at(r, 0.9) * 1e-6);
    put(&c[n++], "p99", 9, 2, (double)step_at(r, 0.99) * 1e-6);
    if (r->o->compare)
        put(&c[n++], "ratio", 6, 3, r->was_ts > 0 ? ts / r->was_ts : 0);
    return n;
}

static int cells_of(const struct gr_bench_result *r, struct cell *c)
{
    char bytes[16], params[16];
    int n = 0;
    snprintf(add(&c[n++], "model", -24)->text, 64, "%s %s", r->info->arch, r->info->file_type);
    snprintf(add(&c[n++], "size", 10)->text, 64, "%s",
             gr_amount(bytes, (double)r->info->n_bytes, 1024));
    snprintf(add(&c[n++], "params", 8)->text, 64, "%s",
             gr_amount(params, (double)r->info->n_params, 1000));
    snprintf(add(&c[n++], "backend", -7)->text, 64, "%s", r->device->name);
    snprintf(add(&c[n++], "ngl", 3)->text, 64, "%d", r->info->n_gpu_layers);
    snprintf(add(&c[n++], "threads", 7)->text, 64, "%d", r->n_threads);
    n += setting_cells(r, c + n);
    gr_bench_name(&r->test, add(&c[n], "test", 20)->text, 64);
    n++;
    return n + speed_cells(r, c + n);
}

/* Returns the columns of a text: bytes except UTF-8 continuation bytes. */
static int columns(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_cells(const struct cell *c, int n, bool head)
{
    for (int i = 0; i < n; i++) {
        const char *text = head ? c[i].head : c[i].text;
        int pad = abs(c[i].width) - columns(text);
        pad = pad > 0 ? pad : 0;
        printf("| %*s%s%*s ", c[i].width > 0 ? pad : 0, "", text, c[i].width > 0 ? 0 : pad, "");
    }
    printf("|\n");
    for (int i = 0; i < n && head; i++) {
        printf("| ");
        for (int k = 1; k < abs(c[i].width); k++)
            putchar('-');
        printf(c[i].width > 0 ? ": " : "- ");
    }
    if (head)
        printf("|\n");
}

static void print_table(const struct gr_bench_result *r, bool head)
{
    struct cell c[24];
    int n = cells_of(r, c);
    if (head)
        print_cells(c, n, true);
    print_cells(c, n, false);
}

/* ---- any ---- */

static bool is_format(const struct gr_options *o, const char *name)
{
    return !strcmp(o->json ? "jsonl" : o->format, name);
}

int gr_bench_print(const struct gr_bench_result *r, bool head)
{
    json_t *row = gr_bench_json(r);
    int rc = 0;
    if (!row) {
        gr_say_error("no memory for a row");
        return 5;
    }
    if (is_format(r->o, "md")) {
        print_table(r, head);
    } else if (is_format(r->o, "csv")) {
        print_csv(row, head);
    } else if (is_format(r->o, "sql")) {
        print_sql(row, head);
    } else {
        bool list = is_format(r->o, "json");
        printf(!list ? "" : head ? "[\n" : ",\n");
        bool bad = json_dumpf(row, stdout, PRECISION | (list ? JSON_INDENT(2) : JSON_COMPACT)) != 0;
        printf(list ? "" : "\n");
        rc = bad && !ferror(stdout) ? gr_say_no_memory() : 0;
    }
    json_decref(row);
    gr_out_finish();
    return rc;
}

void gr_bench_print_end(const struct gr_options *o, bool any)
{
    if (is_format(o, "json"))
        printf(any ? "\n]\n" : "[]\n");
}
