/* Devices whose work takes a time that is said, made of the CPU backend: pipelines of many stages
 * are tried and measured on a machine with few processors. A segment is queued and done so long
 * after the one before it; download and sync sleep until everything queued is done, as they would
 * wait for a GPU. */
#ifndef TESTS_PIPELINE_TIMED_H
#define TESTS_PIPELINE_TIMED_H

#include <stdbool.h>
#include <stdint.h>

enum { TIMED_MAX = 16 };

/* From now on there are n devices TIMED0 .. and no other kind. segment_ns: what each segment takes.
 * compute: segments are also run, on the CPU and in no time of their own (it must be less than
 * segment_ns); otherwise all that comes out is zeros, and what remains is the host's work. */
void timed_use(int n, int64_t segment_ns, bool compute);

#endif
