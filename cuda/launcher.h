/* The state of a launcher: between the walk over a segment's nodes (walk.c) and the services that
 * launchers ask for (launcher.c). */
#ifndef CUDA_LAUNCHER_H
#define CUDA_LAUNCHER_H

#include "cuda/runtime.h"

/* A scratch piece has what is derived at its beginning and the node's own behind it. */
struct gr_launcher {
    struct gr_cuda_backend *c;
    struct gr_cuda_notes *notes; /* NULL while measuring */
    struct gr_cuda_need need;    /* most that is asked for of each, padded */
    const struct gr_node *node;  /* that is noted, and how many stand behind it */
    int n_behind;
    int n_skip; /* of these are done already */
    bool keep;
    size_t node_used;
    struct gr_ten x; /* what is derived now, of this kind and size; x.data NULL: nothing */
    const char *kind;
    size_t bytes;
    int rc; /* of a call that returns none */
};

#endif
