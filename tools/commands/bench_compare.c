/* gpurun bench --compare: speeds beside those of an earlier result, of gpurun or llama-bench. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

#define EXIT_SLOWER 7 /* a check failed */

struct gr_bench_old {
    const char *path;
    json_t *rows; /* objects with avg_ts */
    int n_test, n_found, n_slower;
};

/* Adds a row, or a list of rows. */
static void take(struct gr_bench_old *old, json_t *value)
{
    size_t i;
    json_t *row;
    if (json_is_array(value)) {
        json_array_foreach(value, i, row)
        {
            if (json_number_value(json_object_get(row, "avg_ts")) > 0)
                json_array_append(old->rows, row);
        }
    } else if (json_number_value(json_object_get(value, "avg_ts")) > 0) {
        json_array_append(old->rows, value);
    }
}

/* Reads the values of the file: one list (json), or one object per line (jsonl). */
static int read_values(struct gr_bench_old *old, FILE *f)
{
    json_error_t error;
    for (int c; (c = getc(f)) != EOF;) {
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
            continue;
        ungetc(c, f);
        json_t *value = json_loadf(f, JSON_DISABLE_EOF_CHECK, &error);
        if (!value) {
            gr_say_error("--compare %s: %s; JSON as gpurun bench -o json or jsonl prints it is "
                         "expected",
                         old->path, error.text);
            return GR_EXIT_USAGE;
        }
        take(old, value);
        json_decref(value);
    }
    if (json_array_size(old->rows))
        return 0;
    gr_say_error("--compare %s: no row with avg_ts in it; gpurun bench -o json prints such",
                 old->path);
    return GR_EXIT_USAGE;
}

int gr_bench_old_read(struct gr_bench_old **out, const char *path)
{
    FILE *f = fopen(path, "r");
    *out = NULL;
    if (!f) {
        gr_say_error("--compare %s: %s; gpurun bench -o json > %s makes it", path, strerror(errno),
                     path);
        return gr_status_exit(GR_E_IO);
    }
    struct gr_bench_old *old = *out = calloc(1, sizeof *old);
    int rc = 5;
    if (old)
        old->path = path, old->rows = json_array();
    if (old && old->rows)
        rc = read_values(old, f);
    else
        gr_say_error("no memory for %s", path);
    fclose(f);
    return rc;
}

void gr_bench_old_free(struct gr_bench_old *old)
{
    if (old)
        json_decref(old->rows);
    free(old);
}

/* A whole number of a row; `otherwise` where it has none, as rows of llama-bench. */
static int64_t number(const json_t *row, const char *name, int64_t otherwise)
{
    const json_t *v = json_object_get(row, name);
    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

static bool is_word(const json_t *row, const char *name, const char *word)
{
    const char *text = json_string_value(json_object_get(row, name));
    return text && !strcmp(text, word);
}

/* Returns whether a row is of the same test on the same model. Model sizes may differ by 1 %, since
 * programs count weights differently. */
static bool is_same(const json_t *row, const struct gr_bench_result *r)
{
    const struct gr_bench_test *t = &r->test;
    int64_t size = (int64_t)r->info->n_bytes, was = number(row, "model_size", -1);
    return number(row, "n_prompt", -1) == t->n_prompt && number(row, "n_gen", -1) == t->n_gen &&
           number(row, "n_depth", 0) == t->n_depth && number(row, "n_seq", 1) == t->n_seq &&
           number(row, "n_depth_others", 0) == t->n_other &&
           number(row, "model_n_params", -1) == (int64_t)r->info->n_params && was >= 0 &&
           llabs(size - was) <= size / 100 && is_word(row, "type_k", r->o->cache_type_k) &&
           is_word(row, "type_v", r->o->cache_type_v);
}

/* Returns how many other settings agree; an equal file name outweighs them all. */
static int agreement(const json_t *row, const struct gr_bench_result *r)
{
    return 8 * is_word(row, "model_filename", r->o->model ? r->o->model : "") +
           (number(row, "n_threads", -1) == r->n_threads) +
           (number(row, "n_batch", -1) == r->o->batch_size) +
           (number(row, "n_ubatch", -1) == r->o->ubatch_size) +
           (number(row, "n_gpu_layers", -1) == r->info->n_gpu_layers);
}

void gr_bench_old_find(struct gr_bench_old *old, struct gr_bench_result *r)
{
    size_t i;
    json_t *row;
    char name[64];
    double dev, now = gr_bench_mean(r, &dev);
    int best = -1;
    json_array_foreach(old->rows, i, row)
    {
        int agrees = is_same(row, r) ? agreement(row, r) : -1;
        if (agrees >= best && agrees >= 0) /* of equal ones the last */
            best = agrees, r->was_ts = json_number_value(json_object_get(row, "avg_ts"));
    }
    old->n_test++;
    old->n_found += best >= 0;
    if (best >= 0 && now < r->was_ts * (1 - (double)r->o->threshold / 100)) {
        gr_say_error("%s: %.2f tokens a second, %.1f %% less than the %.2f of %s",
                     gr_bench_name(&r->test, name, sizeof name), now, 100 * (1 - now / r->was_ts),
                     r->was_ts, old->path);
        old->n_slower++;
    }
}

int gr_bench_old_judge(const struct gr_bench_old *old)
{
    if (!old->n_found) {
        gr_say_error("--compare %s: it has none of these tests of this model with these cache "
                     "types, so nothing was compared",
                     old->path);
        return GR_EXIT_USAGE;
    }
    if (old->n_found < old->n_test)
        gr_say_warning("%d of %d tests are not in %s", old->n_test - old->n_found, old->n_test,
                       old->path);
    return old->n_slower ? EXIT_SLOWER : 0;
}
