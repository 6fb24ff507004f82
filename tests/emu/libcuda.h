/* The emulated driver as tests see it: what is configured, counted, reported and made to fail. Its
 * entry points are those of cuda/driver.def; README.md says what it checks. All of this is exported
 * from libcuda_emu.so and may be called by any thread. */
#ifndef TESTS_EMU_LIBCUDA_H
#define TESTS_EMU_LIBCUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forgets everything (contexts and what is in them, counters, reports, failures to come) and
 * configures anew: "devices=2,memory=64M,cc=80,order=late,seed=3"; NULL: as GR_EMU_DEVICE of the
 * environment says. That cuInit was called is kept, as programs do it once. 0, or 1 with a line in
 * the report. */
int emu_driver_configure(const char *options);

/* The nth call from now on (1 = the next) of this entry point, or of any with NULL, returns this
 * CUresult. A call that releases something does so all the same. An error that a device raises
 * (illegal address, launch failure ..) becomes the context's: every later call returns it.
 * "kernel" counts kernels as they run, so that the error comes up late. nth = 0 takes back all that
 * is to come. 0, or 1 when there is no such entry point. */
int emu_driver_fail(const char *symbol, int64_t nth, int error);

/* From now on calls of this entry point by other threads than the one that says so wait; NULL: none
 * do any more. 0, or 1 when there is no such entry point. */
int emu_driver_hold(const char *symbol);

/* Calls of an entry point so far, NULL: of all; "kernel": kernels run,
 * "early": those of them that may begin before the launch in front is over. -1: no such one. */
int64_t emu_driver_count(const char *symbol);
/* Bytes that an entry point has allocated, copied or filled, replays of graphs included. */
int64_t emu_driver_bytes(const char *symbol);
/* Objects that exist: "context", "module", "stream", "event", "graph", "exec", "memory", "host",
 * "product" (of cuBLASLt); NULL: all of them. -1: no such kind. */
int64_t emu_driver_live(const char *kind);

/* Findings so far, a line each; "" when there are none. The text lives until the next call of this
 * function. */
const char *emu_driver_report(void);
void emu_driver_report_clear(void);

#ifdef __cplusplus
}
#endif
#endif
