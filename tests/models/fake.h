/* Devices made of the CPU backend, on a machine without any: what runs over several devices is
 * tested on them. They are unkind on purpose. Their memory cannot be touched but from within their
 * own calls, is full of NaN when it is new, and is limited; work that is queued happens at the last
 * moment, so that host memory which changed too early shows; a segment may only name memory of its
 * device. */
#ifndef TESTS_MODELS_FAKE_H
#define TESTS_MODELS_FAKE_H

#include "model/model.h"

enum { FAKE_MAX = 3 };

/* From now on there are n devices FAKE0 .. with so many bytes each, and no other kind. */
void fake_use(int n, uint64_t bytes);
/* Device i has so many bytes, all others what they had. */
void fake_resize(int i, uint64_t bytes);
/* Says why device i cannot be used. */
void fake_break(int i, const char *why);
/* Pieces of device and pinned memory taken so far, on all devices. */
int64_t fake_allocs(void);
/* Bytes of device i that are taken, scratch of its segments too, and the most there ever were. */
uint64_t fake_used(int i, uint64_t *peak);
/* Segments of device i so far that had weights offloaded for them. */
int64_t fake_offloads(int i);
/* True when a weight, by its address on the host, is one of those requested last. */
bool fake_asked(struct gr_backend *b, const void *host);
/* Weights that have not come yet. */
int64_t fake_coming(int i);
/* Times that the host has waited for all work queued on device i. */
int64_t fake_waits(int i);
/* Segments run so far on device i. */
int64_t fake_runs(int i);

#endif
