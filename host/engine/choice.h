/* A choice under way: where layers can go, what is asked for, and a placement with what it takes.
 * Between place.c, which searches, advice.c, which says what helps, and budget.c. */
#ifndef GR_ENGINE_CHOICE_H
#define GR_ENGINE_CHOICE_H

#include "engine/spots.h"
#include "model/split.h"

struct gr_choice {
    struct gr_model *m;
    const struct gr_session_params *params;
    const struct gr_split_wish *wish;
    gr_survey_fn *survey;
    void *user;
    struct gr_session_params full; /* params with defaults filled in */
    struct gr_memory memory;       /* of such a session */
    bool loaded;                   /* the weights are there: only the session is in question */
    bool has_costs;
    struct gr_vec layers, taken; /* struct gr_spot: what single layers take, what `place` does */
    /* Places for layers one after the other: a spot each, or one of each rank that shares them. */
    int32_t n_place, n_member;
    int16_t spot[GR_MAX_SPOT]; /* [n_place][n_member], index into layers and taken */
    bool any_gpu;              /* among them */
    int64_t
        off[GR_MAX_SPOT]; /* [n_place][n_member]: what measuring found beside the sum of layers */
    int32_t n_gpu, cut[GR_MAX_SPOT + 1];
    struct gr_placement place;
};

/* Finds the places; m to user are set. Freed by gr_choice_fini, also after a failure. */
int gr_choice_begin(struct gr_choice *c);
void gr_choice_fini(struct gr_choice *c);
/* Plans the last n_gpu layers (all of them where there is no GPU) as the model's parameters divide
 * them, and measures; *fits: whether no GPU has too little. with_margin: leaving something to
 * others. */
int gr_choice_try(struct gr_choice *c, int32_t n_gpu, bool with_margin, bool *fits);
/* The most layers that fit, with a margin; they are planned. */
int gr_choice_most(struct gr_choice *c, int32_t most, int32_t *n_gpu);
/* Measures what c->place takes. */
int gr_choice_measure(struct gr_choice *c, bool with_margin, bool *fits);
/* Index in c->taken of the first GPU that has too little; -1 = all is well. */
int32_t gr_choice_too_small(const struct gr_choice *c, bool with_margin);
/* Bytes that a spot takes, and that it has: its part where several share a device. */
uint64_t gr_spot_takes(const struct gr_choice *c, const struct gr_spot *t);
uint64_t gr_spot_free(const struct gr_choice *c, const struct gr_spot *t);

/* advice.c: GR_E_NOMEM_DEV, with what is needed where and what would fit. */
int gr_choice_explain(const struct gr_choice *c);
/* "1.5 GiB". Returns buf. */
const char *gr_mib(char buf[16], uint64_t bytes);

#endif
