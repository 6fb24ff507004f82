/* A backend on the emulated device, and what that device counts and finds; t_cuda_gpu has the same
 * tests on a GPU, where nothing is counted and what asks for an emulated device's options is
 * skipped. */
#ifndef TESTS_CUDA_FIXTURE_H
#define TESTS_CUDA_FIXTURE_H

#include <stdbool.h>

#include "emu/libcuda.h"
#include "gr/backend.h"

bool emulated(void);

/* The emulated driver's own functions, from the library that the backend opens; on a GPU, ones that
 * do nothing. */
struct emu {
    int (*configure)(const char *options);
    int (*fail)(const char *symbol, int64_t nth, int error);
    int (*hold)(const char *symbol);
    int64_t (*count)(const char *symbol);
    int64_t (*bytes)(const char *symbol);
    int64_t (*live)(const char *kind);
    const char *(*report)(void);
    void (*report_clear)(void);
};
const struct emu *emu(void);

/* Expects what emu() counts to be so. */
#define expect_count(found, expected)                                                              \
    cr_expect(!emulated() || (found) == (expected), #found ": %lld", (long long)(found))

/* Ends a test that needs the emulated device as skipped where there is a GPU. */
void needs_emulated(void);
/* Configures the device, once in a test: options of tests/emu (an emulated one is needed), or NULL.
 * When queued work runs is what GR_TEST_ORDER of the environment says; "order=late" otherwise. */
void device_configure(const char *options);
/* The same, and opens a backend on it. */
struct gr_backend *device_open(const char *options, struct gr_device_opt opt);
/* Closes it: nothing may be left on the device, and nothing reported. */
void device_close(struct gr_backend **b);

/* f32 [1, rows, cols] in fresh device memory, with these values unless NULL. */
struct gr_ten device_ten(struct gr_backend *b, int64_t rows, int64_t cols, const float *values);
/* Its values; free with gr_free. */
float *device_values(struct gr_backend *b, const struct gr_ten *t);

/* Nodes of the launchers of launchers.c: y = x + 1 by way of scratch memory (ACT), and y = (a + 1)
 * * b with a + 1 derived (GLU); the other operations are as in the library or refused. */
struct gr_node node_act(struct gr_ten x, struct gr_ten y);
struct gr_node node_glu(struct gr_ten a, struct gr_ten b, struct gr_ten y);
struct gr_node node_binary(enum gr_binary_kind kind, struct gr_ten a, struct gr_ten b,
                           struct gr_ten y);
struct gr_node node_unpack(struct gr_ten packed, struct gr_ten rows);
/* Whatever launchers_ask says. */
struct gr_node node_matmul(struct gr_ten x, struct gr_ten y);

/* A segment of these nodes, made. */
void *device_segment(struct gr_backend *b, const struct gr_node *node, int n_node);

#endif
