/* Rules of the texts around calls: marks, and what is free until the mark of a call. */
#include <string.h>

#include "answer/format.h"
#include "answer/rules.h"
#include "base/checked.h"
#include "gr/status.h"
#include "text/utf8.h"

/* ---- marks ---- */

/* Length of the control token that a text begins with, 0: it begins with none. */
static size_t find_token(const struct gr_vocab *vocab, const char *p, size_t n, int32_t *id)
{
    for (size_t k = GR_MIN(n, (size_t)64); vocab && k > 1; k--) {
        *id = gr_vocab_find(vocab, p, k);
        if (*id >= 0 && gr_vocab_type(vocab, *id) == GR_TOKEN_CONTROL &&
            !gr_vocab_is_eog(vocab, *id))
            return k;
    }
    return 0;
}

void gr_answer_add_literal(struct gr_rules *r, const struct gr_vocab *vocab, uint32_t seq,
                           const char *p, size_t n)
{
    size_t done = 0;
    int32_t id = 0;
    for (size_t at = 0; at < n;) {
        size_t k = find_token(vocab, p + at, n - at, &id);
        if (k) {
            if (at > done)
                gr_rules_add(r, seq, gr_rules_literal(r, p + done, at - done));
            gr_rules_add(r, seq, gr_rules_token(r, (uint32_t)id, false));
            done = at + k;
        }
        at += k ? k : 1;
    }
    if (n > done)
        gr_rules_add(r, seq, gr_rules_literal(r, p + done, n - done));
}

/* ---- texts without a mark ---- */

struct text_writer {
    struct gr_rules *r;
    const struct gr_vocab *vocab;
    struct gr_mark mark[GR_MAX_MARK]; /* of the format */
    int32_t n_mark;
};

/* Adds the marks of the format that are control tokens: where a text is written by its characters
 * they are named, as no character is part of them. */
static void add_control_tokens(struct text_writer *w, uint32_t alt)
{
    for (int32_t i = 0; i < w->n_mark; i++) {
        const struct gr_mark *m = &w->mark[i];
        const char *text[] = {m->text, m->kind == GR_MARK_REASONING ? m->rest : ""};
        for (int k = 0; k < 2; k++) {
            int32_t id = 0;
            size_t n = strlen(text[k]);
            if (n && find_token(w->vocab, text[k], GR_MIN(n, k ? n : m->n), &id))
                gr_rules_add(w->r, alt, gr_rules_token(w->r, (uint32_t)id, false));
        }
    }
}

/* A rule for beginnings of the mark, any number of them; the k-th one ends with its k-th symbol.
 * The first symbol, `first` bytes of the mark, is in none of the others. */
static uint32_t beginnings(struct text_writer *w, const char *mark, size_t n, size_t first)
{
    uint32_t alt = gr_rules_alt(w->r), rule = gr_rules_new(w->r);
    for (size_t k = first; k < n; k += gr_utf8_step(mark + k, n - k)) {
        uint32_t seq = gr_rules_seq(w->r);
        gr_answer_add_literal(w->r, w->vocab, seq, mark, k);
        gr_rules_add(w->r, alt, seq);
    }
    gr_rules_define(w->r, rule, gr_rules_repeat(w->r, alt, 0, GR_UNBOUNDED));
    return rule;
}

/* Adds, for each beginning of the mark, that it goes on otherwise. */
static void add_others(struct text_writer *w, uint32_t alt, const char *mark, size_t n,
                       size_t first, uint32_t begun)
{
    struct gr_chars but[2];
    size_t n_but = 0;
    uint32_t cp;
    if (gr_utf8_next(mark, n, &cp) == (int)first)
        but[n_but++] = (struct gr_chars){cp, cp};
    for (size_t k = first; k < n; k += gr_utf8_step(mark + k, n - k)) {
        uint32_t seq = gr_rules_seq(w->r);
        if (gr_utf8_next(mark + k, n - k, &cp) > 0)
            but[n_but] = (struct gr_chars){cp, cp};
        gr_rules_add(w->r, seq, gr_rules_ref(w->r, begun));
        gr_answer_add_literal(w->r, w->vocab, seq, mark, k);
        gr_rules_add(w->r, seq, gr_rules_class(w->r, but, n_but + 1, true));
        gr_rules_add(w->r, alt, seq);
    }
}

