/* The parts of the scheduler: admission.c has the requests that wait and how they begin,
 * conversations.c those texts that stay, extend.c Self-Extend and context shift, reuse.c parts of
 * prompts that stand elsewhere in the cache, slot_texts.c the texts of slots, turns.c adapters,
 * steps.c the steps, scheduler.c its thread and what others call. */
#ifndef GR_TOOLS_SCHEDULER_IMPL_H
#define GR_TOOLS_SCHEDULER_IMPL_H

#include <pthread.h>

#include "prefixes.h"
#include "scheduler.h"
#include "text.h"

/* Tokens of a step; token i is the next one of text `of[i]`, NULL: the text has left the step. */
struct gr_scheduler_step {
    int32_t *token, *pos, *seq;
    int32_t *index; /* in the text */
    int8_t *logits;
    struct gr_text **of;
    int32_t n, n_prompt;    /* n_prompt of them belong to prompts */
    int32_t n_row;          /* rows of logits */
    int64_t start, compute; /* ns: its time, and what the first stage has taken */
};

struct gr_conversation {
    uint64_t id, owner;
    int32_t *token; /* [n] its text, of which the cells may lack the end */
    int32_t n;
    struct gr_prefix_key key;   /* of its text, if it has any */
    int32_t seq;                /* -1: has not had one */
    bool busy;                  /* has a request */
    const struct gr_text *text; /* that request's */
    struct gr_conversation *next;
};

/* The text of a slot. */
struct gr_slot_text {
    uint64_t owner;
    int32_t slot;
    struct gr_prefix_key key;
    int32_t *token; /* [n] */
    int32_t n;
    struct gr_slot_text *next;
};

/* A call of another thread. */
struct gr_scheduler_call {
    bool is_slot;
    struct gr_conversation_call call;
    struct gr_slot_call slot; /* if is_slot */
    struct gr_scheduler_call *next;
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
    struct gr_conversation *conversations; /* a list of n_conversation */
    int32_t n_conversation;
    uint64_t last_conversation;
    struct gr_slot_text *slots;
    uint8_t adapter_sum[GR_MAX_ADAPTER][32]; /* SHA-256 that stand for them in keys */
    float turn[GR_MAX_ADAPTER];              /* adapters of this step */
    int64_t n_turn;
    int64_t round;    /* of admission */
    int64_t deadline; /* no request's time is over before; INT64_MAX: none has one */
    bool full;        /* the last step found no cells: nothing begins before one has succeeded */
    struct gr_scheduler_step *step; /* [n_flight] a ring */
    int32_t oldest, n_begun;        /* steps that have begun and not ended, from `oldest` on */
    double plain_ns, token_ns; /* time of a step without prompts at the first stage; of a token of
                                  a prompt */
    int32_t n_mixed; /* steps with prompts and answers since the last one without prompts */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Under the lock: */
    struct gr_text **live; /* [n_live] all that have not been freed */
    int32_t n_live;
    struct gr_text *inbox, **inbox_end;
    int32_t n_waiting; /* the inbox counted */
    struct gr_scheduler_call *calls, **calls_end;
    uint64_t last_id;
    bool stopping, now, cancelled; /* cancelled: some request, since the last step */
    int status;                    /* of the device, once it is lost */
    struct gr_scheduler_stats stats;
    struct gr_sequence_view *sequence; /* [n_seq] for gr_scheduler_look */
    bool disk_done;                    /* something was read or written since the last step */
    bool looked, look;                 /* sequence is filled in; is to be filled in anew */
};

/* Adds a text to those that wait. */
void gr_scheduler_put(struct gr_scheduler *s, struct gr_text *t);
/* Removes one from them. */
void gr_scheduler_take(struct gr_scheduler *s, struct gr_text *t);
/* Begins requests that wait, as far as sequences and cells suffice. */
void gr_scheduler_admit(struct gr_scheduler *s);
/* Stops the text that was submitted last of those with the lowest priority; it waits and is
 * computed again, but none of a conversation. false: it is the only one. */
bool gr_scheduler_preempt(struct gr_scheduler *s);
/* Changes the number of those that wait by n, as t becomes one of them or no longer is. */
void gr_scheduler_count(struct gr_scheduler *s, struct gr_text *t, int32_t n, int32_t n_preempted);

