/* Cases of operations: one call site builds the tensors of a node, says what must come out and how
 * far off it may be, and runs it on any backend.
 *
 * A case owns host buffers; tensors are views of them with NaN bytes around. ops_run copies the
 * buffers to a backend, runs the node as a segment of its own and copies them back. ops_check does
 * so for every level and thread count of the CPU (unless GR_TEST_OPS=gpu), and for every GPU
 * (t_ops_emu: for the emulated one alone), and compares: outputs with what was expected, every
 * other byte with what it was. Each is a case of tests/support/cases.h, in the group SUITE/TEST. */
#ifndef TESTS_OPS_OPS_H
#define TESTS_OPS_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "cpu/cpu.h"
#include "gr/backend.h"

enum { OPS_MAX_BUF = 20, OPS_MAX_OUT = 2 };

enum ops_data { OPS_NORMAL, OPS_TINY, OPS_HUGE, OPS_ZERO, OPS_SPIKES, OPS_N_DATA };

struct ops_buf {
    char *host, *result;
    void *device;
    size_t bytes;
    bool weight; /* on a device that keeps weights in a layout of its own: not copied back */
};

/* Bounds of one output: an element [batch, row, col] is want +- tol_ref on the reference level, +-
 * tol_fast on the others. want = NaN: its bytes must not change. */
struct ops_out {
    struct gr_ten ten;
    double *want, *tol_ref, *tol_fast;
    double squares;     /* expected sum of squared errors on the others, where errors are many and
                           random; 0 = unknown */
    double *tol_device; /* of a GPU where it is not tol_fast (ops_device_tolerance), or NULL .. */
    double squares_device; /* .. and its squares, 0 = unknown */
};

struct ops_case {
    char label[200];
    const char *name; /* in the journal, from ops_begin on */
    char why[1024];   /* the first thing that is wrong; "": nothing */
    bool lost;        /* the device failed and can only be closed */
    struct gr_node node;
    struct ops_buf buf[OPS_MAX_BUF];
    int n_buf;
    struct ops_out out[OPS_MAX_OUT];
    int n_out;
    bool same_bits; /* a GPU's results are the reference's, bit for bit */
    struct gr_rng rng;
    void *arena; /* struct gr_arena */
};

void ops_case_init(struct ops_case *c, enum gr_op op, uint64_t seed, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void ops_case_fini(struct ops_case *c);

/* A tensor [batch, rows, cols] of NaN bytes, its rows further apart than they need to be. */
struct gr_ten ops_new(struct ops_case *c, uint32_t dtype, int64_t batch, int64_t rows,
                      int64_t cols);
/* The same filled with data; quantised types get random quants and sane scales, whose values are
 * about `data` large. */
struct gr_ten ops_random(struct ops_case *c, uint32_t dtype, int64_t batch, int64_t rows,
                         int64_t cols, enum ops_data data);
/* The same for a cache [1, rows, cols], which has planes of the quantised types, the last row at
 * the very end of its memory; normal data. */
struct gr_ten ops_cache(struct ops_case *c, uint32_t dtype, int64_t rows, int64_t cols);
struct gr_ten ops_random_cache(struct ops_case *c, uint32_t dtype, int64_t rows, int64_t cols);
/* One row [1, 1, n] of integers in [lo, hi), which is all of its memory. */
struct gr_ten ops_integers(struct ops_case *c, int64_t n, int32_t lo, int32_t hi);

/* All values of a tensor, [batch * rows * cols], freed with the case. */
double *ops_values(struct ops_case *c, const struct gr_ten *t);
double *ops_doubles(struct ops_case *c, int64_t n);

/* Declares an output; the caller fills want, and adds to the tolerances, which begin as the
 * rounding of want to f32 (call ops_round_to_f32 when want is there). */
struct ops_out *ops_expect(struct ops_case *c, const struct gr_ten *t);
/* Sets both tolerances to half a unit in the last place of want, and a little for f64. */
void ops_round_to_f32(struct ops_out *o);

/* Gives a GPU tolerances of its own: zeros, to be filled in. */
double *ops_device_tolerance(struct ops_case *c, struct ops_out *o);

static inline int64_t ops_count(const struct gr_ten *t)
{
    return t->batch * t->rows * t->cols;
}

/* Runs the node on a backend; results stand in buf[].result. Returns 0, or 1 with what is wrong;
 * ops_run ends the test then. */
int ops_try(struct ops_case *c, struct gr_backend *b);
void ops_run(struct ops_case *c, struct gr_backend *b);

/* A case of the test: whether it is to be run; what is wrong with it, of which the first is kept
 * (returns 1); its end, which fails the test and goes on, unless the device is lost. */
bool ops_begin(struct ops_case *c);
int ops_wrong(struct ops_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ops_end(struct ops_case *c);

/* Runs it everywhere and compares, a case of the test. */
void ops_check(struct ops_case *c);
/* True when the CPU's levels are tested, and the number of GPUs; the test ends when there is
 * neither. */
bool ops_on_cpu(void);
int ops_n_device(void);
/* GPU i, opened once in a process and never closed; NULL with what is wrong with the case. */
struct gr_backend *ops_device(struct ops_case *c, int i);

/* Error of x in a cache type, in a block whose largest magnitude is m: half a step, the rounding of
 * the step itself to f16, and values below f16's smallest step. Q4_0's levels end at 7 on one side:
 * a whole step there. */
double ops_storage_error(uint32_t type, double x, double m);
/* The largest magnitude in the block of 32 of a row that has column `col`. */
double ops_block_max(const double *x, int64_t col);
/* A row of n columns in heads of d, rotated by cs (kind: enum gr_rope_kind); terms [n]: the two
 * products without their signs. */
void ops_rotate(const double *x, const double *cs, int64_t n, int64_t d, int64_t n_rot, int kind,
                double *y, double *terms);

/* Storage types that a cache can have, and all that weights can have; each ends with -1. */
/* ops_layout_types: those of the weights' that differ in how blocks lie; the others share that with
 * one of these. */
extern const int ops_cache_types[], ops_weight_types[], ops_layout_types[];

#endif
