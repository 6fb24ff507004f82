/* Text with DNA: bases between <dna> and </dna> are split into groups of six, one token each;
 * everything else is byte-level BPE. In the file a group's token ends with U+E000, which
 * distinguishes the bases CCCCCC from the word CCCCCC. */
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/text_impl.h"

#define OPEN "<dna>"
#define CLOSE "</dna>"
#define MARK "\xee\x80\x80"
#define GROUP 6

static int32_t find(const struct gr_vocab *v, const char *text)
{
    int32_t id = gr_trie_find(&v->trie, text, strlen(text));
    return id >= 0 && gr_token_from_text(v, id) ? id : -1;
}

void gr_dna_open(struct gr_vocab *v)
{
    v->dna = (struct gr_dna){find(v, OPEN), find(v, CLOSE), gr_trie_find(&v->trie, "<oov>", 5)};
    if (v->dna.close < 0 || v->dna.unknown < 0)
        v->dna.open = -1;
}

size_t gr_dna_strip(const char *p, size_t n)
{
    size_t mark = strlen(MARK);
    return n > mark && !memcmp(p + n - mark, MARK, mark) ? n - mark : n;
}

/* Pushes the token of a group of at most six bases, upper or lower case, padded with A. */
static int group(struct gr_job *j, const char *p, size_t n)
{
    char text[GROUP + sizeof MARK] = "AAAAAA" MARK;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(p[i] >= 'a' && p[i] <= 'z' ? p[i] - 'a' + 'A' : p[i]);
    int32_t id = gr_trie_find(&j->v->trie, text, strlen(MARK) + GROUP);
    return gr_job_push(j, id >= 0 && gr_token_from_text(j->v, id) ? id : j->v->dna.unknown);
}

/* Returns the position of the tag in p[0, n), or n. */
static size_t seek(const char *p, size_t n, const char *tag)
{
    const char *at = n ? memmem(p, n, tag, strlen(tag)) : NULL;
    return at ? (size_t)(at - p) : n;
}

int gr_dna_run(struct gr_job *j, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        size_t words = j->v->dna.open >= 0 ? seek(p + i, n - i, OPEN) : n - i;
        rc = words ? gr_bpe_run(j, p + i, words) : 0;
        i += words;
        if (rc || i == n)
            break;
        rc = gr_job_push(j, j->v->dna.open);
        i += strlen(OPEN);
        size_t bases = seek(p + i, n - i, CLOSE);
        for (size_t k = 0; k < bases && !rc; k += GROUP)
            rc = group(j, p + i + k, GR_MIN((size_t)GROUP, bases - k));
        i += bases;
        if (rc || i == n)
            break;
        rc = gr_job_push(j, j->v->dna.close);
        i += strlen(CLOSE);
    }
    return rc;
}