/* Appends any text that the mark [n] is not within, also not together with what follows. */
static void add_text_without(struct text_writer *w, uint32_t seq, const char *mark, size_t n)
{
    struct gr_rules *r = w->r;
    int32_t id = -1;
    uint32_t cp = 0, unit = gr_rules_alt(r);
    size_t token = find_token(w->vocab, mark, n, &id);
    if (token)
        gr_rules_add(r, unit, gr_rules_token(r, (uint32_t)id, true));
    if (token == n) {
        gr_rules_add(r, seq, gr_rules_repeat(r, unit, 0, GR_UNBOUNDED));
        return;
    }
    size_t first = token ? token : gr_utf8_step(mark, n);
    (void)gr_utf8_next(mark, n, &cp);
    struct gr_chars begin = {cp, cp};
    uint32_t begun = beginnings(w, mark, n, first);
    gr_rules_add(r, unit, gr_rules_class(r, &begin, token ? 0 : 1, true));
    if (!token)
        add_control_tokens(w, unit);
    add_others(w, unit, mark, n, first, begun);
    gr_rules_add(r, seq, gr_rules_repeat(r, unit, 0, GR_UNBOUNDED));
    gr_rules_add(r, seq, gr_rules_ref(r, begun));
}

/* ---- what stands in front of calls ---- */

/* Appends blocks of reasoning, and the end of the one that the prompt has opened. */
static void add_reasoning(struct text_writer *w, uint32_t seq, const char *close)
{
    static const struct gr_chars blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    struct gr_rules *r = w->r;
    uint32_t alt = gr_rules_alt(r);
    if (close) {
        add_text_without(w, seq, close, strlen(close));
        gr_answer_add_literal(r, w->vocab, seq, close, strlen(close));
    }
    for (int32_t i = 0; i < w->n_mark; i++) {
        const struct gr_mark *m = &w->mark[i];
        if (m->kind != GR_MARK_REASONING)
            continue;
        uint32_t block = gr_rules_seq(r);
        gr_rules_add(r, block,
                     gr_rules_repeat(r, gr_rules_class(r, blanks, 3, false), 0, GR_UNBOUNDED));
        gr_answer_add_literal(r, w->vocab, block, m->text, m->n);
        add_text_without(w, block, m->rest, strlen(m->rest));
        gr_answer_add_literal(r, w->vocab, block, m->rest, strlen(m->rest));
        gr_rules_add(r, alt, block);
    }
    gr_rules_add(r, seq, gr_rules_repeat(r, alt, 0, GR_UNBOUNDED));
}

/* Length of the mark that the text of calls begins with, 0: it begins with none. */
static size_t find_mark(const struct text_writer *w, const char *opening)
{
    size_t n = 0;
    for (int32_t i = 0; i < w->n_mark; i++) {
        const struct gr_mark *m = &w->mark[i];
        if (m->kind != GR_MARK_REASONING && m->n > n && !strncmp(opening, m->text, m->n))
            n = m->n;
    }
    return n;
}

int gr_answer_add_free_text(struct gr_rules *r, const struct gr_vocab *vocab, uint32_t seq,
                            const struct gr_answer_calls *params, const char *opening)
{
    struct text_writer w = {.r = r, .vocab = vocab};
    const struct gr_mark *opened = NULL;
    size_t n_blank;
    w.n_mark = gr_format_marks(params->format, true, w.mark);
    size_t n = find_mark(&w, opening);
    if (!n)
        return gr_fail(GR_E_UNSUPPORTED,
                       "calls of the format %s begin with no mark: they cannot be optional",
                       gr_quote(params->format, strlen(params->format)));
    if (params->prompt)
        opened = gr_format_opened(w.mark, w.n_mark, params->prompt, params->n_prompt, &n_blank);
    add_reasoning(&w, seq, opened && opened->kind == GR_MARK_REASONING ? opened->rest : NULL);
    add_text_without(&w, seq, opening, n);
    return r->rc;
}