/* Carries out a list of calls, or with a status other than 0 refuses them with that. */
void gr_scheduler_do_calls(struct gr_scheduler *s, struct gr_scheduler_call *calls, int status);
/* Joins a text that came in to the conversation it names; ends it where that is not possible. */
void gr_scheduler_join(struct gr_scheduler *s, struct gr_text *t);
/* Returns whether conversations may hold n cells more, and their owner too; *why: the reason. */
bool gr_scheduler_may_keep(const struct gr_scheduler *s, uint64_t owner, int32_t n,
                           const char **why);
/* Ends a text's part in its conversation, to which it adds what it has computed. */
void gr_scheduler_part(struct gr_text *t);
/* Closes all conversations. */
void gr_scheduler_close_all(struct gr_scheduler *s);

/* Makes a text that has ended the one of its slot, if it has one. */
void gr_scheduler_set_slot(struct gr_scheduler *s, const struct gr_text *t);
/* Carries a call out, or with a status other than 0 refuses it with that. */
void gr_scheduler_do_slot(struct gr_scheduler *s, const struct gr_slot_call *call, int status);
void gr_scheduler_free_slots(struct gr_scheduler *s);

/* Returns a status: the model cannot do the text's Self-Extend, or its factors do not fit. */
int gr_scheduler_can_extend(const struct gr_scheduler *s, const struct gr_text *t);
/* Merges the windows of a text that are full, if it has Self-Extend, and limits *most to the tokens
 * before the next time. */
int gr_scheduler_extend(struct gr_scheduler *s, struct gr_text *t, int32_t *most);

/* Shifts the context of a text that has filled it, if it allows that. */
void gr_scheduler_shift(struct gr_scheduler *s, struct gr_text *t);

/* Finds out what stands for the adapters in keys, and sets them all to 0. Returns a status. */
int gr_scheduler_open_adapters(struct gr_scheduler *s);
/* Makes the key of an owner's texts; adapter NULL: all are 0. From any thread. */
struct gr_prefix_key gr_scheduler_key(const struct gr_scheduler *s, uint64_t owner,
                                      const float *adapter);
/* Gives a text that begins its place among those with other adapters. */
void gr_scheduler_join_turn(struct gr_scheduler *s, struct gr_text *t);
/* Chooses the adapters of the next step, those that had none for the longest time. Returns a
 * status. */
int gr_scheduler_take_turn(struct gr_scheduler *s);
/* Returns whether an active text is computed with the adapters of this step. */
bool gr_scheduler_has_turn(const struct gr_scheduler *s, const struct gr_text *t);

/* Looks for parts of a text that has a sequence in other texts of its owner, if it allows that. */
void gr_scheduler_plan_reuse(struct gr_scheduler *s, struct gr_text *t);
/* Moves the parts to the text that follow what it has. */
void gr_scheduler_reuse(struct gr_scheduler *s, struct gr_text *t);
/* Limits *most to the tokens before the next part. */
void gr_scheduler_stop_at_reuse(const struct gr_scheduler *s, const struct gr_text *t,
                                int32_t *most);

bool gr_scheduler_open_steps(struct gr_scheduler *s); /* false: no memory */
/* Waits for steps that have begun, which no text has any more, and frees all. */
void gr_scheduler_close_steps(struct gr_scheduler *s);
/* Begins a step, or waits for the oldest one where none can begin, or as many as may have. Returns
 * 0, or the status when the device or a rank is lost. */
int gr_scheduler_run_step(struct gr_scheduler *s);
/* Removes a text from the steps that have begun, whose result it does not get. */
void gr_scheduler_detach(struct gr_scheduler *s, const struct gr_text *t);

uint32_t gr_scheduler_n_free(const struct gr_scheduler *s); /* cells */
/* Drops texts that have ended until n cells are free; false: they do not suffice. */
bool gr_scheduler_make_room(struct gr_scheduler *s, uint32_t n);
/* Number of tokens of an active text that are in the cache. */
int32_t gr_scheduler_n_done(const struct gr_scheduler *s, const struct gr_text *t);

#endif
