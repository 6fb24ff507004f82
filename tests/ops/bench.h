/* Timing of a node by bench_ops: on the CPU where its tensors are, or on a GPU that gets copies. */
#ifndef TESTS_OPS_BENCH_H
#define TESTS_OPS_BENCH_H

#include <stdbool.h>

#include "base/alloc.h"
#include "gr/backend.h"

struct bench {
    struct gr_backend *b;       /* of the CPU: nodes are built in its memory */
    struct gr_backend *device;  /* NULL: times are the CPU's */
    struct gr_backend *library; /* the same, with products by cuBLASLt; NULL: there are none */
    struct gr_vec timed;        /* products that both have computed */
    struct gr_device_info info;
    int n_threads, n_tok, repeats;
    bool json, tiny;
    const char *op, *type, *shape; /* NULL: all */
    uint64_t n_filled;
};

/* Name of a node, and its least work. */
struct bench_row {
    const char *op, *type;
    char shape[64];
    double bytes; /* weights or cache that are read once, or read and written */
    double macs;
    int n_tok; /* 0: of -n */
};

bool bench_wanted(const struct bench *k, const char *op, const char *type);
struct gr_ten bench_tensor(struct bench *k, uint32_t dtype, int64_t batch, int64_t rows,
                           int64_t cols);
struct gr_ten bench_filled(struct bench *k, uint32_t dtype, int64_t batch, int64_t rows,
                           int64_t cols);
/* The same of a cache, planes of the quantised types. */
struct gr_ten bench_cache_rows(struct bench *k, uint32_t dtype, int64_t rows, int64_t cols);
void bench_free(struct bench *k, struct gr_node *node);

/* Attention, what moves cells, and the sampler. */
void bench_cache(struct bench *k);

/* Before the tensors of a row are made: whether it is to be measured. On a device it is a case of
 * tests/support/cases.h, "bench OP TYPE SHAPE N_TOK". Its data is of the row alone. */
bool bench_begin(struct bench *k, const struct bench_row *row);
/* Times the node and prints the row that has begun. */
void bench_measure(struct bench *k, const struct bench_row *row, const struct gr_node *node);
/* The same on a device, k->device or k->library; returns the median of its seconds. */
double bench_measure_device(struct bench *k, struct gr_backend *device, const struct bench_row *row,
                            const struct gr_node *node);
/* Keeps the seconds of a product with w of `type`, by own kernels and by the library. */
void bench_shape_timed(struct bench *k, const char *type, const struct gr_ten *w, double own,
                       double library);
/* Writes the table of shapes to a file, for devices of compute capability cc. */
void bench_shapes_write(struct bench *k, const char *path, int cc);
/* ||device - f64|| / ||f64||, of 64 rows of a product's matrix, of 64 pairs of a token and a head
 * of attention; of other operations ||device - CPU|| / ||CPU|| over all that they write, for which
 * the host's node is run. Outputs that are not finite make it NaN. */
double bench_error(struct bench *k, const struct gr_node *host, const struct gr_node *device);
/* Ends the program, and the row that has begun. */
void bench_die(const char *what);

#endif
