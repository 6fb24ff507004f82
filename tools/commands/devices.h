/* The GPU part of summaries. */
#ifndef GR_TOOLS_DEVICES_H
#define GR_TOOLS_DEVICES_H

#include "gpurun.h"

/* " | VRAM .. | 33/33 layers on GPU" of an open session, "" without any. Returns buf. */
const char *gr_gpu_summary(const struct gr_session *s, char *buf, size_t n);

#endif
