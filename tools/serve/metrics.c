/* Figures of the server, in the text format of Prometheus. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "embedder.h"
#include "server.h"

#define TYPE "text/plain; version=0.0.4; charset=utf-8"

enum { TTFT, INTER_TOKEN, E2E, QUEUE, N_HISTOGRAM };
static const struct {
    const char *name, *help;
} histogram_name[N_HISTOGRAM] = {
    [TTFT] = {"ttft_seconds", "Time from a request to its first token."},
    [INTER_TOKEN] = {"inter_token_seconds", "Time between tokens, the mean of each text."},
    [E2E] = {"e2e_seconds", "Time from a request to the end of its text."},
    [QUEUE] = {"queue_seconds", "Time that a request waited before it began."},
};

static const char *const reason[] = {[GR_FINISH_TOKEN] = "stop",
                                     [GR_FINISH_STRING] = "stop_string",
                                     [GR_FINISH_LENGTH] = "length",
                                     [GR_FINISH_CANCELLED] = "cancelled",
                                     [GR_FINISH_FAILED] = "error"};
enum { N_REASON = sizeof reason / sizeof *reason };

struct gr_metrics {
    pthread_mutex_t lock;
    struct gr_histogram histogram[N_HISTOGRAM];
    int64_t n_reason[N_REASON];
};

int gr_metrics_new(struct gr_metrics **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return GR_E_NOMEM_HOST;
    pthread_mutex_init(&(*out)->lock, NULL);
    return 0;
}

void gr_metrics_free(struct gr_metrics **m)
{
    if (!*m)
        return;
    pthread_mutex_destroy(&(*m)->lock);
    free(*m);
    *m = NULL;
}

static void observe(struct gr_histogram *h, int64_t ns)
{
    gr_histogram_add(h, gr_bound_seconds, (double)ns / 1e9);
}

void gr_metrics_count(struct gr_server *s, const struct gr_result *r)
{
    struct gr_metrics *m = s->metrics;
    int none = 0;
    pthread_mutex_lock(&m->lock);
    m->n_reason[r->end]++;
    observe(&m->histogram[QUEUE], r->queue_ns);
    observe(&m->histogram[E2E], r->queue_ns + r->prompt_ns + r->generate_ns);
    if (r->n_generated > 0)
        observe(&m->histogram[TTFT], r->queue_ns + r->prompt_ns);
    if (r->n_generated > 1)
        observe(&m->histogram[INTER_TOKEN], r->generate_ns / (r->n_generated - 1));
    pthread_mutex_unlock(&m->lock);
    bool lost = r->status == GR_E_DEVICE || r->status == GR_E_PEER_LOST;
    if (r->end == GR_FINISH_FAILED && lost &&
        atomic_compare_exchange_strong(&s->life->failed, &none, r->status))
        (void)!write(s->life->wake, &(uint64_t){1}, sizeof(uint64_t));
}

/* ---- the text ---- */

static void put_head(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP gpurun:%s %s\n# TYPE gpurun:%s %s\n", name, help, name, type);
}

static void put(FILE *f, const char *name, const char *type, const char *help, double value)
{
    put_head(f, name, type, help);
    fprintf(f, "gpurun:%s %.17g\n", name, value);
}

/* Writes a histogram; label: one of its own, `name="value"`, or an empty text. */
static void put_histogram(FILE *f, const char *name, const char *label,
                          const double bound[GR_N_BOUND], const struct gr_histogram *h)
{
    const char *comma = *label ? "," : "", *open = *label ? "{" : "", *close = *label ? "}" : "";
    int64_t n = 0;
    for (int i = 0; i < GR_N_BOUND; i++) {
        n += h->n[i];
        fprintf(f, "gpurun:%s_bucket{%s%sle=\"%g\"} %lld\n", name, label, comma, bound[i],
                (long long)n);
    }
    n += h->n[GR_N_BOUND];
    fprintf(f, "gpurun:%s_bucket{%s%sle=\"+Inf\"} %lld\n", name, label, comma, (long long)n);
    fprintf(f, "gpurun:%s_sum%s%s%s %.9g\n", name, open, label, close, h->sum);
    fprintf(f, "gpurun:%s_count%s%s%s %lld\n", name, open, label, close, (long long)n);
}

static void put_steps(FILE *f, const struct gr_scheduler_stats *s)
{
    static const char *const phase[] = {[GR_PHASE_PROMPT] = "phase=\"prompt\"",
                                        [GR_PHASE_DECODE] = "phase=\"decode\"",
                                        [GR_PHASE_MIXED] = "phase=\"mixed\""};
    put_head(f, "step_seconds", "histogram",
             "Time of a step that has tokens of prompts, of answers, or both.");
    for (int i = 0; i < GR_N_PHASE; i++)
        put_histogram(f, "step_seconds", phase[i], gr_bound_seconds, &s->step_seconds[i]);
    put_head(f, "batch_tokens", "histogram", "Tokens of a step.");
    put_histogram(f, "batch_tokens", "", gr_bound_tokens, &s->step_tokens);
}

