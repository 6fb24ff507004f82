#include "prompt_cache.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/say.h"

/* Data stored with the state; the tokens follow. */
struct note {
    uint32_t version, n_token;
    struct gr_self_extend se;
};

#define VERSION 1

void gr_prompt_cache_add(struct gr_prompt_cache *c, const int32_t *ids, int32_t n)
{
    size_t need = c->n + (size_t)n;
    if ((!c->path && !c->record) || c->lost)
        return;
    if (need > c->cap) {
        int32_t *grown = realloc(c->token, 2 * need * sizeof *grown);
        if (!grown) {
            c->lost = true;
            return;
        }
        c->token = grown, c->cap = 2 * need;
    }
    memcpy(c->token + c->n, ids, (size_t)n * sizeof *ids);
    c->n = need;
}

void gr_prompt_cache_drop(struct gr_prompt_cache *c, int32_t n)
{
    if ((c->path || c->record) && !c->lost)
        c->n -= (size_t)n;
}

void gr_prompt_cache_shift(struct gr_prompt_cache *c, int32_t keep, int32_t n)
{
    if (!c->record)
        c->lost = true;
    else if (n > 0)
        c->n_dropped += n, c->hole = keep;
}

void gr_prompt_cache_fini(struct gr_prompt_cache *c)
{
    free(c->token);
    *c = (struct gr_prompt_cache){0};
}

/* ---- loading ---- */

/* Returns the positions removed by Self-Extend so far: each window of w has become w / n. */
static int64_t taken(const struct gr_self_extend *se)
{
    int32_t group = se->n > 1 ? se->w / se->n : 0;
    return group > 0 && se->i > 0 ? se->i / group * ((int64_t)se->w - group) : 0;
}

/* Returns whether Self-Extend can have come so far with n tokens: windows of w that it has merged
 * whole. */
static bool is_possible(const struct gr_self_extend *se, uint32_t n)
{
    int32_t group = se->n > 1 ? se->w / se->n : 0;
    if (se->n <= 1)
        return se->i == 0;
    return group > 0 && se->w % se->n == 0 && se->i >= 0 && se->i % group == 0 &&
           se->i / group * (int64_t)se->w <= n;
}

/* Returns the tokens of a note; NULL when the data is not valid. */
static const int32_t *tokens_of(const void *data, size_t n, struct note *note)
{
    if (n < sizeof *note)
        return NULL;
    memcpy(note, data, sizeof *note);
    bool ours = note->version == VERSION && (n - sizeof *note) / sizeof(int32_t) == note->n_token &&
                is_possible(&note->se, note->n_token);
    return ours ? (const int32_t *)((const char *)data + sizeof *note) : NULL;
}

/* Returns how many of the n common tokens are stored as this run would store them: all with the
 * same factors of Self-Extend; with others none when the file has merged positions, otherwise all
 * or, if this run merges any, those of its first window, which it merges before the next token. */
static size_t alike(const struct note *note, const struct gr_self_extend *se, size_t n)
{
    if (note->se.n == se->n && note->se.w == se->w)
        return n;
    if (taken(&note->se))
        return 0;
    return se->n > 1 && n > (size_t)se->w ? (size_t)se->w : n;
}

/* Truncates the session's text to `keep` tokens. Positions before note->se.i are merged; from there
 * on each token has its own, `merged` below its index. *fits: false when it cannot be truncated, or
 * when positions are to move (Self-Extend, --context-shift) and a sliding window has freed cells.
 * Returns the status of a session that fails. */
static int cut(const struct gr_prompt_cache *c, struct gr_session *s, const struct note *note,
               const struct gr_self_extend *se, size_t keep, bool *fits)
{
    int64_t merged = (int64_t)note->n_token - (gr_kv_seq_pos_max(s, 0) + 1);
    int64_t pos = (int64_t)keep - merged;
    int status = 0;
    *fits = keep && merged == taken(&note->se) + c->n_dropped && pos >= note->se.i &&
            (!c->n_dropped || pos >= c->hole);
    if (*fits && keep < note->n_token)
        status = gr_kv_seq_rm(s, 0, (int32_t)pos, -1);
    if (!status && se->n > 1 && gr_kv_seq_pos_min(s, 0) > 0)
        *fits = false;
    if (!status && *fits && c->shift_keep >= 0)
        status = gr_context_can_shift(s, 0, c->shift_keep);
    *fits = *fits && !status;
    return status == GR_E_UNSUPPORTED || status == GR_E_INVALID ? 0 : status;
}

static int refuse(const struct gr_prompt_cache *c, int status, const char *why)
{
    gr_say_error("--prompt-cache: %s; another file name, or removing %s, begins anew", why,
                 c->path);
    return gr_status_exit(status);
}

/* Keeps the tokens of the loaded state with which the prompt begins; *n_read, 0 before, receives
 * their number. Empties the session when none can be used. Returns the status of a session that
 * fails. */
