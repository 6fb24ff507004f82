/* --prompt-cache: what a text left in the session, in a file together with its tokens, so that the
 * next text which begins alike goes on from there. */
#ifndef GR_TOOLS_PROMPT_CACHE_H
#define GR_TOOLS_PROMPT_CACHE_H

#include "gpurun.h"

struct gr_prompt_cache {
    const char *path; /* NULL: there is none, and the functions do nothing */
    int32_t *token;   /* [n] of sequence 0, in the order in which they went through the model */
    size_t n, cap;
    int32_t shift_keep; /* positions that --context-shift will keep; -1: it will not be wanted */
    bool complete;      /* the file has the whole prompt already */
    bool lost;          /* tokens were dropped from the context, or there was no memory for them */
};

/* Restores sequence 0 from the file, when there is one, and cuts it to the longest beginning that
 * it has in common with the prompt, the last token excepted, whose logits are wanted. *n_read: the
 * tokens that need not be run; *n_past and *se follow. What cannot be cut there (recurrent states,
 * merged positions, windows) begins anew, as does what this run would not have stored like that
 * (other factors of Self-Extend) and what does not fit into its context. 0 or an exit code, said;
 * another model's or a damaged file is an error, so that it is not written over. */
int gr_prompt_cache_load(struct gr_prompt_cache *c, struct gr_session *s, const int32_t *prompt,
                         size_t n_prompt, struct gr_self_extend *se, int32_t *n_past,
                         size_t *n_read);
/* Notes tokens that went through the model. */
void gr_prompt_cache_add(struct gr_prompt_cache *c, const int32_t *ids, int32_t n);
/* Writes the file anew; 0 or an exit code, said. */
int gr_prompt_cache_save(const struct gr_prompt_cache *c, struct gr_session *s,
                         const struct gr_self_extend *se);
void gr_prompt_cache_fini(struct gr_prompt_cache *c);

#endif
