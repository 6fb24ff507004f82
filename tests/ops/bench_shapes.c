/* The table of shapes at which products are to be cuBLASLt's (cuda/matmul_shapes.def), of those
 * that were timed by own kernels and by the library side by side. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "ops/bench.h"

struct timed {
    char type[16];
    long long rows, cols;
    int n_tok;
    bool faster; /* the library */
};

/* A difference below is none: tables of two runs should be the same. */
#define LEAST_GAIN 1.03

void bench_shape_timed(struct bench *k, const char *type, const struct gr_ten *w, double own,
                       double library)
{
    struct timed t = {
        .rows = w->rows, .cols = w->cols, .n_tok = k->n_tok, .faster = own > library * LEAST_GAIN};
    snprintf(t.type, sizeof t.type, "%s", type);
    for (char *p = t.type; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    if (gr_vec_append(&k->timed, &t, 1, sizeof t))
        bench_die("no memory");
}

static int by_shape(const void *a, const void *b)
{
    const struct timed *p = a, *q = b;
    int type = strcmp(p->type, q->type);
    return type                 ? type
           : p->rows != q->rows ? (p->rows > q->rows) - (p->rows < q->rows)
           : p->cols != q->cols ? (p->cols > q->cols) - (p->cols < q->cols)
                                : p->n_tok - q->n_tok;
}

/* The number of tokens of those at [lo, hi), of one shape, from which on the library is faster each
 * time; 0: not even at the most. */
static int faster_from(const struct timed *t, size_t lo, size_t hi)
{
    int n = 0;
    for (size_t i = hi; i > lo && t[i - 1].faster; i--)
        n = t[i - 1].n_tok;
    return n;
}

static bool same_shape(const struct timed *a, const struct timed *b)
{
    return !strcmp(a->type, b->type) && a->rows == b->rows && a->cols == b->cols;
}

void bench_shapes_write(struct bench *k, const char *path, int cc)
{
    struct timed *t = k->timed.data;
    FILE *f = fopen(path, "w");
    if (!f)
        bench_die("the table of shapes cannot be written");
    if (k->timed.n)
        qsort(t, k->timed.n, sizeof *t, by_shape);
    fprintf(f,
            "/* Products that `--matmul auto` computes by cuBLASLt: SHAPE(cc, type, rows, cols, "
            "n_tok). Devices of\n * compute capability cc, weights [rows, cols] of a storage type, "
            "from n_tok tokens on. Measured on\n * %s by `bench_ops -matmul-shapes FILE`. */\n",
            k->info.description);
    for (size_t lo = 0, hi; lo < k->timed.n; lo = hi) {
        for (hi = lo + 1; hi < k->timed.n && same_shape(&t[lo], &t[hi]);)
            hi++;
        int n = faster_from(t, lo, hi);
        if (n)
            fprintf(f, "SHAPE(%d, %s, %lld, %lld, %d)\n", cc, t[lo].type, t[lo].rows, t[lo].cols,
                    n);
    }
    if (fclose(f))
        bench_die("the table of shapes cannot be written");
}
