#include "trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/flags.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

#define MAX_ROW 128
#define MAX_DEVICE 17

/* All runs of one operation by one kernel on one device. */
struct row {
    char device[16], op[32], kernel[48];
    int64_t n, ns, bytes;
};

struct gr_trace {
    struct gr_session *session;
    struct gr_output *file;
    double start; /* gr_seconds at time 0 of the file */
    bool table;
    struct row row[MAX_ROW]; /* the last row collects the rest */
    int n_row;
    char device[MAX_DEVICE][16]; /* [n_device] by their numbers in the file */
    int n_device;
};

/* ---- the file: Chrome's trace event format ---- */

/* Writes to the file; a failure is reported when the file is completed. */
__attribute__((format(printf, 2, 3))) static void put(struct gr_trace *t, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    (void)gr_output_put(t->file, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static int device_number(struct gr_trace *t, const char *name)
{
    int i = 0;
    while (i < t->n_device && strcmp(t->device[i], name) != 0)
        i++;
    if (i < t->n_device || i == MAX_DEVICE)
        return i;
    snprintf(t->device[t->n_device++], sizeof t->device[0], "%s", name);
    put(t,
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
        ",\n",
        i, name);
    return i;
}

static void write_event(struct gr_trace *t, const struct gr_op_sample *s)
{
    put(t,
        "{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"cat\":\"op\",\"ts\":%.3f,"
        "\"dur\":%.3f,\"args\":{\"layer\":%d,\"kernel\":\"%s\",\"bytes\":%lld,\"GB/s\":%.3f}},"
        "\n",
        device_number(t, s->device), s->op, (double)s->start_ns * 1e-3, (double)s->ns * 1e-3,
        s->layer, s->kernel ? s->kernel : "", (long long)s->bytes,
        s->ns > 0 ? (double)s->bytes / (double)s->ns : 0.0);
}

/* Writes a span of a rank's time: in the file a process of its own, with one thread per rank. */
static void write_span(const struct gr_stage_span *s, void *user)
{
    static const char *const name[] = {"wait", "busy", "transfer"};
    struct gr_trace *t = user;
    double start_us = (double)s->start_ns * 1e-3 - t->start * 1e6;
    if (start_us >= 0)
        put(t,
            "{\"ph\":\"X\",\"pid\":2,\"tid\":%d,\"name\":\"%s\",\"cat\":\"rank\",\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{\"micro-batch\":%llu}},\n",
            s->rank, name[s->what], start_us, (double)s->ns * 1e-3, (unsigned long long)s->ubatch);
}

static int close_file(struct gr_trace *t)
{
    if (!t->file)
        return 0;
    (void)gr_session_spans(t->session, write_span, t);
    put(t, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":2,\"args\":{\"name\":"
           "\"ranks\"}},\n"
           "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":"
           "\"gpurun\"}}\n]}\n");
    int status = gr_output_commit(&t->file);
    if (!status)
        return 0;
    gr_say_error("--trace: %s", gr_error_message());
    return gr_status_exit(status);
}

/* ---- the table ---- */

static struct row *row_of(struct gr_trace *t, const struct gr_op_sample *s)
{
    const char *kernel = s->kernel ? s->kernel : "";
    for (int i = 0; i < t->n_row; i++) {
        struct row *r = &t->row[i];
        if (!strcmp(r->device, s->device) && !strcmp(r->op, s->op) &&
            !strncmp(r->kernel, kernel, sizeof r->kernel - 1))
            return r;
    }
    struct row *r = &t->row[t->n_row < MAX_ROW ? t->n_row++ : MAX_ROW - 1];
    if (r->n)
        kernel = "(others)";
    snprintf(r->device, sizeof r->device, "%s", s->device);
    snprintf(r->op, sizeof r->op, "%s", s->op);
    snprintf(r->kernel, sizeof r->kernel, "%s", kernel);
    return r;
}

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : 0;
}

/* Returns a device's memory bandwidth in bytes per second; 0: unknown. */
static uint64_t bandwidth(const char *name)
{
    struct gr_device d;
    for (int32_t i = 0; i < gr_device_count(NULL); i++)
        if (!gr_device_get(i, &d) && !strcmp(d.name, name))
            return d.bytes_per_s;
    return 0;
}

static void print_table(struct gr_trace *t)
{
    double sum = 0;
    qsort(t->row, (size_t)t->n_row, sizeof *t->row, by_time);
    for (int i = 0; i < t->n_row; i++)
        sum += (double)t->row[i].ns;
    gr_say("%-6s %-11s %9s %10s %6s %8s %6s  %s", "device", "operation", "calls", "ms", "time",
           "GB/s", "peak", "kernel");
    for (int i = 0; i < t->n_row; i++) {
        const struct row *r = &t->row[i];
        char peak[16] = "";
        uint64_t most = bandwidth(r->device);
        double rate = r->ns ? (double)r->bytes / (double)r->ns : 0;
        if (most)
            snprintf(peak, sizeof peak, "%.0f%%", 1e11 * rate / (double)most);
        gr_say("%-6s %-11s %9lld %10.3f %5.1f%% %8.1f %6s  %s", r->device, r->op, (long long)r->n,
               (double)r->ns * 1e-6, sum > 0 ? 100 * (double)r->ns / sum : 0.0, rate, peak,
               r->kernel);
    }
}

/* ---- begin and end ---- */

static void on_sample(const struct gr_op_sample *s, void *user)
{
    struct gr_trace *t = user;
    struct row *r = row_of(t, s);
    r->n++, r->ns += s->ns, r->bytes += s->bytes;
    if (t->file)
        write_event(t, s);
}

int gr_trace_begin(struct gr_trace **out, const struct gr_options *o, struct gr_session *s)
{
    *out = NULL;
    if (!o->trace && !o->op_times)
        return 0;
    struct gr_trace *t = calloc(1, sizeof *t);
    if (!t) {
        gr_say_error("no memory for --trace or --op-times");
        return 5;
    }
    t->session = s, t->table = o->op_times;
    int status = o->trace ? gr_output_open(&t->file, o->trace, 0) : 0;
    if (status) {
        free(t);
        return gr_say_status(status);
    }
    if (t->file)
        put(t, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    *out = t;
    t->start = gr_seconds();
    struct gr_stage stage[2];
    bool alone = gr_session_stages(s, stage, 2) < 2; /* operations of other ranks cannot be timed */
    int rc = alone || t->table ? gr_session_time(s, on_sample, t) : 0;
    t->table &= !rc;
    return rc ? gr_say_status(rc) : 0;
}

int gr_trace_end(struct gr_trace **trace)
{
    struct gr_trace *t = *trace;
    if (!t)
        return 0;
    (void)gr_session_time(t->session, NULL, NULL);
    int rc = close_file(t);
    if (t->table)
        print_table(t);
    free(t);
    *trace = NULL;
    return rc;
}
