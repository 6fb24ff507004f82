#include "base_file.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/say.h"

#define MAGIC "_logits_"
#define N_MAGIC 8
#define N_HEAD 4    /* uint16 of scale and least */
#define RANGE 16.0f /* range of log p below the likeliest that q represents */
#define MOST_Q 65535
#define TOKENS_AT_ONCE ((size_t)1 << 20)

static size_t row_items(const struct gr_base_file *b)
{
    return N_HEAD + ((size_t)b->n_vocab + 1) / 2 * 2;
}

static size_t rows_of_chunk(const struct gr_base_file *b)
{
    return (size_t)(b->n_ctx - 1 - b->n_ctx / 2);
}

static int make_row(struct gr_base_file *b)
{
    b->row = calloc(row_items(b), sizeof *b->row);
    return b->row ? 0 : gr_say_no_memory();
}

/* ---- reading ---- */

static int damaged(const struct gr_base_file *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static int damaged(const struct gr_base_file *b, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    gr_say_error("%s: %s; make it anew, with --kl-divergence-base", b->path, what);
    return gr_status_exit(GR_E_CORRUPT);
}

static int cannot_read(const struct gr_base_file *b)
{
    gr_say_error("cannot read '%s': %s", b->path, strerror(errno));
    return gr_status_exit(GR_E_IO);
}

static int take(struct gr_base_file *b, void *to, size_t n, const char *what)
{
    errno = 0;
    if (fread(to, 1, n, b->in) == n)
        return 0;
    return ferror(b->in) ? cannot_read(b) : damaged(b, "the file ends in its %s", what);
}

static int read_sizes(struct gr_base_file *b)
{
    char magic[N_MAGIC];
    int32_t size[3];
    int rc = take(b, magic, sizeof magic, "first bytes");
    if (!rc && memcmp(magic, MAGIC, sizeof magic) != 0)
        rc = damaged(b, "no file of log-probabilities: it begins otherwise than with " MAGIC);
    if (!rc)
        rc = take(b, size, sizeof size, "first bytes");
    if (rc)
        return rc;
    b->n_ctx = size[0], b->n_vocab = size[1], b->n_chunk = size[2];
    if (b->n_ctx < 4 || b->n_ctx > 1 << 24)
        return damaged(b, "chunks of 4 to %d tokens expected, of %d found", 1 << 24, b->n_ctx);
    if (b->n_chunk < 1 || b->n_vocab < 1)
        return damaged(b, "chunks and a vocabulary expected, %d chunks and %d tokens found",
                       b->n_chunk, b->n_vocab);
    return 0;
}

/* Checks that the file has exactly the size that its header implies; for pipes this is known at the
 * end. */
static int check_size(struct gr_base_file *b)
{
    struct stat st;
    uint64_t n_row = (uint64_t)b->n_chunk * rows_of_chunk(b), rows, all;
    uint64_t before = N_MAGIC + 12 + 4 * (uint64_t)b->n_chunk * (uint64_t)b->n_ctx;
    if (__builtin_mul_overflow(n_row, 2 * (uint64_t)row_items(b), &rows) ||
        __builtin_add_overflow(rows, before, &all) || all > INT64_MAX)
        return damaged(b, "no file can hold %d chunks of %d tokens with %d log-probabilities each",
                       b->n_chunk, b->n_ctx, b->n_vocab);
    if (fstat(fileno(b->in), &st) != 0)
        return cannot_read(b);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size == all)
        return 0;
    return damaged(b, "%llu bytes expected, %lld found", (unsigned long long)all,
                   (long long)st.st_size);
}

/* Reads the tokens; memory grows with the data read, not with the sizes in the header. */
static int read_tokens(struct gr_base_file *b)
{
    size_t all = (size_t)b->n_chunk * (size_t)b->n_ctx, n = 0;
    int rc = 0;
    while (n < all && !rc) {
        size_t more = all - n < TOKENS_AT_ONCE ? all - n : TOKENS_AT_ONCE;
        int32_t *grown = realloc(b->token, (n + more) * sizeof *grown);
        if (!grown)
            return gr_say_no_memory();
        b->token = grown;
        rc = take(b, b->token + n, more * sizeof *grown, "tokens");
        n += more;
    }
    return rc;
}

