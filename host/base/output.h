/* Files that are written: the functions for users are in gpurun.h, and these for writers that do
 * more than append. */
#ifndef GR_BASE_OUTPUT_H
#define GR_BASE_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "gpurun.h"

struct gr_output {
    FILE *out;
    char *path; /* links followed */
    char *temp; /* the name until commit; NULL: written under its own */
    bool named; /* `temp` is there */
    bool quick;
    int err; /* the first errno */
};

/* Goes on at byte `at`; only with GR_OUTPUT_SEEKS. */
int gr_output_seek(struct gr_output *o, uint64_t at);

#endif
