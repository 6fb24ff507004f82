/* The kind of devices that this folder drives, as the engine finds it. */
#include "base/checked.h"
#include "cuda/build.h"
#include "cuda/cublaslt.h"
#include "cuda/transport.h"

static int count(const char **why, bool *broken)
{
    const struct gr_cuda_state *s = gr_cuda_state();
    *why = s->n_device ? NULL : s->why;
    *broken = s->broken;
    return GR_MIN(s->n_device, GR_CUDA_MAX_DEVICES);
}

static void versions(struct gr_kind_versions *v)
{
    const int toolkit = gr_cuda_build.toolkit, needed = gr_cuda_needed(toolkit);
    *v = (struct gr_kind_versions){gr_cuda_state()->version, toolkit, needed,
                                   gr_cuda_driver_name(needed)};
}

static bool matmul_find(const char **what)
{
    const struct gr_cublaslt_state *s = gr_cublaslt_state();
    *what = s->what;
    return s->version != 0;
}

const struct gr_device_kind gr_cuda_devices = {
    .name = gr_cuda_kind,
    .count = count,
    .info = gr_cuda_device_info,
    .versions = versions,
    .open = gr_cuda_open,
    .matmul_find = matmul_find,
    .transport_find = gr_cuda_transport_find,
    .transport_ticket = gr_cuda_transport_ticket,
};
