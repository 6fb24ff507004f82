/* Devices and the kernels that are loaded on them. A device's primary context and modules are there
 * as long as a backend is open on it, and shared by all backends of the process. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include <pthread.h>

#include "base/alloc.h"
#include "cuda/driver.h"
#include "cuda/launch.h"

#define GR_CUDA_MAX_DEVICES 64

struct gr_device_info;

/* A kernel, found once; lives as long as its device is open. */
struct gr_cuda_kernel {
    const char *name;
    cu_function function;
    uint32_t fixed; /* static shared memory */
    uint32_t smem;  /* dynamic shared memory that it may be launched with */
    bool early;     /* waits for the launch in front, so that it may begin before that is over */
};

struct gr_cuda_image {
    cu_module module;
    bool absent;          /* no code for this device in it */
    struct gr_vec kernel; /* struct gr_cuda_kernel * */
};

struct gr_cuda_device {
    const struct gr_cuda_driver *cu;
    char name[16]; /* "CUDA0" */
    cu_device handle;
    struct gr_cuda_facts facts;
    int n_user; /* guarded by the table's lock */
    cu_context context;
    pthread_mutex_t lock; /* guards what follows */
    struct gr_cuda_image *image;
    struct gr_arena arena;
};

/* Opens device i for one more user; ended by gr_cuda_release. */
int gr_cuda_acquire(struct gr_cuda_device **out, int i);
/* Adds a user to an open device. */
struct gr_cuda_device *gr_cuda_hold(struct gr_cuda_device *d);
void gr_cuda_release(struct gr_cuda_device **d);
/* Facts and free memory of device i, which need not be open. */
int gr_cuda_device_info(int i, struct gr_device_info *info);
/* Releases the context that gr_cuda_device_info has kept of a device, which now has a user. */
void gr_cuda_take_over(struct gr_cuda_device *d);

/* Makes a device's context current for the length of a call, as threads of programs may have a CUDA
 * context of their own. A function that is called from outside declares a variable by
 * GR_CUDA_VISIT: gr_cuda_visit makes the device's context the thread's current one, and the end of
 * the variable's block, however it is reached, restores the one from before. Visits nest. */
struct gr_cuda_visit {
    const struct gr_cuda_driver *cu; /* NULL: there is nothing to restore */
    cu_context outside;
};
#define GR_CUDA_VISIT(v)                                                                           \
    __attribute__((cleanup(gr_cuda_visit_end))) struct gr_cuda_visit v = {NULL, NULL}
int gr_cuda_visit(struct gr_cuda_visit *v, const struct gr_cuda_device *d);
void gr_cuda_visit_end(struct gr_cuda_visit *v);

/* Finds the kernel called `name`: NULL in *out when this build has none for this device, or with
 * no_sm90 when it is in a file *_sm90. The device's context is current. */
int gr_cuda_kernel(struct gr_cuda_device *d, const char *name, bool no_sm90,
                   struct gr_cuda_kernel **out);
/* Allows launches of the kernel with `smem` bytes of dynamic shared memory. */
int gr_cuda_kernel_smem(struct gr_cuda_device *d, struct gr_cuda_kernel *k, uint32_t smem);

/* True when code for these architectures ("sm_80 sm_90a compute_80") runs on capability cc. */
bool gr_cuda_runs(const char *archs, int cc);

#endif
