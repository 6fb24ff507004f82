/* Cases of whole models on a GPU: what is wrong with one is kept, and the test goes on with the
 * next, unless the device is lost. */
#ifndef TESTS_DEVICE_DEVICE_H
#define TESTS_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "support/tiny.h"

/* Begins case "SUITE/TEST/label"; false: it is not to be run. The first one that is opens the GPU
 * for as long as the test lasts, so that its sessions share a context; without a GPU the test is
 * skipped. */
bool device_begin(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Keeps the first thing that is wrong with the case; returns 1. */
int device_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Ends it; fails the test when something is wrong, and ends that when the device is lost. */
void device_end(void);

/* `.fini` of each suite: closes the GPU; one context was made. */
void device_release(void);

/* "CUDA0,CUDA0,CUDA0", the GPU n times, once for 0. */
void device_names(int32_t n, char *names, size_t size);

/* A session of a model, with a text where it has an encoder. Returns 0, or 1 with what is wrong and
 * *s NULL. */
int device_session(struct gr_session **s, struct gr_model *m, const struct gr_session_params *p);

#endif
