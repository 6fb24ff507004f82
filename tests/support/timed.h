/* Devices whose work takes a given time, made of the CPU backend: pipelines of many stages are
 * tried and measured on a machine with few processors. A segment is queued, and done that time
 * after the one before it; download and sync sleep until everything queued is done, as they would
 * wait for a GPU. */
#ifndef TESTS_SUPPORT_TIMED_H
#define TESTS_SUPPORT_TIMED_H

#include <stdbool.h>
#include <stdint.h>

enum { TIMED_MAX = 16 };

/* From now on there are n devices TIMED0 .. and no other kind. segment_ns: time of a segment.
 * compute: segments are also run on the CPU, within that time, which must suffice; otherwise all
 * results are zeros, and only the host's work remains. */
void timed_use(int n, int64_t segment_ns, bool compute);

#endif
