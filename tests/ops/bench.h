/* How bench_ops times a node: on the CPU where its tensors are, or on a GPU that gets copies. */
#ifndef TESTS_OPS_BENCH_H
#define TESTS_OPS_BENCH_H

#include <stdbool.h>

#include "gr/backend.h"

struct bench {
    struct gr_backend *b;      /* of the CPU: nodes are built in its memory */
    struct gr_backend *device; /* NULL: times are the CPU's */
    struct gr_device_info info;
    int n_threads, n_tok, repeats;
    bool json;
    const char *op, *type;
};

/* What a node is called and what it does at least. */
struct bench_row {
    const char *op, *type;
    char shape[64];
    double bytes; /* weights or cache that are read once */
    double macs;
};

/* Times the node and prints a row. */
void bench_measure(struct bench *k, const struct bench_row *row, const struct gr_node *node);
/* The same on the device, whose result is compared with the CPU's. */
void bench_measure_device(struct bench *k, const struct bench_row *row, const struct gr_node *node);
void bench_die(const char *what);

#endif
