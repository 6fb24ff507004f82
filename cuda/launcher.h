/* The state of a launcher: between the walk over a segment's nodes (walk.c) and the services that
 * launchers ask for (launcher.c). */
#ifndef CUDA_LAUNCHER_H
#define CUDA_LAUNCHER_H

#include "cuda/runtime.h"

/* A launcher's state. A piece of scratch memory begins with what is derived; the node's own is
 * behind it. */
struct gr_launcher {
    struct gr_cuda_backend *c;
    struct gr_cuda_notes *notes; /* NULL while measuring */
    struct gr_cuda_need need;    /* most that is asked for of each, padded */
    const struct gr_node *node;  /* the one being noted; n_behind stand behind it */
    int n_behind;
    int n_skip; /* of these, how many are done already */
    bool keep;
    size_t node_used;
    struct gr_ten x; /* derived now from x, of this kind and size; x.data NULL: nothing */
    const char *kind;
    size_t bytes;
    bool in_second; /* in the second half of its scratch memory, where halves are used in turn */
    bool in_place;  /* in the memory of x itself */
    int rc;         /* error of a service that returns none */
};

#endif
