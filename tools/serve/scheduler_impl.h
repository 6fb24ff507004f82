/* The parts of the scheduler: admission.c has the requests that wait and how they begin,
 * scheduler.c the steps and what other threads call. */
#ifndef GR_TOOLS_SCHEDULER_IMPL_H
#define GR_TOOLS_SCHEDULER_IMPL_H

#include <pthread.h>

#include "prefixes.h"
#include "scheduler.h"
#include "text.h"

/* Tokens of the next step; token i is the next one of text `of[i]`. */
struct gr_scheduler_step {
    int32_t *token, *pos, *seq;
    int8_t *logits;
    struct gr_text **of;
    int32_t n, n_prompt; /* n_prompt of them belong to prompts */
    int32_t n_row;       /* rows of logits */
};

struct gr_scheduler {
    struct gr_scheduler_params p;
    struct gr_prefixes prefixes;
    struct gr_disk *disk; /* NULL: none */
    int32_t n_vocab;
    uint32_t n_cell;
    struct gr_text *waiting; /* lines of those that wait, by falling priority (text.h) */
    struct gr_text **active; /* [n_active] in the order they began */
    int32_t n_active;
    bool full; /* the last step found no cells: nothing begins before one has succeeded */
    struct gr_scheduler_step step;
    double plain_ns, token_ns; /* time of a step without prompts; of a token of a prompt */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Under the lock: */
    struct gr_text **live; /* [n_live] all that have not been freed */
    int32_t n_live;
    struct gr_text *inbox, **inbox_end;
    int32_t n_waiting; /* the inbox counted */
    uint64_t last_id;
    bool stopping, now, cancelled; /* cancelled: some request, since the last step */
    int status;                    /* of the device, once it is lost */
    struct gr_scheduler_stats stats;
};

/* Adds a text to those that wait. */
void gr_scheduler_put(struct gr_scheduler *s, struct gr_text *t);
/* Removes one from them. */
void gr_scheduler_take(struct gr_scheduler *s, struct gr_text *t);
/* Begins requests that wait, as far as sequences and cells suffice. */
void gr_scheduler_admit(struct gr_scheduler *s);
/* Stops the text that was submitted last of those with the lowest priority; it waits and is
 * computed again. false: it is the only one. */
bool gr_scheduler_preempt(struct gr_scheduler *s);
/* Changes the number of those that wait by n, as t becomes one of them or no longer is. */
void gr_scheduler_count(struct gr_scheduler *s, struct gr_text *t, int32_t n, int32_t n_preempted);

uint32_t gr_scheduler_n_free(const struct gr_scheduler *s); /* cells */
/* Drops texts that have ended until n cells are free; false: they do not suffice. */
bool gr_scheduler_make_room(struct gr_scheduler *s, uint32_t n);
/* Number of tokens of an active text that are in the cache. */
int32_t gr_scheduler_n_done(const struct gr_scheduler *s, const struct gr_text *t);

#endif
