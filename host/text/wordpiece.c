/* BERT's WordPiece: the text is normalised and split into words at blanks, punctuation and
 * ideographs; a word is split greedily into the longest tokens, and is unknown when that fails. In
 * the vocabulary a token that begins a word begins with U+2581. */
#include <utf8proc.h>

#include "base/checked.h"
#include "text/text_impl.h"
#include "text/utf8.h"

#define MAX_WORD 100 /* characters; a longer word is unknown */

/* Word under construction, in j->text after a U+2581. */
struct word {
    struct gr_job *j;
    size_t n_char;
};

/* Pushes the tokens of the word p[0, n); none when a part of it has no token. */
static int pieces(struct gr_job *j, const char *p, size_t n)
{
    const struct gr_trie *t = &j->v->trie;
    size_t had = j->ids->n;
    for (size_t i = 0, end; i < n; i = end) {
        int32_t best = -1;
        uint32_t node = 0;
        end = i;
        for (size_t k = i; k < n && (node = gr_trie_step(t, node, (uint8_t)p[k])); k++)
            if (t->id[node] >= 0 && gr_token_from_text(j->v, t->id[node]))
                best = t->id[node], end = k + 1;
        int rc = best >= 0 ? gr_job_push(j, best) : 0;
        if (rc)
            return rc;
        if (best < 0) {
            j->ids->n = had;
            break;
        }
    }
    return 0;
}

/* Ends the word: pushes its tokens, or the unknown token. */
static int end_word(struct word *w)
{
    struct gr_job *j = w->j;
    size_t had = j->ids->n;
    int rc = 0;
    if (!w->n_char)
        return 0;
    if (w->n_char <= MAX_WORD)
        rc = pieces(j, j->text.data, j->text.n);
    if (!rc && j->ids->n == had && j->v->special[GR_SPECIAL_UNK] >= 0)
        rc = gr_job_push(j, j->v->special[GR_SPECIAL_UNK]);
    w->n_char = 0;
    return rc;
}

/* Appends a character; beyond MAX_WORD it is only counted, since the word is unknown. */
static int add_char(struct word *w, uint32_t cp)
{
    char utf8[4];
    struct gr_vec *text = &w->j->text;
    int rc = 0;
    if (!w->n_char)
        text->n = 0, rc = gr_vec_append(text, GR_SPACE, GR_SPACE_BYTES, 1);
    if (!rc && w->n_char < MAX_WORD)
        rc = gr_vec_append(text, utf8, gr_utf8_put(cp, utf8), 1);
    w->n_char++;
    return rc;
}

/* Returns whether BERT treats the character as an ideograph, a word of its own; the start of the
 * sixth block is that of the models' own code. */
static bool is_ideograph(uint32_t c)
{
    static const uint32_t range[][2] = {{0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df},
                                        {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf},
                                        {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
    for (size_t i = 0; i < GR_COUNT(range); i++)
        if (c >= range[i][0] && c <= range[i][1])
            return true;
    return false;
}

/* Blanks separate words; other control characters, vertical tabs and form feeds included, are
 * dropped without separating words. */
static bool is_blank(uint32_t c, int category)
{
    return c == '\t' || c == '\n' || c == '\r' ||
           (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

static bool is_punctuation(uint32_t c, int category)
{
    return (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO) ||
           (c < 0x7f && category >= UTF8PROC_CATEGORY_SM && category <= UTF8PROC_CATEGORY_SO);
}

static int add_lower(struct word *w, uint32_t cp)
{
    if (!w->j->v->lowercase)
        return add_char(w, cp);
    uint32_t low[2];
    size_t n = gr_char_lower(cp, low);
    int rc = add_char(w, low[0]);
    return rc || n == 1 ? rc : add_char(w, low[1]);
}

/* Processes a code point of the decomposed text. */
static int feed_part(struct word *w, uint32_t cp)
{
    int category = utf8proc_category((utf8proc_int32_t)cp);
    if (w->j->v->strip_accents && category == UTF8PROC_CATEGORY_MN)
        return 0;
    bool alone = is_punctuation(cp, category) || is_ideograph(cp);
    int rc = alone ? end_word(w) : 0;
    if (!rc)
        rc = add_lower(w, cp);
    return rc || !alone ? rc : end_word(w);
}

/* Processes a character of the text. */
static int feed(struct word *w, uint32_t cp)
{
    int category = utf8proc_category((utf8proc_int32_t)cp);
    if (is_blank(cp, category))
        return end_word(w);
    if (cp == 0xfffd || (category >= UTF8PROC_CATEGORY_CC && category <= UTF8PROC_CATEGORY_CO))
        return 0;
    if (!w->j->v->strip_accents)
        return feed_part(w, cp);
    utf8proc_int32_t part[8];
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, part, GR_COUNT(part),
                                                 UTF8PROC_DECOMPOSE, NULL);
    int rc = 0;
    for (utf8proc_ssize_t i = 0; i < GR_MIN(n, (utf8proc_ssize_t)GR_COUNT(part)) && !rc; i++)
        rc = feed_part(w, (uint32_t)part[i]);
    return rc;
}

int gr_wordpiece_run(struct gr_job *j, const char *p, size_t n)
{
    struct word w = {j, 0};
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        uint32_t cp;
        int k = gr_utf8_next(p + i, n - i, &cp);
        if (k > 0)
            rc = feed(&w, cp);
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n - i;
    }
    return rc ? rc : end_word(&w);
}
