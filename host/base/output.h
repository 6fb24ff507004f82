/* Output files: the public functions are in gpurun.h; here is what writers need that seek. */
#ifndef GR_BASE_OUTPUT_H
#define GR_BASE_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "gpurun.h"

struct gr_output {
    FILE *out;
    char *path; /* links followed */
    char *temp; /* name until commit; NULL: written under its final name */
    bool named; /* a file named `temp` exists */
    bool quick;
    int err; /* errno of the first failure */
};

/* Sets the position of the next write to byte `at`; only with GR_OUTPUT_SEEKS. */
int gr_output_seek(struct gr_output *o, uint64_t at);

#endif
