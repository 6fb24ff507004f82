/* --prompt-cache: a session's state in a file, with the tokens of its text, so that a later text
 * with the same beginning continues from there. */
#ifndef GR_TOOLS_PROMPT_CACHE_H
#define GR_TOOLS_PROMPT_CACHE_H

#include "gpurun.h"

struct gr_prompt_cache {
    const char *path; /* NULL: no cache; the functions do nothing */
    bool record;      /* there is a session whose tokens are recorded without a file too */
    int32_t *token;   /* [n] tokens of sequence 0, in the order in which they were run */
    size_t n, cap;
    int32_t shift_keep; /* positions that --context-shift will keep; -1: no shift */
    int32_t n_dropped;  /* tokens behind hole that shifts have dropped from a recorded session */
    int32_t hole;       /* the first one of them */
    bool complete;      /* the file has the whole prompt already */
    bool lost;          /* tokens were dropped from the context, or there was no memory for them */
};

/* Restores sequence 0 from the file, if it exists, and truncates it to the longest common prefix
 * with the prompt, except the prompt's last token, whose logits are needed. *n_read: tokens that
 * need not be run; *n_past and *se are set accordingly. The text starts from nothing when it cannot
 * be truncated there (recurrent states, merged positions, windows), was stored with other factors
 * of Self-Extend, or does not fit the context. 0 or an exit code, after printing the error; a
 * damaged file, or one of another model, is an error, so that it is not overwritten. */
int gr_prompt_cache_load(struct gr_prompt_cache *c, struct gr_session *s, const int32_t *prompt,
                         size_t n_prompt, struct gr_self_extend *se, int32_t *n_past,
                         size_t *n_read);
/* Truncates sequence 0 to the longest common prefix of the recorded tokens with the prompt, except
 * the prompt's last token; from nothing where gr_prompt_cache_load does so too. *n_read, *n_past
 * and *se as there. 0 or an exit code, after printing the error, when the session fails. */
int gr_prompt_cache_reuse(struct gr_prompt_cache *c, struct gr_session *s, const int32_t *prompt,
                          size_t n_prompt, struct gr_self_extend *se, int32_t *n_past,
                          size_t *n_read);
/* Restores sequence 0 and its tokens from a file, in place of those that are recorded. The session
 * is empty, and the warning printed, when the file is not usable; false then. */
bool gr_prompt_cache_restore(struct gr_prompt_cache *c, struct gr_session *s, const char *path,
                             struct gr_self_extend *se, int32_t *n_past);
/* Empties the session and the record. */
void gr_prompt_cache_clear(struct gr_prompt_cache *c, struct gr_session *s,
                           struct gr_self_extend *se, int32_t *n_past);
/* Notes that --context-shift has dropped n tokens behind the first `keep`. */
void gr_prompt_cache_shift(struct gr_prompt_cache *c, int32_t keep, int32_t n);
/* Records tokens that were run. */
void gr_prompt_cache_add(struct gr_prompt_cache *c, const int32_t *ids, int32_t n);
/* Forgets the last n tokens, which were removed from the session. */
void gr_prompt_cache_drop(struct gr_prompt_cache *c, int32_t n);
/* Writes the file; 0 or an exit code, after printing the error. */
int gr_prompt_cache_save(const struct gr_prompt_cache *c, struct gr_session *s,
                         const struct gr_self_extend *se);
void gr_prompt_cache_fini(struct gr_prompt_cache *c);

#endif
