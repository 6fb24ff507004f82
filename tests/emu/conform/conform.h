/* Conformance of kernels/ptx.cuh, mma.cuh and wgmma.cuh: the raw result of every wrapper against
 * what the PTX text says, computed here and without looking at the models of the emulated device.
 * The same runner launches on a GPU and on the emulated one. */
#ifndef TESTS_EMU_CONFORM_CONFORM_H
#define TESTS_EMU_CONFORM_CONFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/driver.h"
#include "tests/emu/conform/args.h"

struct conform; /* a device, and the case that runs */

enum { CONFORM_WHY = 2048 }; /* bytes of what is said about a case */

/* A tensor for args.map: rows of 16-bit integers, in `in` or in `out`. Row and plane strides in
 * bytes; rank 2 or 3; swizzle 0, 32, 64 or 128 bytes. */
struct conform_map {
    bool of_out;
    int rank;
    uint64_t dim[3], stride[2];
    uint32_t box[3];
    int swizzle;
};

/* A launch: `in` is uploaded, so is `out` before and comes back after. `then`: a kernel launched
 * behind it with the same arguments, which may begin early. */
struct conform_launch {
    const char *kernel, *then;
    unsigned blocks, threads, smem;
    const void *in;
    size_t in_bytes;
    void *out;
    size_t out_bytes;
    const struct conform_map *map;
    int32_t p[16];
};

/* One line of the result: `run` returns 0, or 1 with what it found in conform_fail(). */
struct conform_case {
    const char *wrapper;
    int cc; /* compute capability: 80 or later; 90 and no other, as what later ones run is PTX for
               80 */
    int (*run)(struct conform *c, const char *wrapper);
};
extern const struct conform_case conform_numbers[], conform_copies[], conform_products[],
    conform_builtins[];
/* The lists of the program (lists.c), each with {0} at its end; the last one is NULL. */
extern const struct conform_case *const conform_lists[];

/* Opens the first device of a driver library, once in a process; inputs are drawn by the seed.
 * Returns 0, or 1 with the reason in the state. */
int conform_open(struct conform **c, const char *library, uint32_t seed);
void conform_close(struct conform *c);

/* State of the device under test; the texts are valid until the next call. */
struct conform_state {
    int cc;           /* compute capability: 90 */
    bool lost;        /* by an error that every later call has as well */
    const char *name; /* "device NAME, compute capability 9.0" */
    const char *why;  /* of the last failure */
};
struct conform_state conform_state(const struct conform *c);

int conform_run(struct conform *c, const struct conform_launch *l);
int conform_fail(struct conform *c, const char *form, ...) __attribute__((format(printf, 2, 3)));
/* 0 when the n elements of `bytes` bytes are the same bits; otherwise names the first that differs.
 */
int conform_same(struct conform *c, const void *got, const void *expected, size_t n, size_t bytes);

/* Numbers that follow from the state and the program's SEED alone: of 32 bits, and in [lo, hi]. */
uint32_t conform_random(uint32_t *state);
int conform_random_in(uint32_t *state, int lo, int hi);

/* A format of binary floating point by its definition: the value of bits, and the bits nearest to a
 * value, ties to even. Independent of tests/emu/device. */
struct conform_format {
    int fraction, emin, emax; /* bits behind the point; exponents of normal numbers */
};
extern const struct conform_format conform_f16, conform_bf16;
double conform_value(const struct conform_format *f, uint16_t bits);
uint16_t conform_bits(const struct conform_format *f, double value); /* NaN: 0x7fff */

#endif
