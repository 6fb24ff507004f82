/* Lists of tokens and their probabilities. */
#include "lists.h"

#include <math.h>

#include "gpurun.h"

static const double least = -9999; /* what the APIs have for no probability at all */

static struct gr_writer *next(struct gr_choice *c, int list)
{
    struct gr_writer *w = &c->list[list];
    if (w->n)
        gr_write(w, ",", 1);
    return w;
}

static void write_logprob(struct gr_writer *w, float logprob)
{
    gr_writef(w, "%.7g", isfinite(logprob) ? (double)logprob : least);
}

static const char *token_text(const struct gr_choice *c, int32_t id, size_t *n)
{
    const char *p = "";
    *n = 0;
    if (gr_text_piece(c->g->server->model, id, true, &p, n))
        *n = 0;
    return p;
}

static bool is_utf8(const char *p, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        if (!(k = gr_utf8_length(p + i, n - i)))
            return false;
    }
    return true;
}

/* Writes a token's text; one that is no whole characters as "bytes:\xe2\x82", so that tokens can be
 * told apart. */
static void write_token(struct gr_writer *w, const char *p, size_t n)
{
    if (is_utf8(p, n)) {
        gr_write_string(w, p, n);
        return;
    }
    gr_writef(w, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        gr_writef(w, "\\\\x%02x", (unsigned char)p[i]);
    gr_write(w, "\"", 1);
}

int64_t gr_count_chars(const char *p, size_t n)
{
    int64_t n_chars = 0;
    for (size_t i = 0; i < n; i++)
        n_chars += (p[i] & 0xc0) != 0x80;
    return n_chars;
}

void gr_list_id(struct gr_choice *c, const struct gr_piece *piece)
{
    gr_writef(next(c, GR_LIST_IDS), "%d", piece->id);
}

/* ---- completions ---- */

void gr_list_legacy(struct gr_choice *c, const struct gr_piece *piece, bool known)
{
    size_t n;
    const char *p = token_text(c, piece->id, &n);
    struct gr_writer *top = next(c, GR_LIST_TOP), *logprob = next(c, GR_LIST_LOGPROBS);
    write_token(next(c, GR_LIST_TOKENS), p, n);
    gr_writef(next(c, GR_LIST_OFFSETS), "%lld", c->n_chars > 0 ? (long long)c->n_chars : 0);
    c->n_chars += gr_count_chars(p, n);
    if (!known) {
        gr_writef(logprob, "null");
        gr_writef(top, "null");
        return;
    }
    write_logprob(logprob, piece->logprob);
    gr_write(top, "{", 1);
    for (int32_t i = 0; i < piece->n_top && i < c->g->ask.n_top; i++) {
        p = token_text(c, piece->top[i].id, &n);
        gr_write(top, ",", i > 0);
        write_token(top, p, n);
        gr_write(top, ":", 1);
        write_logprob(top, piece->top[i].logprob);
    }
    gr_write(top, "}", 1);
}

void gr_write_legacy(struct gr_writer *w, struct gr_choice *c)
{
    static const struct {
        int list;
        const char *name;
    } lists[] = {{GR_LIST_TOKENS, "tokens"},
                 {GR_LIST_LOGPROBS, "token_logprobs"},
                 {GR_LIST_TOP, "top_logprobs"},
                 {GR_LIST_OFFSETS, "text_offset"}};
    gr_write(w, "{", 1);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        gr_writef(w, "%s\"%s\":[", i ? "," : "", lists[i].name);
        gr_write_all(w, &c->list[lists[i].list]);
        gr_write(w, "]", 1);
        c->list[lists[i].list].n = 0;
    }
    gr_write(w, "}", 1);
}

/* ---- chats, and llama.cpp's completions ---- */

/* Writes "id":..,"token":..,"logprob":..,"bytes":[..] */
static void write_prob(struct gr_writer *w, const struct gr_choice *c, int32_t id, float logprob)
{
    size_t n;
    const char *p = token_text(c, id, &n);
    gr_writef(w, "\"id\":%d,\"token\":", id);
    gr_write_string(w, p, n);
    gr_writef(w, ",\"logprob\":");
    write_logprob(w, logprob);
    gr_writef(w, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        gr_writef(w, "%s%d", i ? "," : "", (unsigned char)p[i]);
    gr_write(w, "]", 1);
}

void gr_list_object(struct gr_choice *c, const struct gr_piece *piece)
{
    struct gr_writer *w = next(c, GR_LIST_TOKENS);
    gr_write(w, "{", 1);
    write_prob(w, c, piece->id, piece->logprob);
    gr_writef(w, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < piece->n_top && i < c->g->ask.n_top; i++) {
        gr_writef(w, i ? ",{" : "{");
        write_prob(w, c, piece->top[i].id, piece->top[i].logprob);
        gr_write(w, "}", 1);
    }
    gr_writef(w, "]}");
}