static void put_scheduler(FILE *f, const struct gr_scheduler_stats *s)
{
    put(f, "requests_running", "gauge", "Requests that are computed.", s->n_active);
    put(f, "requests_waiting", "gauge", "Requests that wait.", s->n_waiting);
    put(f, "kv_cache_usage_ratio", "gauge", "Part of the cache's cells that is used, from 0 to 1.",
        s->n_cell ? (double)s->n_used / s->n_cell : 0);
    put(f, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)s->n_prompt);
    put(f, "prompt_tokens_cached_total", "counter",
        "Tokens of prompts that were in the cache already.", (double)s->n_cached);
    put(f, "prompt_tokens_moved_total", "counter",
        "Those of them that were moved from another place (--cache-reuse).", (double)s->n_moved);
    put(f, "generated_tokens_total", "counter", "Tokens that were generated.",
        (double)s->n_generated);
    put(f, "cancelled_total", "counter", "Requests that were cancelled, as by their client.",
        (double)s->n_cancelled);
    put(f, "preemptions_total", "counter", "Requests that had to begin again, for want of cells.",
        (double)s->n_preempted);
    put(f, "prefix_files", "gauge", "Files of --cache-dir, for this model.", s->n_file);
    put(f, "prefix_file_bytes", "gauge", "Bytes of all files of --cache-dir.",
        (double)s->file_bytes);
    put(f, "prefix_files_written_total", "counter", "Texts that were written to --cache-dir.",
        (double)s->n_saved);
    put(f, "prefix_files_restored_total", "counter", "Texts that began from a file.",
        (double)s->n_restored);
    put(f, "prefix_files_damaged_total", "counter", "Files that were damaged, and removed.",
        (double)s->n_damaged);
    put(f, "prefix_files_dropped_total", "counter",
        "Texts that were not written, as the disk was too slow.", (double)s->n_unsaved);
    put(f, "steps_total", "counter", "Steps of the model.", (double)s->n_step);
    put(f, "step_seconds_total", "counter", "Time of all steps.", (double)s->step_ns / 1e9);
}

static void put_devices(FILE *f, const struct gr_server *s)
{
    put(f, "gpu_layers", "gauge", "Layers on GPUs, the output layer counted.",
        s->info.n_gpu_layers);
    put_head(f, "vram_bytes", "gauge", "Memory of each GPU, by what it is used for.");
    for (int32_t i = 0; i < s->fit.n_device; i++) {
        const struct gr_fit_device *d = &s->fit.device[i];
        const struct {
            const char *kind;
            uint64_t bytes;
        } kind[] = {{"weights", d->weights}, {"cache", d->cache}, {"work", d->work}};
        for (size_t k = 0; k < 3 && d->total_bytes; k++)
            fprintf(f, "gpurun:vram_bytes{device=\"%s\",kind=\"%s\"} %llu\n", d->name, kind[k].kind,
                    (unsigned long long)kind[k].bytes);
    }
}

static void put_results(FILE *f, struct gr_metrics *m)
{
    pthread_mutex_lock(&m->lock);
    put_head(f, "requests_total", "counter",
             "Texts, and requests for vectors, that have ended, by the reason.");
    for (int i = 0; i < N_REASON; i++)
        fprintf(f, "gpurun:requests_total{finish_reason=\"%s\"} %lld\n", reason[i],
                (long long)m->n_reason[i]);
    for (int i = 0; i < N_HISTOGRAM; i++) {
        put_head(f, histogram_name[i].name, "histogram", histogram_name[i].help);
        put_histogram(f, histogram_name[i].name, "", gr_bound_seconds, &m->histogram[i]);
    }
    pthread_mutex_unlock(&m->lock);
}

void gr_serve_metrics(struct gr_exchange *x, void *user)
{
    struct gr_server *s = user;
    struct gr_scheduler_stats stats = {0};
    char *text = NULL;
    size_t n = 0;
    if (s->scheduler)
        stats = gr_scheduler_stats(s->scheduler);
    if (s->embedder)
        gr_embedder_add_stats(s->embedder, &stats);
    FILE *f = open_memstream(&text, &n);
    if (f) {
        put_scheduler(f, &stats);
        put_steps(f, &stats);
        put_devices(f, s);
        put_results(f, s->metrics);
    }
    if (!f || fclose(f)) {
        free(text);
        gr_refuse_as(x, 503, NULL, NULL, gr_status_text(GR_E_NOMEM_HOST));
        return;
    }
    gr_exchange_answer(x, 200, TYPE, text, n);
}
