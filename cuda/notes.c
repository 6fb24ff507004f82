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

static int launch_kernel(struct gr_cuda_backend *c, cu_stream stream,
                         const struct gr_cuda_launch *l, bool early, void *args)
{
    struct cu_launch_attribute attribute[2];
    unsigned n = 0;
    if (early)
        attribute[n++] =
            (struct cu_launch_attribute){.id = CU_LAUNCH_PROGRAMMATIC, .value.value = 1};
    if (l->n_block > 1)
        attribute[n++] = (struct cu_launch_attribute){.id = CU_LAUNCH_CLUSTER,
                                                      .value.cluster = {l->n_block, 1, 1}};
    const struct cu_launch config = {.grid = {l->grid.x, l->grid.y, l->grid.z},
                                     .block = {l->threads, 1, 1},
                                     .smem = l->smem,
                                     .stream = stream,
                                     .attribute = attribute,
                                     .n_attribute = n};
    int result = c->cu->launch(&config, l->kernel->function, &args, NULL);
    return gr_cuda_said(c->cu, l->kernel->name, GR_CU_launch, result);
}

int gr_cuda_launch_range(struct gr_cuda_backend *c, cu_stream stream, const struct gr_cuda_notes *n,
                         size_t lo, size_t hi)
{
    const struct gr_cuda_launch *launch = n->launch.data;
    int rc = 0;
    for (size_t i = lo; i < hi && !rc; i++) {
        const struct gr_cuda_launch *l = &launch[i];
        void *args = (char *)n->args.data + l->args;
        if (l->plan)
            rc = gr_cuda_product_run(c, stream, l->plan, args);
        else /* what a library ends with need not be a kernel that one can begin behind early */
            rc = launch_kernel(c, stream, l,
                               i > lo && !l[-1].plan && l->kernel->early && !c->no_early, args);
    }
    return rc;
}
