/* Texts in the cache: what each sequence of a session holds, so that a text that begins as one of
 * them does is computed from where it differs. Cells of a common beginning are shared; a sequence
 * whose text has ended keeps its cells until others need them. */
#ifndef GR_TOOLS_PREFIXES_H
#define GR_TOOLS_PREFIXES_H

#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"

struct gr_session;
struct gr_disk;
struct gr_disk_job;

/* Whose a text is, and with which adapters it is computed: texts that may share cells have the same
 * id. */
struct gr_prefix_key {
    uint64_t id;
    float adapter[GR_MAX_ADAPTER]; /* strengths */
};

/* A sequence: token [n] at positions 0 to n - 1. Cells of a sequence are shared from its beginning
 * on, so that those of two sequences are the same up to some token and differ from there on. */
struct gr_prefix {
    int32_t *token;
    uint64_t *cell; /* [n] numbers: equal ones are the same cell */
    int32_t n, capacity;
    int32_t
        plain; /* the first ones, which are as their text alone makes them: others may use them */
    int32_t usable; /* the first ones that texts may use for which moved cells do: plain or more */
    uint64_t owner; /* who may share it: the id of its key */
    float adapter[GR_MAX_ADAPTER];
    uint64_t used; /* larger: used later */
    bool busy;     /* belongs to a text that goes on */
};

struct gr_prefixes {
    struct gr_session *session;
    struct gr_prefix *seq; /* [n_seq] by sequence id */
    int32_t n_seq;
    uint64_t clock, last_cell;
    bool whole;           /* the cache shares whole sequences only: it has recurrent states */
    struct gr_disk *disk; /* where texts go that are dropped, the caller's; NULL: nowhere */
    int32_t least;        /* tokens of a text that goes there */
    bool adapters;        /* they differ by text: those of the session are set for its states */
    int32_t spare;        /* an empty sequence of the session beyond n_seq; -1: there is none */
};

/* n_seq: of the session. Returns a status. */
int gr_prefixes_open(struct gr_prefixes *p, struct gr_session *session, int32_t n_seq, bool whole);
/* Saves what there is. */
void gr_prefixes_close(struct gr_prefixes *p);

/* Returns the length of the longest common beginning of token [n] and a sequence of the owner;
 * `moved`: with moved cells. *seq: that sequence, -1: none. Its time does not grow with the
 * sequences that share cells. */
int32_t gr_prefixes_find(const struct gr_prefixes *p, uint64_t owner, const int32_t *token,
                         int32_t n, bool moved, int32_t *seq);
/* Returns the number of cells that two sequences share. */
int32_t gr_prefixes_shared(const struct gr_prefixes *p, int32_t a, int32_t b);
/* Returns the number of cells that hold busy sequences and the first n tokens of `seq` (-1: none):
 * all others can be made free. */
int32_t gr_prefixes_held(const struct gr_prefixes *p, int32_t seq, int32_t n);
/* Gives a text of the key a sequence with the first n tokens of `from` (-1: none), or empty where
 * the cache cannot share them; the sequence used longest ago is dropped when none is empty. Returns
 * its id, -1: all are busy. */
int32_t gr_prefixes_take(struct gr_prefixes *p, const struct gr_prefix_key *key, int32_t from,
                         int32_t n);
/* Sets the key of a sequence that is empty or has it. */
void gr_prefixes_set_key(struct gr_prefixes *p, int32_t seq, const struct gr_prefix_key *key);
/* Sets the session's adapters to those of a sequence, whose state is about to be saved or restored.
 * Returns a status. */
int gr_prefixes_set_adapters(const struct gr_prefixes *p, int32_t seq);
/* Keeps an empty busy sequence from being shared: its positions will not be those of its tokens. */
void gr_prefixes_hide(struct gr_prefixes *p, int32_t seq);
/* Restores what was read of a file whose text begins with token [n] and has `all` tokens, into an
 * empty busy sequence that as many cells are free for; none of it where that fails. */
void gr_prefixes_restore(struct gr_prefixes *p, int32_t seq, struct gr_disk_job **read,
                         const int32_t *token, int32_t n, int32_t all);
/* Makes room to add so many tokens to a busy sequence; GR_E_NOMEM_HOST. */
int gr_prefixes_reserve(struct gr_prefixes *p, int32_t seq, int32_t n);
/* Records tokens that were decoded, within what was reserved. */
void gr_prefixes_add(struct gr_prefixes *p, int32_t seq, const int32_t *token, int32_t n);
/* Keeps what the sequence holds now in another one, if one is idle, where only whole sequences are
 * shared: texts that begin as this one does can start from here. */
void gr_prefixes_keep(struct gr_prefixes *p, int32_t seq);
/* Adds n tokens of a sequence, from position `from` on, to a busy one by copying their cells, whose
 * keys are turned to their new positions. Idle sequences other than `source` may be dropped for it.
 * GR_E_UNSUPPORTED, GR_E_KV_FULL, with nothing added: as gr_kv_seq_dup and gr_kv_seq_add, or there
 * is no spare sequence. */
int gr_prefixes_move(struct gr_prefixes *p, int32_t source, int32_t from, int32_t n, int32_t to);
/* Removes tokens [lo, hi) of a busy sequence, and moves those behind up. GR_E_UNSUPPORTED,
 * GR_E_KV_FULL, with nothing changed: as gr_context_shift, gr_kv_seq_rm and gr_kv_seq_dup. *why:
 * the reason. */
int gr_prefixes_cut(struct gr_prefixes *p, int32_t seq, int32_t lo, int32_t hi, const char **why);
/* Ends the text of a sequence, which keeps the cells that others may use. */
void gr_prefixes_leave(struct gr_prefixes *p, int32_t seq);
/* Removes all of a sequence and ends its text. */
void gr_prefixes_drop(struct gr_prefixes *p, int32_t seq);
/* Drops the sequence used longest ago of those whose text has ended, but not `except` (-1: none);
 * false: there is none. */
bool gr_prefixes_evict(struct gr_prefixes *p, int32_t except);

#endif
