/* Tests of the emulated driver, by its entry points as a program finds them: the library is opened
 * and its symbols looked up. */
#ifndef TESTS_EMU_DRIVER_DRIVER_H
#define TESTS_EMU_DRIVER_DRIVER_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cuda/driver.h"
#include "tests/emu/driver/kernels.h"
#include "tests/emu/libcuda.h"

extern struct gr_cuda_driver cu;
extern struct emu_control { /* libcuda.h */
    int (*configure)(const char *options);
    int (*fail)(const char *symbol, int64_t nth, int error);
    int64_t (*count)(const char *symbol);
    int64_t (*bytes)(const char *symbol);
    int64_t (*live)(const char *kind);
    const char *(*report)(void);
    void (*report_clear)(void);
} emu;

extern int n_failed;
void failed(const char *file, int line, const char *what, long long got, long long expected);
/* True when the report has this text ("": nothing was reported); clears the report. */
bool reported(const char *text);

#define EXPECT(is)                                                                                 \
    do {                                                                                           \
        if (!(is))                                                                                 \
            failed(__FILE__, __LINE__, #is, 0, 1);                                                 \
    } while (0)
#define EXPECT_EQ(is, expected)                                                                    \
    do {                                                                                           \
        long long got_ = (long long)(is), expected_ = (long long)(expected);                       \
        if (got_ != expected_)                                                                     \
            failed(__FILE__, __LINE__, #is, got_, expected_);                                      \
    } while (0)
#define OK(call) EXPECT_EQ(call, CU_OK)
#define REPORTED(text) EXPECT(reported(text))

/* Fixture of most tests: a configured driver, and the context of device 0 with its contents. */
struct bench {
    cu_context context;
    cu_module module;
    cu_function add;
    cu_stream a, b;
    cu_event event;
    cu_pointer x, y; /* `n` numbers each */
    uint32_t *host;  /* pinned, n of them */
};
enum { n = 1024 };
struct bench bench_open(const char *options);
void bench_close(struct bench *t); /* and nothing is left */
/* y[i] = x[i] + number on the stream. */
int launch_add(const struct bench *t, cu_stream s, cu_pointer y, cu_pointer x, uint32_t number);
/* Captures launches of x = x + 1 in stream a: count of them. */
cu_graph capture_adds(const struct bench *t, int count);
void fill_host(const struct bench *t, uint32_t first); /* first, first + 1, .. */
/* Number of elements of host memory that are not first + i. */
int n_wrong(const uint32_t *p, uint32_t first);

void test_entries(void);
void test_order(void);
void test_capture(void);
void test_faults(void);
void test_nccl(void);
void test_cublaslt(void);
void test_far(void);
/* Is the last rank of a case of test_far(), in a process of its own; what failed. */
int far_rank(const char *name, const char *id);
extern const char *library_path;

#endif