static int take(struct gr_prompt_cache *c, struct gr_session *s, const struct note *note,
                const int32_t *token, const int32_t *prompt, size_t n_prompt,
                struct gr_self_extend *se, size_t *n_read)
{
    size_t same = 0;
    bool fits;
    while (same < note->n_token && same < n_prompt && token[same] == prompt[same])
        same++;
    size_t keep = alike(note, se, same < n_prompt ? same : n_prompt - 1);
    int status = cut(c, s, note, se, keep, &fits);
    if (fits) {
        gr_prompt_cache_add(c, token, (int32_t)keep);
        if (note->se.i > 0)
            se->i = note->se.i;
        *n_read = keep;
    } else {
        gr_kv_clear(s);
    }
    c->complete = same == n_prompt && *n_read + 1 == n_prompt;
    return status;
}

int gr_prompt_cache_load(struct gr_prompt_cache *c, struct gr_session *s, const int32_t *prompt,
                         size_t n_prompt, struct gr_self_extend *se, int32_t *n_past,
                         size_t *n_read)
{
    void *data;
    size_t n;
    struct note note;
    if (!c->path || access(c->path, F_OK) != 0)
        return 0;
    int status = gr_state_load_file(s, 0, c->path, &data, &n);
    if (status && status != GR_E_KV_FULL) /* the text does not fit this context: start from
                                             nothing */
        return refuse(c, status, gr_error_message());
    const int32_t *token = status ? NULL : tokens_of(data, n, &note);
    int rc = token || status ? 0 : refuse(c, GR_E_INVALID, "a state without the tokens of a text");
    if (token)
        status = take(c, s, &note, token, prompt, n_prompt, se, n_read);
    if (token && status)
        rc = gr_say_status(status);
    *n_past = gr_kv_seq_pos_max(s, 0) + 1;
    gr_state_free(data);
    if (!rc)
        gr_say("prompt cache: %zu of %zu tokens from %s", *n_read, n_prompt, c->path);
    return rc;
}

/* ---- recorded sessions ---- */

void gr_prompt_cache_clear(struct gr_prompt_cache *c, struct gr_session *s,
                           struct gr_self_extend *se, int32_t *n_past)
{
    gr_kv_clear(s);
    c->n = 0, c->n_dropped = 0, c->lost = false;
    se->i = 0, *n_past = 0;
}

int gr_prompt_cache_reuse(struct gr_prompt_cache *c, struct gr_session *s, const int32_t *prompt,
                          size_t n_prompt, struct gr_self_extend *se, int32_t *n_past,
                          size_t *n_read)
{
    struct note note = {VERSION, (uint32_t)c->n, *se};
    size_t same = 0;
    bool fits = false;
    int status = 0;
    while (same < c->n && same + 1 < n_prompt && c->token[same] == prompt[same])
        same++;
    if (!c->lost)
        status = cut(c, s, &note, se, same, &fits);
    if (fits) {
        c->n = *n_read = same;
        *n_past = gr_kv_seq_pos_max(s, 0) + 1;
    } else {
        gr_prompt_cache_clear(c, s, se, n_past);
        *n_read = 0;
    }
    return status ? gr_say_status(status) : 0;
}

bool gr_prompt_cache_restore(struct gr_prompt_cache *c, struct gr_session *s, const char *path,
                             struct gr_self_extend *se, int32_t *n_past)
{
    void *data = NULL;
    size_t n = 0;
    struct note note;
    gr_prompt_cache_clear(c, s, se, n_past);
    int status = gr_state_load_file(s, 0, path, &data, &n);
    const int32_t *token = status ? NULL : tokens_of(data, n, &note);
    bool whole = token && note.se.n == se->n && note.se.w == se->w &&
                 note.n_token - taken(&note.se) == gr_kv_seq_pos_max(s, 0) + 1;
    if (whole) {
        gr_prompt_cache_add(c, token, (int32_t)note.n_token);
        *se = note.se, *n_past = gr_kv_seq_pos_max(s, 0) + 1;
    } else {
        gr_say_warning("%s: %s; the text is computed again", path,
                       status  ? gr_error_message()
                       : token ? "other factors of Self-Extend, or not the state of its tokens"
                               : "a state without the tokens of a text");
        gr_prompt_cache_clear(c, s, se, n_past);
    }
    gr_state_free(data);
    return whole;
}

/* ---- saving ---- */

int gr_prompt_cache_save(const struct gr_prompt_cache *c, struct gr_session *s,
                         const struct gr_self_extend *se)
{
    if (!c->path)
        return 0;
    if (c->lost) {
        gr_say_warning("%s is left as it is: the session no longer has the whole text", c->path);
        return 0;
    }
    size_t n = sizeof(struct note) + c->n * sizeof *c->token;
    struct note note = {VERSION, (uint32_t)c->n, *se};
    char *data = malloc(n);
    if (!data) {
        gr_say_error("no memory for the %zu tokens of --prompt-cache", c->n);
        return 5;
    }
    memcpy(data, &note, sizeof note);
    memcpy(data + sizeof note, c->token, c->n * sizeof *c->token);
    int status = gr_state_save_file(s, 0, data, n, c->path);
    free(data);
    return status ? gr_say_status(status) : 0;
}
