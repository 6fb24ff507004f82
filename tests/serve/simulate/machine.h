/* Time of steps: a law of tokens and cells, on one device or on stages that a step passes one after
 * another, in virtual nanoseconds. */
#ifndef GR_TESTS_SIMULATE_MACHINE_H
#define GR_TESTS_SIMULATE_MACHINE_H

#include <stdint.h>

enum { SIM_POINTS = 24, SIM_STAGES = 64 };

/* Time of a micro-batch on all layers: a line through points (tokens, ns), beyond the last one by
 * the slope of the last two; and what attention adds. */
struct sim_law {
    struct {
        double n, ns;
    } point[SIM_POINTS];
    int n_point;
    double cell_ns; /* of a cell that a token alone of its text reads */
    double pair_ns; /* of a cell that a token of a prompt's piece is multiplied with */
};

struct sim_machine {
    struct sim_law law;
    int32_t n_ubatch;        /* most tokens of a micro-batch */
    int32_t n_stage;         /* each has an equal part of the layers */
    double hop_ns;           /* from a stage to the next one, and from the last one back */
    double free[SIM_STAGES]; /* when a stage has done what it was given */
    double now;              /* virtual time; that of the caller's step */
    double busy;             /* time that all stages have computed */
    int64_t n_step, n_token; /* sums */
};

/* Tokens of a text in a step, behind `past` cells. */
struct sim_part {
    int32_t n, past;
};

/* Begins a step of n parts now; `now` is when the first stage has done its part of it then. Returns
 * the step's end. */
double sim_machine_begin(struct sim_machine *m, const struct sim_part *part, int32_t n);
/* Computes such a step; `now` is its end then. */
void sim_machine_step(struct sim_machine *m, const struct sim_part *part, int32_t n);

#endif
