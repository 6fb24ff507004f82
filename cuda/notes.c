/* Launches that are noted down: kept with copies of their arguments, and queued. */
#include "base/checked.h"
#include "cuda/runtime.h"

#define ARGS_ALIGN 64

int gr_cuda_notes_add(struct gr_cuda_notes *n, const struct gr_cuda_launch *launch,
                      const void *args, size_t args_bytes)
{
    static const char zero[ARGS_ALIGN] = {0};
    size_t pad = GR_PAD(n->args.n, ARGS_ALIGN) - n->args.n;
    int rc = gr_vec_append(&n->args, zero, pad, 1);
    struct gr_cuda_launch l = *launch;
    l.args = n->args.n;
    if (!rc)
        rc = gr_vec_append(&n->args, args, args_bytes, 1);
    return rc ? rc : gr_vec_append(&n->launch, &l, 1, sizeof l);
}

void gr_cuda_notes_fini(struct gr_cuda_notes *n)
{
    gr_vec_fini(&n->launch);
    gr_vec_fini(&n->args);
}

int gr_cuda_launch_range(struct gr_cuda_backend *c, cu_stream stream, const struct gr_cuda_notes *n,
                         size_t lo, size_t hi)
{
    const struct gr_cuda_launch *launch = n->launch.data;
    struct cu_launch_attribute early = {.id = CU_LAUNCH_PROGRAMMATIC, .value.value = 1};
    int rc = 0;
    for (size_t i = lo; i < hi && !rc; i++) {
        const struct gr_cuda_launch *l = &launch[i];
        const struct cu_launch config = {.grid = {l->grid.x, l->grid.y, l->grid.z},
                                         .block = {l->threads, 1, 1},
                                         .smem = l->smem,
                                         .stream = stream,
                                         .attribute = &early,
                                         .n_attribute = i > lo && l->kernel->early && !c->no_early};
        void *args = (char *)n->args.data + l->args;
        int result = c->cu->launch(&config, l->kernel->function, &args, NULL);
        rc = gr_cuda_said(c->cu, l->kernel->name, GR_CU_launch, result);
    }
    return rc;
}