int gr_base_read(struct gr_base_file *b, const char *path)
{
    *b = (struct gr_base_file){.path = path, .in = fopen(path, "rb")};
    if (!b->in)
        return cannot_read(b);
    int rc = read_sizes(b);
    if (!rc)
        rc = check_size(b);
    return rc ? rc : read_tokens(b);
}

int gr_base_fits(const struct gr_base_file *b, int32_t n_vocab)
{
    if (b->n_vocab != n_vocab) {
        gr_say_error("%s: log-probabilities of a vocabulary of %d tokens, the model has %d: a "
                     "model with the same vocabulary is expected",
                     b->path, b->n_vocab, n_vocab);
        return gr_status_exit(GR_E_CORRUPT);
    }
    for (size_t i = 0; i < (size_t)b->n_chunk * (size_t)b->n_ctx; i++)
        if (b->token[i] < 0 || b->token[i] >= n_vocab)
            return damaged(b, "token %zu is %d, of a vocabulary of %d", i, b->token[i], n_vocab);
    return 0;
}

static int read_row(struct gr_base_file *b)
{
    int rc = b->row ? 0 : make_row(b);
    return rc ? rc : take(b, b->row, row_items(b) * sizeof *b->row, "log-probabilities");
}

int gr_base_skip(struct gr_base_file *b, int32_t n)
{
    size_t rows = (size_t)n * rows_of_chunk(b);
    int rc = 0;
    if (fseeko(b->in, (off_t)(rows * row_items(b) * sizeof *b->row), SEEK_CUR) == 0)
        return 0;
    for (size_t i = 0; i < rows && !rc; i++)
        rc = read_row(b);
    return rc;
}

int gr_base_next(struct gr_base_file *b, struct gr_base_row *row)
{
    int rc = read_row(b);
    if (rc)
        return rc;
    memcpy(&row->scale, b->row, sizeof row->scale);
    memcpy(&row->least, b->row + 2, sizeof row->least);
    row->q = b->row + N_HEAD;
    float most = row->least + row->scale * MOST_Q;
    if (row->scale >= 0 && isfinite(row->least) && most <= 1e-3f)
        return 0;
    return damaged(b, "log-probabilities from %g to %g", (double)row->least, (double)most);
}

/* ---- writing ---- */

int gr_base_begin(struct gr_base_file *b, const int32_t *token, bool overwrite)
{
    const int32_t size[3] = {b->n_ctx, b->n_vocab, b->n_chunk};
    int rc = make_row(b);
    if (rc)
        return rc;
    int status = gr_output_open(&b->out, b->path, overwrite ? 0 : GR_OUTPUT_KEEP);
    if (!status)
        status = gr_output_put(b->out, MAGIC, N_MAGIC);
    if (!status)
        status = gr_output_put(b->out, size, sizeof size);
    if (!status)
        status =
            gr_output_put(b->out, token, (size_t)b->n_chunk * (size_t)b->n_ctx * sizeof *token);
    return status ? gr_say_status(status) : 0;
}

int gr_base_put(struct gr_base_file *b, const float *logits, double log_sum)
{
    float most = logits[0], least = logits[0];
    for (int32_t i = 1; i < b->n_vocab; i++) {
        most = logits[i] > most ? logits[i] : most;
        least = logits[i] < least ? logits[i] : least;
    }
    least = least < most - RANGE ? most - RANGE : least;
    float scale = (most - least) / MOST_Q, least_log = (float)((double)least - log_sum);
    memcpy(b->row, &scale, sizeof scale);
    memcpy(b->row + 2, &least_log, sizeof least_log);
    for (int32_t i = 0; i < b->n_vocab; i++) {
        float q = scale > 0 && logits[i] > least ? (logits[i] - least) / scale + 0.5f : 0;
        b->row[N_HEAD + i] = q < MOST_Q ? (uint16_t)q : MOST_Q;
    }
    int status = gr_output_put(b->out, b->row, row_items(b) * sizeof *b->row);
    return status ? gr_say_status(status) : 0;
}

int gr_base_commit(struct gr_base_file *b)
{
    int status = gr_output_commit(&b->out);
    return status ? gr_say_status(status) : 0;
}

void gr_base_close(struct gr_base_file *b)
{
    if (b->in)
        fclose(b->in);
    gr_output_abort(&b->out);
    free(b->token);
    free(b->row);
    *b = (struct gr_base_file){.path = NULL};
}
